#include "kernels/attend/hopper/backward.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/attend/cuda/tile_scheduler.h"
#include "kernels/attend/hopper/backward.cuh"
#include "kernels/common/cuda_check.h"

namespace gsa::cuda {
namespace {

using backward::Params;
using backward::RowsView;

RowsView view(const ConstRows& rows) {
  return {static_cast<char*>(const_cast<void*>(rows.data)), rows.token_stride * 2, rows.head_stride * 2};
}

// delta = sum over the head of dout * out; a row takes d / 8 lanes. Where dout is 0 out does not count: it is
// NaN where a query has no keys, which matters only if somebody asks for its gradient.
template <typename T, int d>
__global__ __launch_bounds__(256) void delta_kernel(RowsView out, RowsView dout, int heads, std::int64_t rows,
                                                    float* delta) {
  constexpr int kLanes = d / 8;
  const std::int64_t thread = blockIdx.x * std::int64_t(256) + threadIdx.x;
  const std::int64_t row = thread / kLanes;
  const int chunk = static_cast<int>(thread % kLanes);
  float sum = 0;
  if (row < rows) {
    const std::int64_t token = row / heads, head = row % heads;
    const uint4 a = *reinterpret_cast<const uint4*>(out.data + token * out.token_stride +
                                                    head * out.head_stride + chunk * 16);
    const uint4 b = *reinterpret_cast<const uint4*>(dout.data + token * dout.token_stride +
                                                    head * dout.head_stride + chunk * 16);
    const T* const x = reinterpret_cast<const T*>(&a);
    const T* const y = reinterpret_cast<const T*>(&b);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (to_float(y[i]) != 0) sum = fmaf(to_float(x[i]), to_float(y[i]), sum);
    }
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (row < rows && chunk == 0) delta[row] = sum;
}

template <typename T, int d>
void launch(const Params& params, cudaStream_t stream) {
  constexpr std::size_t kBytes = backward::Shared<d>::kAllocated;
  const auto kernel = backward::backward_kernel<T, d>;
  allow_shared_memory(kernel, kBytes, "attend_backward");
  kernel<<<static_cast<unsigned>(params.tiles) * static_cast<unsigned>(params.kv_heads), backward::kThreads,
           kBytes, stream>>>(params);
  check_launch("attend_backward");
}

template <typename T, int d>
void run(const AttendBackwardArgs& args, const AttendBackwardConfig& config, Accumulation accumulation,
         const Context& context) {
  const cudaStream_t stream = stream_of(context.stream);
  const DeviceSequences sequences = upload(args.sequences, context);
  const int heads = static_cast<int>(args.shape.heads), kv_heads = static_cast<int>(args.shape.kv_heads);
  const int group = heads / kv_heads;
  const int tile_queries = config.tile_queries;
  const int all = union_tiles(args.sequences, tile_queries);
  const bool sparse = args.mask.words != nullptr;
  const int at_once = sparse ? std::min(all, union_tiles_at_once(args.mask, sequences, tile_queries)) : all;

  const std::int64_t rows = std::int64_t(sequences.total_queries) * heads;
  float* const delta = context.workspace->array<float>(static_cast<std::size_t>(rows));
  delta_kernel<T, d><<<static_cast<unsigned>((rows * (d / 8) + 255) / 256), 256, 0, stream>>>(
      view(args.out), view(args.dout), heads, rows, delta);
  check_launch("attend_backward: delta");

  Params params{};
  params.q = view(args.q);
  params.k = view(args.k);
  params.v = view(args.v);
  params.dout = view(args.dout);
  params.dq = view(args.dq);
  params.lse = static_cast<const float*>(args.lse);
  params.delta = delta;
  params.dk = static_cast<float*>(args.dk);
  params.dv = static_cast<float*>(args.dv);
  params.kv_heads = kv_heads;
  params.group_log2 = std::countr_zero(static_cast<unsigned>(group));
  params.scale = static_cast<float>(args.shape.scale);
  params.scale_log2 = static_cast<float>(args.shape.scale * kLog2EDouble);

  int* const tickets =
      context.workspace->array<int>(static_cast<std::size_t>(at_once) * static_cast<std::size_t>(kv_heads));
  params.schedule = tickets;
  // The ticket counter, and semaphores of every tile and head.
  const std::size_t words = 4 + 2 * static_cast<std::size_t>(at_once) * static_cast<std::size_t>(kv_heads);
  int* const state = context.workspace->array<int>(words);
  UnionPlan room;
  if (sparse) {
    room.tiles = 0;
  } else {
    params.tile = dense_tiles(sequences, tile_queries, all, context);
  }
  // The queues run from the last tile to the first, and so do ranges of tiles.
  for (int end = all; end > 0; end -= at_once) {
    const int begin = std::max(end - at_once, 0);
    if (sparse) {
      const UnionPlan plan =
          make_union_plan(args.mask, args.sequences, sequences, tile_queries, UnionOrder::ascending, begin,
                          end - begin, context, room.tiles > 0 ? &room : nullptr);
      if (room.tiles == 0) room = plan;
      params.tile = plan.tile;
      params.keys = plan.keys;
      params.bits = plan.bits;
      params.capacity = plan.capacity;
    }
    params.tiles = end - begin;
    schedule_tiles(params.tile, params.tiles, sequences, kv_heads, config.schedule, tickets, context);
    params.ticket = state;
    params.semaphores = accumulation == Accumulation::ordered ? state + 4 : nullptr;
    check(cudaMemsetAsync(state, 0, words * sizeof(int), stream), "attend_backward: memset");
    launch<T, d>(params, stream);
  }
}

template <typename T>
void run(const AttendBackwardArgs& args, const AttendBackwardConfig& config, Accumulation accumulation,
         const Context& context) {
  if (args.shape.head_size == 64) {
    run<T, 64>(args, config, accumulation, context);
  } else {
    run<T, 128>(args, config, accumulation, context);
  }
}

}  // namespace

void attend_backward_hopper(const AttendBackwardArgs& args, const AttendBackwardConfig& config,
                            Accumulation accumulation, const Context& context) {
  if (args.shape.dtype == DType::bf16) {
    run<__nv_bfloat16>(args, config, accumulation, context);
  } else {
    run<__half>(args, config, accumulation, context);
  }
}

}  // namespace gsa::cuda
