// Selection in one pass: what its kernels share, and how scores are collected.
#pragma once

#include "kernels/common/cuda_check.h"
#include "kernels/select/cuda/long.cuh"
#include "kernels/select/cuda/tile.cuh"

namespace gsa::cuda::selecting {

// What the pass leaves for a query, beside its lists.
struct RowPassed {
  double sum, square;
  int count[kLists];  // entries of the lists; -1: may have overflowed
  int last[kLists];   // of scores that equal the bound, those up to this position are in the list

  // Up to where all of them are.
  __device__ __forceinline__ int stop() const { return min(min(last[0], last[1]), min(last[2], last[3])); }
};
static_assert(kLists == 4);

struct LongArgs {
  ScoreInput in;
  Budget budget;
  RowOutputs out;
  char* slots;  // scratch: slot_bytes for each tile under way, and one more
  long long slot_bytes;
  int shift, samples, list;  // as in LongPlan
  int first_tile, tiles;     // under way: tiles first_tile .. first_tile + tiles - 1
  int multiprocessors;
  int ring_bytes;  // of shared memory
  bool query_in_shared;
  Bound* bounds;      // of each query
  RowPassed* passed;  // of each query of the tiles under way
  int* failed;        // rows for the fallback, failed_count of them
  int* failed_count;
};

// Shared memory of the pass beside the keys.
struct PassShared {
  double sums[kTileQueries][2];
};
static_assert(sizeof(PassShared) == kPassSharedBytes);

// One entry more of a list, where score >= low: 8 bytes at `next`, which moves on. The address is kept as two
// words because only the lower one moves: no list crosses a multiple of 4 GB. Only another kernel reads it.
__device__ __forceinline__ void append(float score, float low, int position, std::uint32_t& next,
                                       std::uint32_t upper) {
  asm volatile(
      "{.reg .pred p; .reg .b64 a;\n"
      "setp.ge.f32 p, %1, %2;\n"
      "mov.b64 a, {%0, %4};\n"
      "@p st.global.v2.b32 [a], {%5, %3};\n"
      "@p add.u32 %0, %0, 8;}"
      : "+r"(next)
      : "f"(score), "f"(low), "r"(position), "r"(upper), "r"(__float_as_uint(score)));
}

// The scores of a lane's two queries with the keys, added up and collected.
class Collector {
 public:
  // Collects nothing before start() has been called.
  __device__ __forceinline__ Collector(const QueryTile& tile, int query, uint2* lists, int list) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      last_[i] = tile.position + query + 8 * i;
      low_[i] = never();
      shift_[i] = 0;
      const std::uint64_t begin = begin_of(query, i, lists, list);
      next_[i] = static_cast<std::uint32_t>(begin);
      upper_ = static_cast<std::uint32_t>(begin >> 32);
      full_[i] = full_of(begin, list);
      stop_[i] = 0x7fffffff;
    }
  }

  // The scores of key 0, and the bounds.
  __device__ __forceinline__ void start(const QueryTile& tile, int query, const Bound* bounds, float upper,
                                        float lower) {
    shift_[0] = upper, shift_[1] = lower;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (query + 8 * i >= tile.count) continue;
      const Bound bound = bounds[tile.row + query + 8 * i];
      low_[i] = bound.low;
      full_[i] -= 8 * static_cast<std::uint32_t>(bound.reserve);
    }
  }

  // Replaces the scores of keys from position s on that a query does not see: they add nothing to the
  // moments, and close() drops them.
  template <int kEights>
  __device__ __forceinline__ void hide(int s, float (&score)[kEights][4]) const {
    const int at = s + 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (at + 8 * n + j % 2 > last_[j / 2]) score[n][j] = shift_[j / 2];
      }
    }
  }

  // Scores of keys from position s on, eight at a time: groups kBegin .. kEnd - 1.
  template <bool masked, int kBegin, int kEnd, int kEights>
  __device__ __forceinline__ void groups(int s, const float (&score)[kEights][4]) {
    const int at = s + 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int n = kBegin; n < kEnd; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          take<masked>(i, at + 8 * n + e, score[n][2 * i + e]);
        }
      }
    }
  }

  // The same, one score of a tile, in the order of groups(); all are seen.
  template <int kEights>
  __device__ __forceinline__ void one(int s, const float (&score)[kEights][4], int number) {
    const int n = number / 4, i = number / 2 % 2, e = number % 2;
    take<false>(i, s + 2 * static_cast<int>(threadIdx.x % 4) + 8 * n + e, score[n][2 * i + e]);
  }

  // The end of a tile of 64 keys, from position s on: a block of the moments. Where a list has no room for
  // another tile, it takes what lies above the bound as long as there is room reserved, then nothing.
  __device__ __forceinline__ void end_tile(int s, int query, uint2* lists, int list) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      add_sums(segment_[i], block_[i]);
      block_[i] = {};
      if (next_[i] > full_[i]) {
        const std::uint32_t full = full_of(begin_of(query, i, lists, list), list);
        if (full_[i] == full) {
          low_[i] = never();
        } else {
          low_[i] = from_order(order_of(low_[i]) + 1);
          full_[i] = full;
          stop_[i] = s + kTileKeys - 1;
        }
      }
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
  // Leaves sums and number of entries for the kernel that finishes the queries. Lists are read two entries at
  // a time: one of odd length gets another entry, which nobody looks at.
  __device__ __forceinline__ void close(const PassShared& shared, int query, uint2* lists, int list,
                                        RowPassed* passed) const {
    const int lane = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = query + 8 * i;
      uint2* const own = lists + (at * kLists + lane) * list;
      int count =
          static_cast<int>(next_[i] - static_cast<std::uint32_t>(begin_of(query, i, lists, list))) / 8;
      asm volatile("" ::: "memory");  // append()'s stores, read by the thread that made them
      while (count > 0 && static_cast<int>(own[count - 1].y) > last_[i]) --count;
      if (count % 2 != 0) own[count] = make_uint2(0, 0);
      passed[at].count[lane] = next_[i] > full_of(begin_of(query, i, lists, list), list) ? -1 : count;
      passed[at].last[lane] = stop_[i];
      if (lane == 0) passed[at].sum = shared.sums[at][0], passed[at].square = shared.sums[at][1];
    }
  }

 private:
  template <bool masked>
  __device__ __forceinline__ void take(int i, int position, float score) {
    const bool seen = !masked || position <= last_[i];
    add_difference(block_[i], seen ? score : shift_[i], shift_[i]);  // adds zero where it is not seen
    append(score, seen ? low_[i] : never(), position, next_[i], upper_);
  }

  // A bound that no score reaches, infinity included.
  static __device__ __forceinline__ float never() { return __int_as_float(0x7fffffff); }
  static __device__ __forceinline__ std::uint64_t begin_of(int query, int i, uint2* lists, int list) {
    return __cvta_generic_to_global(lists + ((query + 8 * i) * kLists + threadIdx.x % 4) * list);
  }

  // From there on there is no room for another tile.
  static __device__ __forceinline__ std::uint32_t full_of(std::uint64_t begin, int list) {
    return static_cast<std::uint32_t>(begin) + 8 * static_cast<std::uint32_t>(list - kReserveStep);
  }

  ScoreSums<float> block_[2], segment_[2];
  float low_[2], shift_[2];
  int last_[2], stop_[2];
  std::uint32_t next_[2], full_[2], upper_;  // addresses; from full_ on end_tile() does something
};

