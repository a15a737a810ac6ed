// Budget, exact threshold and mask of one query whose scores are stored, by one block.
#pragma once

#include <cstdint>

#include "kernels/scores/budget.cuh"
#include "kernels/scores/moments.cuh"
#include "kernels/scores/order.cuh"
#include "kernels/select/cuda/kernels.h"

namespace gsa::cuda::selecting {

constexpr int kBins = 2048;
constexpr int kFew = 1024;  // scores that are ranked one against the other
constexpr int kRowSegments = 256;

struct RowShared {
  union {
    std::uint32_t bins[kBins];
    double segments[kRowSegments][2];
  };
  std::uint32_t few_order[kFew];
  int few_position[kFew];
  float low[32], high[32];  // of each warp
  int part[32];
  double variance;
  int decided;
  int found[3];
  int few;
};
static_assert(sizeof(RowShared) == kRowSharedBytes);

struct RowChoice {
  float threshold;
  int tie_cut;
};

__device__ __forceinline__ bool chosen(float score, int position, const RowChoice& choice) {
  return score > choice.threshold || (score == choice.threshold && position <= choice.tie_cut);
}

// Results of a query other than its mask; by one thread.
__device__ __forceinline__ void write_row(const RowOutputs& out, int row, int k, float variance,
                                          const RowChoice& choice) {
  if (out.k_t != nullptr) out.k_t[row] = k;
  if (out.variance != nullptr) out.variance[row] = variance;
  if (out.threshold != nullptr) out.threshold[row] = choice.threshold;
  if (out.tie_cut != nullptr) out.tie_cut[row] = choice.tie_cut;
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

__device__ __forceinline__ void count_work(SelectWork* to, const SelectWork& more) {
  if (to == nullptr) return;
  const auto add = [](unsigned long long& sum, unsigned long long x) {
    if (x > 0) atomicAdd(&sum, x);
  };
  add(to->rows, more.rows), add(to->histograms, more.histograms), add(to->entries, more.entries);
  add(to->refined, more.refined), add(to->fallback_rows, more.fallback_rows);
}

template <int kThreads>
class RowSelection {
  static constexpr int kWarps = kThreads / 32;
  static_assert(kBins % kThreads == 0);

 public:
  __device__ __forceinline__ RowSelection(RowShared& shared, const float* scores, int visible)
      : shared_(shared),
        scores_(scores),
        visible_(visible),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        lane_(thread_ % 32) {}

  __device__ void run(const Budget& budget, const RowOutputs& out, int row) {
    if (!moments<float>()) moments<double>();
    const float nan = __int_as_float(0x7fc00000);
    const double variance = shared_.variance;
    RowChoice choice = {-INFINITY, visible_ - 1};
    int k = 0;
    if (!isfinite(variance) || !isfinite(low_) || !isfinite(high_)) {
      choice.threshold = nan;
    } else {
      k = budget_for(budget, variance, visible_);
      if (k < visible_) choice = search(k);
    }
    if (thread_ == 0) {
      write_row(out, row, k, k == 0 ? nan : static_cast<float>(variance), choice);
      count_work(out.work, {.rows = 1, .histograms = static_cast<unsigned>(histograms_)});
    }
    if (out.words != nullptr) write_mask(out.words + row * out.words_per_query, out.words_per_query, choice);
    __syncthreads();
  }

 private:
  // visit(score, position) for every score, each by one thread; reads are under way eight at a time.
  template <class Visit>
  __device__ __forceinline__ void each(Visit visit) const {
    constexpr int kAtOnce = 8;
    for (int base = thread_; base < visible_; base += kAtOnce * kThreads) {
      float score[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (base + i * kThreads < visible_) score[i] = scores_[base + i * kThreads];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (base + i * kThreads < visible_) visit(score[i], base + i * kThreads);
      }
    }
  }

  // Variance and range of the scores. False: squares too large for the type.
  template <typename Real>
  __device__ bool moments() {
    const int segments = (visible_ + kMomentSegment - 1) / kMomentSegment;
    const float shift = scores_[0];
    float low = INFINITY, high = -INFINITY;
    ScoreSums<double> row;
    for (int base = 0; base < segments; base += kRowSegments) {
      const int count = min(kRowSegments, segments - base);
      for (int i = warp_; i < count; i += kWarps) {
        const ScoreSums<Real> sums =
            segment_sums<Real>(scores_, (base + i) * kMomentSegment, visible_, shift, [&](float score) {
              low = fminf(low, score);
              high = fmaxf(high, score);
            });
        if (lane_ == 0) shared_.segments[i][0] = sums.sum, shared_.segments[i][1] = sums.square;
      }
      __syncthreads();
      if (thread_ == 0) {
        for (int i = 0; i < count; ++i) {
          add_segment(row, ScoreSums<double>{shared_.segments[i][0], shared_.segments[i][1]});
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      low = fminf(low, __shfl_xor_sync(0xffffffffu, low, step));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, step));
    }
    if (lane_ == 0) shared_.low[warp_] = low, shared_.high[warp_] = high;
    if (thread_ == 0) {
      // NaN among the scores shows in the sum of squares; minima and maxima drop it.
      const double variance = variance_of(row, visible_);
      shared_.variance = isnan(row.square) ? row.square : variance;
      shared_.decided = isnan(row.square) || isfinite(variance);
    }
    __syncthreads();
    low_ = shared_.low[0], high_ = shared_.high[0];
    for (int w = 1; w < kWarps; ++w) {
      low_ = fminf(low_, shared_.low[w]);
      high_ = fmaxf(high_, shared_.high[w]);
    }
    return sizeof(Real) == 8 || shared_.decided != 0;
  }

  // The k-th largest score, k < visible, and how many of its equals are taken.
  __device__ RowChoice search(int k) {
    std::uint32_t low = order_of(low_), high = order_of(high_);
    int wanted = k;  // the wanted-th largest of the scores within [low, high]
    int inside = visible_;
    while (low != high) {
      ++histograms_;
      const int shift = max(0, 32 - __clz(high - low) - 11);
      for (int i = thread_; i < kBins; i += kThreads) shared_.bins[i] = 0;
      __syncthreads();
      each([&](float score, int) {
        const std::uint32_t order = order_of(score);
        if (order >= low && order <= high) atomicAdd(&shared_.bins[(order - low) >> shift], 1u);
      });
      __syncthreads();
      find_bin(wanted);
      const int bin = shared_.found[0];
      wanted -= shared_.found[1];
      inside = shared_.found[2];
      low += static_cast<std::uint32_t>(bin) << shift;
      high = min(high, low + ((1u << shift) - 1));
      if (inside <= kFew) return rank_few(low, high, wanted);
      __syncthreads();
    }
    if (wanted == inside) return {from_order(low), visible_ - 1};
    return {from_order(low), position_of_equal(low, wanted)};
  }

  // The bin that holds the wanted-th largest: found = {bin, scores above it, scores in it}.
  __device__ void find_bin(int wanted) {
    constexpr int kEach = kBins / kThreads;
    const int top = kBins - 1 - thread_ * kEach;  // this thread's bins, downwards
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) mine += static_cast<int>(shared_.bins[top - i]);
    int upto = mine;  // inclusive sum over threads
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, upto, step);
      if (lane_ >= step) upto += other;
    }
    if (lane_ == 31) shared_.part[warp_] = upto;
    __syncthreads();
    for (int w = 0; w < warp_; ++w) upto += shared_.part[w];
    int above = upto - mine;
    if (above < wanted && upto >= wanted) {
      int bin = top;
      while (above + static_cast<int>(shared_.bins[bin]) < wanted)
        above += static_cast<int>(shared_.bins[bin--]);
      shared_.found[0] = bin;
      shared_.found[1] = above;
      shared_.found[2] = static_cast<int>(shared_.bins[bin]);
    }
    if (thread_ == 0) shared_.few = 0;
    __syncthreads();
  }

  __device__ RowChoice rank_few(std::uint32_t low, std::uint32_t high, int wanted) {
    each([&](float score, int position) {
      const std::uint32_t order = order_of(score);
      if (order < low || order > high) return;
      const int at = atomicAdd(&shared_.few, 1);
      shared_.few_order[at] = order;
      shared_.few_position[at] = position;
    });
    __syncthreads();
    const int count = shared_.few;
    for (int i = thread_; i < count; i += kThreads) {
      const FewRank rank = rank_among_few(shared_, count, i);
      if (rank.before == wanted - 1) {
        shared_.found[0] = static_cast<int>(rank.order);
        shared_.found[1] = rank.cut(visible_);
      }
    }
    __syncthreads();
    return {from_order(static_cast<std::uint32_t>(shared_.found[0])), shared_.found[1]};
  }

  // The position of the wanted-th score, in order of position, that equals a value. There are more.
  __device__ int position_of_equal(std::uint32_t order, int wanted) {
    const int each = (visible_ + kThreads - 1) / kThreads * 32;  // positions of a warp
    const int begin = min(visible_, warp_ * each), end = min(visible_, begin + each);
    int count = 0;
    for (int s = begin + lane_; s < end; s += 32) count += order_of(scores_[s]) == order;
    count = __reduce_add_sync(0xffffffffu, count);
    __syncthreads();
    if (lane_ == 0) shared_.part[warp_] = count;
    __syncthreads();
    int before = 0;
    for (int w = 0; w < warp_; ++w) before += shared_.part[w];
    if (before < wanted && before + count >= wanted) {
      int left = wanted - before;
      for (int s = begin;; s += 32) {
        const bool equal = s + lane_ < end && order_of(scores_[s + lane_]) == order;
        std::uint32_t bits = __ballot_sync(0xffffffffu, equal);
        if (__popc(bits) >= left) {
          while (--left > 0) bits &= bits - 1;
          if (lane_ == 0) shared_.found[0] = s + __ffs(static_cast<int>(bits)) - 1;
          break;
        }
        left -= __popc(bits);
      }
    }
    __syncthreads();
    return shared_.found[0];
  }

  // Every word of the row.
  __device__ void write_mask(std::uint32_t* words, long long count, const RowChoice& choice) const {
    for (long long base = 32 * warp_; base < count; base += kThreads) {
      std::uint32_t mine = 0;
      if (32 * base < visible_) {
        for (int part = 0; part < 32; part += 8) {
          const int first = static_cast<int>(32 * (base + part)) + lane_;
          float score[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            score[i] = first < visible_ - 32 * i ? scores_[first + 32 * i] : __int_as_float(0x7fffffff);
          }
#pragma unroll
          for (int i = 0; i < 8; ++i) {  // NaN is never chosen
            const std::uint32_t word = __ballot_sync(0xffffffffu, chosen(score[i], first + 32 * i, choice));
            if (part + i == lane_) mine = word;
          }
        }
      }
      if (base + lane_ < count) words[base + lane_] = mine;
    }
  }

  RowShared& shared_;
  const float* scores_;
  const int visible_, thread_, warp_, lane_;
  float low_ = 0, high_ = 0;
  int histograms_ = 0;
};

}  // namespace gsa::cuda::selecting
