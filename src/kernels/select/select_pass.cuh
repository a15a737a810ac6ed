// Selection in one pass: what its kernels share. Collecting scores, and what follows from the collected ones.
#pragma once

#include <cstddef>

#include "kernels/common/cuda_check.h"
#include "kernels/select/select_long.cuh"
#include "kernels/select/select_tile.cuh"

namespace gsa::cuda::selecting {

struct LongArgs {
  ScoreInput in;
  Budget budget;
  RowOutputs out;
  char* slots;  // scratch: slot_bytes for each block, and one more
  long long slot_bytes;
  int shift, samples, list;  // as in LongPlan
  int tiles;
  int warp_words;  // of shared memory of a warp
  bool query_in_shared;
  Bound* bounds;     // of each query
  int* failed;       // rows to be done again, failed_count of them
  int* next_sample;  // counters, zero at first
  int* next_tile;
  int* failed_count;
};

// Shared memory beside the ring of keys, which the warps' scratch overlays.
struct PassShared {
  double sums[kTileQueries][2];
  int count[kTileQueries][kLists];  // entries of the lists; -1: may have overflowed
};

// One entry more of a list, where score >= low: 8 bytes at `next`, which moves on. The address is kept as two
// words because only the lower one moves: no list crosses a multiple of 4 GB.
__device__ __forceinline__ void append(float score, float low, int position, std::uint32_t& next,
                                       std::uint32_t upper) {
  asm volatile(
      "{.reg .pred p; .reg .b64 a;\n"
      "setp.ge.f32 p, %1, %2;\n"
      "mov.b64 a, {%0, %4};\n"
      "@p st.global.v2.b32 [a], {%5, %3};\n"
      "@p add.u32 %0, %0, 8;}"
      : "+r"(next)
      : "f"(score), "f"(low), "r"(position), "r"(upper), "r"(__float_as_uint(score))
      : "memory");
}

// The scores of a lane's two queries with the keys, added up and collected.
class Collector {
 public:
  __device__ __forceinline__ Collector(const QueryTile& tile, int query, const Bound* bounds, uint2* lists,
                                       int list) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = query + 8 * i;
      last_[i] = tile.position + at;
      low_[i] = at < tile.count ? bounds[tile.row + at].low : never();
      shift_[i] = 0;
      const std::uint64_t begin = begin_of(query, i, lists, list);
      next_[i] = static_cast<std::uint32_t>(begin);
      upper_ = static_cast<std::uint32_t>(begin >> 32);
      full_[i] = next_[i] + 8 * static_cast<std::uint32_t>(list - kTileKeys / kLists);
    }
  }

  // The scores of key 0; before any others.
  __device__ __forceinline__ void set_shift(float upper, float lower) {
    shift_[0] = upper, shift_[1] = lower;
  }

  // Scores of 8 kEights keys from position s on.
  template <bool masked, int kEights>
  __device__ __forceinline__ void group(int s, const float (&score)[kEights][4]) {
    const int at = s + 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float x = score[n][2 * i + e];
          const int position = at + 8 * n + e;
          const bool seen = !masked || position <= last_[i];
          add_difference(block_[i], seen ? x : shift_[i], shift_[i]);  // adds zero where it is not seen
          append(x, seen ? low_[i] : never(), position, next_[i], upper_);
        }
      }
    }
  }

  // The end of a tile of 64 keys: a block of the moments.
  __device__ __forceinline__ void end_tile() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      add_sums(segment_[i], block_[i]);
      block_[i] = {};
      if (next_[i] > full_[i]) low_[i] = never();  // no room for another tile
    }
  }
  __device__ __forceinline__ void end_segment(PassShared& shared, int query) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const ScoreSums<float> sums = join_chains(segment_[i]);
      segment_[i] = {};
      if (threadIdx.x % 4 == 0) {
        ScoreSums<double> row = {shared.sums[query + 8 * i][0], shared.sums[query + 8 * i][1]};
        add_segment(row, sums);
        shared.sums[query + 8 * i][0] = row.sum, shared.sums[query + 8 * i][1] = row.square;
      }
    }
  }
  // Entries of the lane's list; -1: it may have overflowed. Lists are read two entries at a time: one of odd
  // length gets another entry, which nobody looks at.
  __device__ __forceinline__ int close(int query, int i, uint2* lists, int list) const {
    if (next_[i] > full_[i]) return -1;
    const int count =
        static_cast<int>(next_[i] - static_cast<std::uint32_t>(begin_of(query, i, lists, list))) / 8;
    if (count % 2 != 0) lists[((query + 8 * i) * kLists + threadIdx.x % 4) * list + count] = make_uint2(0, 0);
    return count;
  }

 private:
  // A bound that no score reaches, infinity included.
  static __device__ __forceinline__ float never() { return __int_as_float(0x7fffffff); }
  static __device__ __forceinline__ std::uint64_t begin_of(int query, int i, uint2* lists, int list) {
    return __cvta_generic_to_global(lists + ((query + 8 * i) * kLists + threadIdx.x % 4) * list);
  }

  ScoreSums<float> block_[2], segment_[2];
  float low_[2], shift_[2];
  int last_[2];
  std::uint32_t next_[2], full_[2], upper_;
};

