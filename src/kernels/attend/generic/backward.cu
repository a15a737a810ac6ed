// attend_backward on any GPU from sm_80 on: lists of keys, then one launch for each range of tiles.
#include <algorithm>
#include <climits>

#include "kernels/attend/cuda/tile_scheduler.h"
#include "kernels/attend/generic/attend.h"
#include "kernels/attend/generic/backward.cuh"

namespace gsa::cuda {
namespace {

// Semaphores and the ticket counter of a launch start at zero.
void clear_semaphores(generic::BackwardParams& params, int* counters, Accumulation accumulation,
                      cudaStream_t stream) {
  const generic::Tiling& t = params.tiling;
  const std::size_t units = static_cast<std::size_t>(params.tiles) * static_cast<std::size_t>(t.head_splits) *
                            static_cast<std::size_t>(t.kv_heads);
  const bool ordered = accumulation == Accumulation::ordered;
  check(cudaMemsetAsync(counters, 0, sizeof(int) * (ordered ? units + 1 : 1), stream), "attend_backward");
  params.tickets = counters;
  params.semaphores = ordered ? counters + 1 : nullptr;
}

}  // namespace

std::size_t attend_backward_generic_shared(std::int64_t head_size) {
  std::size_t bytes = 0;
  generic::with_padded_size(static_cast<int>(head_size), [&](auto size) {
    bytes = sizeof(generic::BackwardShared<__half, decltype(size)::value, 8>);
  });
  return bytes;
}

void attend_backward_generic(const AttendBackwardArgs& args, const AttendBackwardConfig& config,
                             Accumulation accumulation, const Context& context) {
  using namespace generic;
  const AttendShape& shape = args.shape;
  if (args.sequences.total_queries() == 0) return;
  const cudaStream_t stream = stream_of(context.stream);
  const auto launch = shape.dtype == DType::bf16 ? launch_backward_bf16 : launch_backward_f16;
  const bool dense = args.mask.words == nullptr;
  const int warps = config.warps;
  BackwardParams params{};
  params.tiling = tiling_of(shape, upload(args.sequences, context), warps);
  params.q = view_of(args.q);
  params.k = view_of(args.k);
  params.v = view_of(args.v);
  params.out = view_of(args.out);
  params.dout = view_of(args.dout);
  params.dq = view_of(args.dq);
  params.lse = static_cast<const float*>(args.lse);
  params.dk = static_cast<float*>(args.dk);
  params.dv = static_cast<float*>(args.dv);
  params.wide_sums = shape.head_size % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.dk) % 16 == 0 &&
                     reinterpret_cast<std::uintptr_t>(args.dv) % 16 == 0;
  params.heads = static_cast<int>(shape.heads);
  params.scale = static_cast<float>(shape.scale);
  params.scale_log2 = static_cast<float>(shape.scale * kLog2EDouble);
  Tiling& tiling = params.tiling;

  const int tiles = union_tiles(args.sequences, tiling.queries);
  const int at_once =
      dense ? tiles : std::min(tiles, union_tiles_at_once(args.mask, tiling.sequences, tiling.queries));
  const std::int64_t units = std::int64_t(at_once) * tiling.head_splits * tiling.kv_heads;
  if (units >= INT_MAX) {
    bad_argument("attend_backward", "heads", concat("at most ", INT_MAX, " tiles"), concat(units));
  }
  int* const counters = context.workspace->array<int>(static_cast<std::size_t>(units) + 1);
  int* const schedule = context.workspace->array<int>(static_cast<std::size_t>(at_once) *
                                                      static_cast<std::size_t>(tiling.kv_heads));
  params.schedule = schedule;
  if (dense) {
    params.tiles = tiles;
    params.tile = dense_tiles(tiling.sequences, tiling.queries, tiles, context);
    schedule_tiles(params.tile, tiles, tiling.sequences, tiling.kv_heads, config.schedule, schedule, context);
    clear_semaphores(params, counters, accumulation, stream);
    launch(params, warps, stream);
    return;
  }
  // From the last tiles to the first: the order of accumulation goes on over the ranges.
  UnionPlan first;
  for (int end = tiles; end > 0; end -= params.tiles) {
    params.tiles = std::min(at_once, end);
    tiling.plan =
        make_union_plan(args.mask, args.sequences, tiling.sequences, tiling.queries, UnionOrder::ascending,
                        end - params.tiles, params.tiles, context, end == tiles ? nullptr : &first);
    if (end == tiles) first = tiling.plan;
    params.tile = tiling.plan.tile;
    schedule_tiles(params.tile, params.tiles, tiling.sequences, tiling.kv_heads, config.schedule, schedule,
                   context);
    clear_semaphores(params, counters, accumulation, stream);
    launch(params, warps, stream);
  }
}

}  // namespace gsa::cuda
