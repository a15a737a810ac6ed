// Selection in one pass over the keys: the kernels.
//   sample_kernel  scores of a sample of the keys;
//   bound_kernel   gives each query a lower bound of its threshold from them (cuda/finish.cu);
//   pass_kernel    one pass over all keys adds up the moments and collects what reaches the bound, with its
//                  position;
//   finish_kernel  budget, threshold and mask from the moments and the collected scores (cuda/finish.cu);
//   fallback_kernel  queries whose bound was too high (or whose lists overflowed), from stored scores.
// A block scores a tile of 64 queries. As many tiles are under way at a time as blocks run at a time, so that
// scratch is bounded. The result does not depend on the sample.
#pragma once

#include <algorithm>

#include "kernels/select/cuda/pass.cuh"

namespace gsa::cuda::selecting {

// What the kernels share: a tile of queries, the block's scratch and shared memory.
template <typename T, ScoreForm form, int kHeads, int kSteps>
struct TileWork {
  using Fragments = Scorer<T, form, kHeads, kSteps>;

  const LongArgs& a;
  const QueryTile tile;
  char* const memory;
  const T* const keys;
  const int steps, warp, lane;

  __device__ __forceinline__ TileWork(const LongArgs& args, const QueryTile& queries, char* shared)
      : a(args),
        tile(queries),
        memory(shared),
        keys(static_cast<const T*>(args.in.k) + queries.key * args.in.k_token),
        steps(kSteps > 0 ? kSteps : args.in.steps),
        warp(static_cast<int>(threadIdx.x / 32)),
        lane(static_cast<int>(threadIdx.x % 32)) {}

  // Keys that the last query of the tile sees.
  __device__ __forceinline__ int visible() const { return tile.position + tile.count; }

  // Where the fragments of the queries lie, if in shared memory at all.
  __device__ __forceinline__ void* query_memory() const {
    return a.query_in_shared ? memory + a.ring_bytes : nullptr;
  }

  // Calls body(group, score) for groups of 16 keys of a tile in shared memory.
  template <class Body>
  __device__ __forceinline__ void score_tile(const Fragments& scorer, const char* stage, Body body) const {
    const std::uint32_t address = group_address(stage, steps);
#pragma unroll
    for (int g = 0; g < kTileKeys / kGroupKeys; ++g) {
      float score[2][4];
      scorer.score(
          a.in,
          [&](int s, std::uint32_t(&b)[4]) {
            ldmatrix_x4(b, address + g * kGroupKeys * key_pitch(steps) + 32 * s);
          },
          score);
      body(g, score);
    }
  }
};

template <typename T, ScoreForm form, int kHeads, int kSteps>
__global__ __launch_bounds__(kThreads,
                             kPassBlocks) void sample_kernel(const __grid_constant__ LongArgs args) {
  extern __shared__ __align__(16) char memory[];
  const int slot = static_cast<int>(blockIdx.x);
  const QueryTile tile = tile_of(args, slot);
  const int count = samples_of(args, tile);
  if (count == 0) return;
  const TileWork<T, form, kHeads, kSteps> work(args, tile, memory);
  const int first = 16 * work.warp, lane = work.lane, visible = work.visible(), shift = args.shift;
  float* const scores = reinterpret_cast<float*>(slot_of(args, slot));
  const long long stride = args.samples;
  const Scorer<T, form, kHeads, kSteps> scorer(args.in, tile, first, work.query_memory());
  for_sampled_tiles<T>(
      args.in, work.steps, work.keys, memory, 0, (count + kTileKeys - 1) / kTileKeys, count,
      [&](int i) { return min(sample_position(i, shift), visible - 1); },
      [&](int key_tile, const char* stage) {
        if (first >= tile.count) return;
        work.score_tile(scorer, stage, [&](int g, const float(&score)[2][4]) {
          store_sampled(scores, stride, first + lane / 4, key_tile * kTileKeys + g * kGroupKeys, score);
        });
      });
}

template <typename T, ScoreForm form, int kHeads, int kSteps>
__global__ __launch_bounds__(kThreads, kPassBlocks) void pass_kernel(const __grid_constant__ LongArgs args) {
  extern __shared__ __align__(16) char memory[];
  __shared__ PassShared shared;
  const int slot = static_cast<int>(blockIdx.x);
  const QueryTile tile = tile_of(args, slot);
  if (tile.count == 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < kTileQueries; i += kThreads) {
    shared.sums[i][0] = shared.sums[i][1] = 0;
  }
  __syncthreads();
  const TileWork<T, form, kHeads, kSteps> work(args, tile, memory);
  const ScoreInput& in = args.in;
  const int first = 16 * work.warp, lane = work.lane, visible = work.visible();
  const bool idle = first >= tile.count;
  const int query = first + lane / 4;
  const int key_tiles = (visible + kTileKeys - 1) / kTileKeys;
  uint2* const lists = reinterpret_cast<uint2*>(slot_of(args, slot));
  const Scorer<T, form, kHeads, kSteps> scorer(in, tile, first, work.query_memory());
  float at_zero[2][4];
  scorer.score(
      in,
      [&](int s, std::uint32_t(&b)[4]) {  // key 0 in every column
        b[0] = b[2] = load_pair(work.keys, 16 * s + 2 * (lane % 4), in.head_size, false);
        b[1] = b[3] = load_pair(work.keys, 16 * s + 2 * (lane % 4) + 8, in.head_size, false);
      },
      at_zero);
  Collector collector(tile, query, lists, args.list);
  collector.start(tile, query, args.bounds, at_zero[0][0], at_zero[0][2]);
  const int whole = (tile.position + first + 1) / kTileKeys;  // tiles that all queries of the warp see
  for_key_tiles<T, kSteps>(in, work.keys, memory, 0, key_tiles, visible,
                           [&](int key_tile, const char* stage) {
                             if (idle) return;
                             const int s = key_tile * kTileKeys;
                             if (key_tile < whole) {
                               work.score_tile(scorer, stage, [&](int g, const float(&score)[2][4]) {
                                 collector.template groups<false, 0, 2>(s + g * kGroupKeys, score);
                               });
                             } else {
                               work.score_tile(scorer, stage, [&](int g, const float(&score)[2][4]) {
                                 collector.template groups<true, 0, 2>(s + g * kGroupKeys, score);
                               });
                             }
                             collector.end_tile(s, query, lists, args.list);
                             if ((s + kTileKeys) % kMomentSegment == 0) collector.end_segment(shared, query);
                           });
  if (idle) return;
  if (key_tiles * kTileKeys % kMomentSegment != 0) collector.end_segment(shared, query);
  __syncwarp();
  collector.close(shared, query, lists, args.list, args.passed + slot * kTileQueries);
}

// One query from its stored scores; by all warps of a block.
template <typename T, ScoreForm form, int kHeads, int kSteps>
__global__ __launch_bounds__(kThreads,
                             kPassBlocks) void fallback_kernel(const __grid_constant__ LongArgs args) {
  extern __shared__ __align__(16) char memory[];
  const DeviceSequences& sequences = args.in.sequences;
  const int count = *args.failed_count;
  for (int i = static_cast<int>(blockIdx.x); i < count; i += static_cast<int>(gridDim.x)) {
    const int row = args.failed[i];
    if (threadIdx.x == 0) count_work(args.out.work, {.fallback_rows = 1});
    const int n = sequences.sequence_of(row);
    QueryTile tile;
    tile.count = 1;
    tile.row = row;
    tile.position = sequences.first_position(n) + row - sequences.q_begin(n);
    tile.key = sequences.k_begin(n);
    const TileWork<T, form, kHeads, kSteps> work(args, tile, memory);
    const int visible = tile.position + 1, warp = work.warp, lane = work.lane;
    float* const scores = reinterpret_cast<float*>(args.slots + blockIdx.x * args.slot_bytes);
    {
      const Scorer<T, form, kHeads, kSteps> scorer(args.in, tile, 0,
                                                   work.query_memory());  // 16 times the same
      for_key_tiles<T, kSteps>(
          args.in, work.keys, memory, 0, (visible + kTileKeys - 1) / kTileKeys, visible,
          [&](int key_tile, const char* stage) {
            float score[2][4];
            const std::uint32_t address =
                group_address(stage, work.steps) + warp * kGroupKeys * key_pitch(work.steps);
            scorer.score(
                args.in, [&](int s, std::uint32_t(&b)[4]) { ldmatrix_x4(b, address + 32 * s); }, score);
            if (lane >= 4) return;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              const int at = key_tile * kTileKeys + warp * kGroupKeys + 8 * n + 2 * lane;
              if (at < visible) scores[at] = score[n][0];
              if (at + 1 < visible) scores[at + 1] = score[n][1];
            }
          });
    }
    RowSelection<kThreads>(*reinterpret_cast<RowShared*>(memory), scores, visible)
        .run(args.budget, args.out, row);
  }
}