// The block's scratch; the spare one where it would cross a multiple of 4 GB, or end at one: a full list ends
// where the scratch does (see append).
__device__ __forceinline__ char* slot_of(const LongArgs& a) {
  char* const slot = a.slots + blockIdx.x * a.slot_bytes;
  const auto upper = [](const char* p) { return __cvta_generic_to_global(p) >> 32; };
  return upper(slot) == upper(slot + a.slot_bytes) ? slot : a.slots + gridDim.x * a.slot_bytes;
}

// Scratch of a warp, over the memory that holds the keys meanwhile.
__device__ __forceinline__ WarpShared& warp_scratch(const LongArgs& a, char* memory) {
  return *reinterpret_cast<WarpShared*>(memory + threadIdx.x / 32 * a.warp_words * 4);
}

// Takes tiles from a counter until there are none, the last ones, which see the most keys, first.
template <class Body>
__device__ __forceinline__ void for_query_tiles(const LongArgs& args, int* next, Body body) {
  __shared__ int taken;
  for (;;) {
    if (threadIdx.x == 0) taken = atomicAdd(next, 1);
    __syncthreads();
    const int tile = taken;
    if (tile >= args.tiles) return;
    const QueryTile place = find_tile(args.in.sequences, args.tiles - 1 - tile);
    if (place.count > 0) body(place);
    __syncthreads();
  }
}

// Results of one query, by one warp.
__device__ __forceinline__ void finish(const LongArgs& a, int row, int visible, const uint2* lists,
                                       const int* count, const ScoreSums<double>& sums, WarpShared& scratch) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool overflow = count[0] < 0 || count[1] < 0 || count[2] < 0 || count[3] < 0;
  const int entries = count[0] + count[1] + count[2] + count[3];
  const float nan = __int_as_float(0x7fc00000);
  RowChoice choice = {-INFINITY, visible - 1};
  const double variance = variance_of(sums, visible);
  int k = 0;
  if (isnan(sums.square)) {
    choice.threshold = nan;
  } else {
    if (isfinite(variance)) k = budget_for(a.budget, variance, visible);
    if (k == 0 || (k < visible && (overflow || entries < k))) {
      if (lane == 0) a.failed[atomicAdd(a.failed_count, 1)] = row;
      return;
    }
  }
  const Collected all(lists, a.list, count);
  constexpr int kOther = static_cast<int>(offsetof(WarpShared, bins)) / 4;
  const MaskWindow window = {scratch.bins, 0, min(a.warp_words - kOther, (visible + 31) / 32)};
  if (k > 0 && k < visible) choice = search(all, k, visible, a.bounds[row], scratch, window);
  if (lane == 0) write_row(a.out, row, k, k == 0 ? nan : static_cast<float>(variance), choice);
  if (a.out.words != nullptr) write_mask(a.out, all, k, visible, choice, window, row);
}

// The pass in Hopper's own instructions: for which problems, and its launch (select_pass_hopper.cu).
bool hopper_pass_takes(const ScoreInput& in, const Device& device);
void launch_hopper_pass(const LongArgs& args, ScoreType type, std::size_t bytes, int blocks,
                        const Context& context);

// Results of the queries of a tile, each warp for its own 16.
__device__ __forceinline__ void finish_tile(const LongArgs& a, const QueryTile& tile,
                                            const PassShared& shared, char* memory) {
  const int first = 16 * static_cast<int>(threadIdx.x / 32);
  const uint2* const lists = reinterpret_cast<const uint2*>(slot_of(a));
#pragma unroll 1
  for (int query = first; query < min(first + 16, tile.count); ++query) {
    finish(a, tile.row + query, tile.position + query + 1,
           lists + static_cast<long long>(query) * kLists * a.list, shared.count[query],
           {shared.sums[query][0], shared.sums[query][1]}, warp_scratch(a, memory));
    __syncwarp();
  }
}

}  // namespace gsa::cuda::selecting
