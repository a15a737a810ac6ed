// Threshold and mask of one query by one warp, from a source of scores: each(visit) calls visit(score,
// position) for all of them, in any order.
#pragma once

#include "kernels/select/select_row.cuh"

namespace gsa::cuda::selecting {

constexpr int kListBins = 512;
constexpr int kListFew = 128;
constexpr std::uint32_t kAll = 0xffffffffu;

// How scores are put into bins: those at `low` into the first, `scale` bins a unit.
struct Bound {
  float low;
  float scale;
};

// Scratch of a warp in shared memory; the words of a mask take the place of the bins once these have served.
struct alignas(16) WarpShared {
  std::uint32_t few_order[kListFew];
  int few_position[kListFew];
  int few;
  int unused[31];  // the bins begin at a multiple of 16 bytes
  std::uint32_t bins[kListBins];
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

template <class Source, class Test>
__device__ __forceinline__ int count_if(const Source& all, Test test) {
  int count = 0;
  all.template each<1>([&](float score, int position) { count += test(score, position); });
  return __reduce_add_sync(kAll, count);
}

// The k-th highest of the scores, by halving the range of scores, then of positions.
template <class Source>
__device__ __forceinline__ RowChoice search_bits(const Source& all, int k, int visible) {
  std::uint32_t order = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const std::uint32_t trial = order | 1u << bit;
    if (count_if(all, [=](float score, int) { return order_of(score) >= trial; }) >= k) order = trial;
  }
  const int above = count_if(all, [=](float score, int) { return order_of(score) > order; });
  const int equal = count_if(all, [=](float score, int) { return order_of(score) == order; });
  const float threshold = from_order(order);
  if (above + equal == k) return {threshold, visible - 1};
  int cut = 0;  // the highest position with fewer than k - above equals below it
  for (int bit = 30; bit >= 0; --bit) {
    const int trial = cut | 1 << bit;
    const int below = count_if(
        all, [=](float score, int position) { return order_of(score) == order && position < trial; });
    if (below < k - above) cut = trial;
  }
  return {threshold, cut};
}

// Bits of a mask that is put together in shared memory: words `base` .. `base + count - 1` of a row. There is
// room for a multiple of four words, at a multiple of 16 bytes.
struct MaskWindow {
  std::uint32_t* words;
  int base, count;

  __device__ __forceinline__ void clear() const {
    for (int w = 4 * static_cast<int>(threadIdx.x % 32); w < count; w += 128) {
      *reinterpret_cast<uint4*>(words + w) = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void set(int position) const {
    const int word = position / 32 - base;
    if (word >= 0 && word < count) atomicOr(&words[word], 1u << (position % 32));
  }
  __device__ __forceinline__ void write(std::uint32_t* row) const {
    __syncwarp();
    std::uint32_t* const to = row + base;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int whole = reinterpret_cast<std::uintptr_t>(to) % 16 == 0 ? count / 4 * 4 : 0;
    for (int w = 4 * lane; w < whole; w += 128) {
      *reinterpret_cast<uint4*>(to + w) = *reinterpret_cast<const uint4*>(words + w);
    }
    for (int w = whole + lane; w < count; w += 32) to[w] = words[w];
    __syncwarp();
  }
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

// One of the few that were set aside, and how many of them come before it: higher, or as high and earlier.
struct FewRank {
  std::uint32_t order;
  int position, before;
  bool later_equal;

  // Up to where scores equal to this one are chosen, if it is the last to be.
  __device__ __forceinline__ int cut(int visible) const { return later_equal ? position : visible - 1; }
};

template <class Shared>
__device__ __forceinline__ FewRank rank_among_few(const Shared& shared, int few, int i) {
  FewRank rank = {shared.few_order[i], shared.few_position[i], 0, false};
  for (int j = 0; j < few; ++j) {
    const bool equal = shared.few_order[j] == rank.order;
    rank.before += shared.few_order[j] > rank.order || (equal && shared.few_position[j] < rank.position);
    rank.later_equal = rank.later_equal || (equal && shared.few_position[j] > rank.position);
  }
  return rank;
}

// The k-th highest of the scores, 1 <= k < visible, of which there are at least k. Leaves the window's
// words, which lie over shared.bins, as the choice says.
template <class Source>
__device__ __forceinline__ RowChoice search(const Source& all, int k, int visible, Bound bound,
                                            WarpShared& shared, const MaskWindow& window) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (bound.low == -INFINITY || !(bound.scale > 0 && bound.scale < INFINITY)) {
    float low = INFINITY, high = -INFINITY;
    all.each([&](float score, int) { low = fminf(low, score), high = fmaxf(high, score); });
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      low = fminf(low, __shfl_xor_sync(kAll, low, step));
      high = fmaxf(high, __shfl_xor_sync(kAll, high, step));
    }
    bound = {low, high > low ? static_cast<float>(kListBins - 1) / (high - low) : 0.0f};
  }
  for (int i = lane; i < kListBins; i += 32) shared.bins[i] = 0;
  if (lane == 0) shared.few = 0;
  __syncwarp();
  all.each([&](float score, int) { atomicAdd(&shared.bins[bin_of(score, bound.low, bound.scale)], 1u); });
  const BinPlace place = find_list_bin(shared.bins, k);
  __syncwarp();
  window.clear();
  if (place.inside > kListFew) {
    const RowChoice choice = search_bits(all, k, visible);
    all.each([&](float score, int position) {
      if (chosen(score, position, choice)) window.set(position);
    });
    return choice;
  }
  sort_out(all, place, bound, shared, window);
  const int wanted = k - place.above;
  std::uint32_t order = 0;
  int cut = 0;
  bool mine = false;
  for (int i = lane; i < place.inside; i += 32) {
    const FewRank rank = rank_among_few(shared, place.inside, i);
    if (rank.before < wanted) window.set(rank.position);
    if (rank.before == wanted - 1) mine = true, order = rank.order, cut = rank.cut(visible);
  }
  const int owner = __ffs(static_cast<int>(__ballot_sync(kAll, mine))) - 1;
  return {from_order(__shfl_sync(kAll, order, owner)), __shfl_sync(kAll, cut, owner)};
}

// All words of a query's mask. window: the first ones, done already where some keys are chosen and some not.
template <class Source>
__device__ __forceinline__ void write_mask(const RowOutputs& out, const Source& all, int k, int visible,
                                           const RowChoice& choice, MaskWindow window, int row) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::uint32_t* const words = out.words + row * out.words_per_query;
  const int used = k == 0 ? 0 : (visible + 31) / 32;
  if (k == visible) {
    for (int w = lane; w < used; w += 32) {
      const int left = visible - 32 * w;
      words[w] = left >= 32 ? kAll : (1u << left) - 1;
    }
  } else {
    while (window.base < used) {
      window.write(words);
      window.base += window.count;
      window.count = min(window.count, used - window.base);
      if (window.base >= used) break;
      window.clear();
      all.each([&](float score, int position) {
        if (chosen(score, position, choice)) window.set(position);
      });
    }
  }
  for (long long w = used + lane; w < out.words_per_query; w += 32) words[w] = 0;
}

}  // namespace gsa::cuda::selecting
