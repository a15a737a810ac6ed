// attend on any GPU from sm_80 on: lists of keys, then one launch for each range of tiles.
#include <algorithm>

#include "kernels/attend/generic/attend.h"
#include "kernels/attend/generic/forward.cuh"

namespace gsa::cuda {

void attend_generic(const AttendArgs& args, const Context& context) {
  using namespace generic;
  const AttendShape& shape = args.shape;
  if (args.sequences.total_queries() == 0) return;
  const cudaStream_t stream = stream_of(context.stream);
  const auto launch = shape.dtype == DType::bf16 ? launch_forward_bf16 : launch_forward_f16;
  ForwardParams params{};
  params.tiling = tiling_of(shape, upload(args.sequences, context), kForwardWarps);
  params.q = view_of(args.q);
  params.k = view_of(args.k);
  params.v = view_of(args.v);
  params.out = view_of(args.out);
  params.lse = static_cast<float*>(args.lse);
  params.heads = static_cast<int>(shape.heads);
  params.negate = shape.scale < 0;
  params.scale_log2 = scale_log2_of(shape);
  Tiling& tiling = params.tiling;
  if (args.mask.words == nullptr) {
    launch(params, dense_slots(tiling.sequences, tiling.queries), stream);
    return;
  }
  const int tiles = union_tiles(args.sequences, tiling.queries);
  const int at_once = std::min(tiles, union_tiles_at_once(args.mask, tiling.sequences, tiling.queries));
  UnionPlan first;
  for (int begin = 0; begin < tiles; begin += at_once) {
    const int count = std::min(at_once, tiles - begin);
    tiling.plan = make_union_plan(args.mask, args.sequences, tiling.sequences, tiling.queries,
                                  UnionOrder::causal, begin, count, context, begin == 0 ? nullptr : &first);
    if (begin == 0) first = tiling.plan;
    launch(params, count, stream);
  }
}

}  // namespace gsa::cuda