// All tiles, plan.at_once at a time, the last ones first.
template <typename T>
void launch_long_type(const LongArgs& all_tiles, ScoreType type, const LongPlan& plan,
                      const Context& context) {
  LongArgs args = all_tiles;
  const std::size_t bytes = plan.memory.bytes;
  const auto one = [&](auto* kernel, const char* name) {
    allow_shared_memory(kernel, bytes, name);
    kernel<<<static_cast<unsigned>(args.tiles), kThreads, bytes, stream_of(context.stream)>>>(args);
    check_launch(name);
  };
  const auto all = [&](auto* sample, auto* pass, auto* fallback) {
    for (int end = all_tiles.tiles; end > 0; end -= args.tiles) {
      args.first_tile = std::max(0, end - plan.at_once);
      args.tiles = end - args.first_tile;
      plan.wgmma ? launch_hopper_sample(args, type, context) : one(sample, "sample_kernel");
      launch_bounds(args, context);
      plan.wgmma ? launch_hopper_pass(args, type, context) : one(pass, "pass_kernel");
      launch_finish(args, context);
    }
    args.tiles = std::min(plan.at_once, all_tiles.tiles);  // as many blocks as there are slots
    one(fallback, "fallback_kernel");
  };
  constexpr ScoreForm kSigmoid = ScoreForm::sigmoid, kRelu = ScoreForm::relu;
  const bool usual = plan.memory.query_in_registers;
  if (type.form == kSigmoid && usual) {
    all(&sample_kernel<T, kSigmoid, 4, 4>, &pass_kernel<T, kSigmoid, 4, 4>,
        &fallback_kernel<T, kSigmoid, 4, 4>);
  } else if (type.form == kSigmoid) {
    all(&sample_kernel<T, kSigmoid, 0, 0>, &pass_kernel<T, kSigmoid, 0, 0>,
        &fallback_kernel<T, kSigmoid, 0, 0>);
  } else if (usual) {
    all(&sample_kernel<T, kRelu, 4, 4>, &pass_kernel<T, kRelu, 4, 4>, &fallback_kernel<T, kRelu, 4, 4>);
  } else {
    all(&sample_kernel<T, kRelu, 0, 0>, &pass_kernel<T, kRelu, 0, 0>, &fallback_kernel<T, kRelu, 0, 0>);
  }
}

}  // namespace gsa::cuda::selecting
