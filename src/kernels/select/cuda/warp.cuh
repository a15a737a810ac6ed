// Searches in scores that come from a source: each(visit) calls visit(score, position) for all of them, in
// any order.
#pragma once

#include "kernels/select/cuda/row.cuh"

namespace gsa::cuda::selecting {

constexpr int kListBits = 9;
constexpr int kListBins = 1 << kListBits;
constexpr int kListFew = 128;
constexpr std::uint32_t kAll = 0xffffffffu;

// How scores are put into bins: those at `low` into the first, `scale` bins a unit.
struct Bound {
  float low;
  float scale;
  // Where far more scores equal `low` than lists have room for: the entries of a list that are kept free for
  // higher ones. 0: no such ties.
  int reserve;
};

struct BinPlace {
  int bin, above, inside;
};

// The bin, from the top, that holds the wanted-th entry (the lowest bin where there are fewer); by one warp.
__device__ __forceinline__ BinPlace find_list_bin(const std::uint32_t* bins, int wanted) {
  constexpr int kEach = kListBins / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int top = kListBins - 1 - lane * kEach;
  int mine = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) mine += static_cast<int>(bins[top - i]);
  int upto = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAll, upto, step);
    if (lane >= step) upto += other;
  }
  const std::uint32_t reached = __ballot_sync(kAll, upto >= wanted);
  if (reached == 0) return {0, 0, 0};
  const int owner = __ffs(static_cast<int>(reached)) - 1;
  BinPlace place = {top, upto - mine, 0};
  if (lane == owner) {
    while (place.above + static_cast<int>(bins[place.bin]) < wanted) {
      place.above += static_cast<int>(bins[place.bin--]);
    }
    place.inside = static_cast<int>(bins[place.bin]);
  }
  return {__shfl_sync(kAll, place.bin, owner), __shfl_sync(kAll, place.above, owner),
          __shfl_sync(kAll, place.inside, owner)};
}

__device__ __forceinline__ int bin_of(float x, float low, float scale) {
  return static_cast<int>(fminf((x - low) * scale, static_cast<float>(kListBins - 1)));
}

// The scores of a query as they are stored, from a multiple of 16 bytes on.
class StoredRow {
 public:
  __device__ __forceinline__ StoredRow(const float* scores, int count) : scores_(scores), count_(count) {}

  template <int kAtOnce = 8, class Visit>
  __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll 1
    for (int base = 4 * static_cast<int>(threadIdx.x % 32); base < count_; base += 128 * kAtOnce) {
      float4 part[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = base + 128 * i;
        if (at + 3 < count_) {
          part[i] = *reinterpret_cast<const float4*>(scores_ + at);
        } else if (at < count_) {  // the row's end: nobody wrote beyond it
          part[i].x = scores_[at];
          if (at + 1 < count_) part[i].y = scores_[at + 1];
          if (at + 2 < count_) part[i].z = scores_[at + 2];
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = base + 128 * i, left = count_ - at;
        if (left > 0) visit(part[i].x, at);
        if (left > 1) visit(part[i].y, at + 1);
        if (left > 2) visit(part[i].z, at + 2);
        if (left > 3) visit(part[i].w, at + 3);
      }
    }
    __syncwarp();
  }

 private:
  const float* scores_;
  const int count_;
};

// Into the window what lies in bins above the one where the count passes k, aside what lies in that bin.
template <class Source, class Shared, class Window>
__device__ __forceinline__ void sort_out(const Source& all, const BinPlace& place, const Bound& bound,
                                         Shared& shared, const Window& window) {
  all.each([&](float score, int position) {
    const int bin = bin_of(score, bound.low, bound.scale);
    if (bin > place.bin) window.set(position);
    if (bin != place.bin) return;
    const int at = atomicAdd(&shared.few, 1);
    shared.few_order[at] = order_of(score);
    shared.few_position[at] = position;
  });
}

// A range of scores that holds the wanted-th highest of those within it; a histogram of kListBins bins narrows
// it.
struct WantedRange : OrderRange<kListBits> {
  int wanted;
  int inside;  // scores within it

  __device__ __forceinline__ void narrow(const BinPlace& place) {
    wanted -= place.above;
    inside = place.inside;
    static_cast<OrderRange&>(*this) = part(place.bin);
  }
};

// The bin with few scores, or with equal ones, that holds the rank-th highest: its lower end is a number that
// at least `rank` of the scores reach and not many more. By one warp; low and high are the scores' extremes.
template <class Source>
__device__ __forceinline__ WantedRange lower_quantile(const Source& all, int count, int rank, float low,
                                                      float high, std::uint32_t* bins) {
  constexpr int kEnough = 4;
  WantedRange range = {{order_of(low), order_of(high)}, rank, count};
  while (range.low != range.high && range.inside > kEnough) {
    for (int i = static_cast<int>(threadIdx.x % 32); i < kListBins; i += 32) bins[i] = 0;
    __syncwarp();
    all.each([&](float score, int) {
      const std::uint32_t order = order_of(score);
      if (range.holds(order)) atomicAdd(&bins[range.bin(order)], 1u);
    });
    range.narrow(find_list_bin(bins, range.wanted));
    __syncwarp();
  }
  return range;
}

}  // namespace gsa::cuda::selecting
