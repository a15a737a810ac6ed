#include "kernels/attend/hopper/forward.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "gsa/error.h"
#include "kernels/attend/hopper/forward.cuh"
#include "kernels/common/log2e.h"

namespace gsa::cuda {
namespace {

forward::Strided strided(const ConstRows& rows) {
  return {static_cast<const char*>(rows.data), rows.head_stride * 2, static_cast<int>(rows.token_stride * 2)};
}

// Runs params.items tiles; the list of what the fallback has to compute is made and used on the device.
void launch(const AttendArgs& args, const AttendConfig& config, forward::Params& params, int* notes,
            const Context& context) {
  const cudaStream_t stream = stream_of(context.stream);
  const std::size_t entries = static_cast<std::size_t>(params.items) * static_cast<std::size_t>(params.parts);
  params.list_size = notes;
  params.noted = notes + 1;
  params.list = notes + 1 + entries;
  check(cudaMemsetAsync(notes, 0, (1 + entries) * sizeof(int), stream), "cudaMemsetAsync");
  const auto run = args.shape.dtype == DType::bf16 ? forward::launch_bf16 : forward::launch_f16;
  run(params, config, static_cast<int>(args.shape.head_size), args.mask.words == nullptr,
      context.device.multiprocessors, stream);
}

int* make_notes(std::int64_t items, int parts, const Context& context) {
  return context.workspace->array<int>(static_cast<std::size_t>(2 * items * parts + 1));
}

}  // namespace

void attend_forward_hopper(const AttendArgs& args, const AttendConfig& config, const Context& context) {
  const AttendShape& shape = args.shape;
  const int kv_heads = static_cast<int>(shape.kv_heads);
  forward::Params params = {};
  params.q = strided(args.q);
  params.k = strided(args.k);
  params.v = strided(args.v);
  params.out = strided(args.out);
  params.lse = static_cast<float*>(args.lse);
  params.heads = static_cast<int>(shape.heads);
  params.group_log2 = std::countr_zero(static_cast<std::uint64_t>(shape.heads / shape.kv_heads));
  params.scale = static_cast<float>(shape.scale == 0 ? 1 : std::abs(shape.scale) * kLog2EDouble);
  params.q_factor = shape.scale > 0 ? 1.0f : shape.scale < 0 ? -1.0f : 0.0f;
  params.tile_queries = config.tile_queries;
  params.parts = config.rows / 64;
  const DeviceSequences sequences = upload(args.sequences, context);
  if (args.mask.words == nullptr) {
    params.sequences = sequences;
    params.tiles = forward::dense_slots(sequences, config.tile_queries);
    const std::int64_t items = std::int64_t(params.tiles) * kv_heads;
    if (items > std::numeric_limits<int>::max()) {
      bad_argument("attend", "sequences", "tiles of queries times key/value heads below 2^31", concat(items));
    }
    params.items = static_cast<int>(items);
    launch(args, config, params, make_notes(params.items, params.parts, context), context);
    return;
  }
  const int tiles = union_tiles(args.sequences, config.tile_queries);
  const int at_once = std::min(tiles, union_tiles_at_once(args.mask, sequences, config.tile_queries));
  int* const notes = make_notes(std::int64_t(at_once) * kv_heads, params.parts, context);
  UnionPlan first;
  for (int begin = 0; begin < tiles; begin += at_once) {
    params.tiles = std::min(at_once, tiles - begin);
    params.items = params.tiles * kv_heads;
    params.plan =
        make_union_plan(args.mask, args.sequences, sequences, config.tile_queries, UnionOrder::causal, begin,
                        params.tiles, context, begin == 0 ? nullptr : &first, true);
    if (begin == 0) first = params.plan;
    launch(args, config, params, notes, context);
  }
}

}  // namespace gsa::cuda