// The tile whose slot has this number; the last tiles, which see the most keys, come first.
__device__ __forceinline__ QueryTile tile_of(const LongArgs& a, int slot) {
  return find_tile(a.in.sequences, a.first_tile + a.tiles - 1 - slot);
}

// A slot of the scratch; the spare one where it would cross a multiple of 4 GB, or end at one: a full list
// ends where the slot does (see append).
__device__ __forceinline__ char* slot_of(const LongArgs& a, int number) {
  char* const slot = a.slots + number * a.slot_bytes;
  const auto upper = [](const char* p) { return __cvta_generic_to_global(p) >> 32; };
  return upper(slot) == upper(slot + a.slot_bytes) ? slot : a.slots + a.tiles * a.slot_bytes;
}

// Keys that are sampled for a tile. The last may lie beyond those that the tile sees; none where the lists
// hold everything and no bound is needed.
__device__ __forceinline__ int samples_of(const LongArgs& a, const QueryTile& tile) {
  const int visible = tile.position + tile.count;
  const bool all = ((visible + kTileKeys - 1) / kTileKeys + 1) * (kTileKeys / kLists) <= a.list;
  return tile.count == 0 || all ? 0 : ((visible - 1) >> a.shift) + 1;
}

// Scores of sampled keys from number s on, of a lane's two queries; every row has room for `stride`.
template <int kEights>
__device__ __forceinline__ void store_sampled(float* scores, long long stride, int query, int s,
                                              const float (&score)[kEights][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float* const row = scores + (query + 8 * i) * stride + s + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      *reinterpret_cast<float2*>(row + 8 * n) = make_float2(score[n][2 * i], score[n][2 * i + 1]);
    }
  }
}

static_assert(kReserveStep == kTileKeys / kLists);

// Sample and pass in Hopper's own instructions: for which problems, and their launch (hopper/pass.cu).
void launch_hopper_sample(const LongArgs& args, ScoreType type, const Context& context);
void launch_hopper_pass(const LongArgs& args, ScoreType type, const Context& context);

// Bounds from sampled scores, and selection from what the pass left (cuda/finish.cu).
void launch_bounds(const LongArgs& args, const Context& context);
void launch_finish(const LongArgs& args, const Context& context);

}  // namespace gsa::cuda::selecting
