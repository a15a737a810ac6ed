// Budget, exact threshold and mask of one query by one block that holds the row's scores in registers: they
// are read once, whatever the search needs. A warp holds one segment of 1,024 positions, a lane 32 of them:
// those whose sums are its part of the moments (scores/moments.cuh).
//
// The search is a radix search: a histogram of the scores between two of them, in the order of representable
// numbers, then one of the bin that holds the k-th, until few are left, which are ranked, or one value is. So
// there are at most ceil(32 / bits of the bins) of them, however the scores are distributed.
//
// Additions to histograms are what a row would cost: an instruction that adds takes its time however few
// lanes take part. In long rows a sample of about a thousand scores says first between which two the k-th
// lies, with a margin; each lane sets its scores of that range aside, and only those enter a histogram. Where
// the sample was wrong, all of them do.
//
// Instructions are what bounds these kernels (profile: docs/kernels/select.md), so what is done for every
// score has no branches.
#pragma once

#include "kernels/select/cuda/row.cuh"

namespace gsa::cuda::selecting {

constexpr int kHeldScores = 32;  // of a lane
constexpr int kHeldFew = 64;     // scores that are ranked one against the other

constexpr float kHeldMargin = 5.0f;  // standard deviations of a sample's rank
// Scores of a lane that are in the sample; 0: none is taken, rows are short.
constexpr int held_sample(int warps) { return warps <= 2 ? 0 : warps <= 8 ? 4 : 32 / warps; }

// Bins of a histogram: eight a thread, or fewer.
constexpr int held_bits(int warps) { return warps == 1 ? 8 : warps == 2 ? 9 : warps == 4 ? 10 : 11; }

template <int kWarps>
struct alignas(16) HeldShared {
  static constexpr bool kSampled = held_sample(kWarps) > 0;

  std::uint32_t bins[1 << held_bits(kWarps)];
  std::uint32_t sample_bins[kSampled ? 1 << held_bits(kWarps) : 4];
  std::uint32_t aside[kSampled ? kWarps : 1][kSampled ? kHeldScores : 1][32];  // orders
  ScoreSums<double> segments[kWarps];
  std::uint32_t low[kWarps], high[kWarps];  // of each warp's scores, in their order
  int part[kWarps];
  std::uint32_t few_order[kHeldFew];
  int few_position[kHeldFew];
  int few;
  double variance;
  int k;
  int bin, above, inside;
  int upper_bin;  // of the other rank that was looked for
  int higher;     // scores above the range that the sample gave
  std::uint32_t order;
  int cut;
};

// Where above <= width: stores the value, moves on by a row of 32, and sets a bit. By predicates: the
// compiler makes a branch of it, which takes twice as many instructions.
__device__ __forceinline__ void push_where(std::uint32_t above, std::uint32_t width, std::uint32_t value,
                                           std::uint32_t bit, std::uint32_t& to, std::uint32_t& bits) {
  asm volatile(
      "{\n"
      ".reg .pred in;\n"
      "setp.ls.u32 in, %2, %3;\n"
      "@in st.shared.u32 [%0], %4;\n"
      "@in add.u32 %0, %0, 128;\n"
      "@in or.b32 %1, %1, %5;\n"
      "}\n"
      : "+r"(to), "+r"(bits)
      : "r"(above), "r"(width), "r"(value), "r"(bit)
      : "memory");
}

// A segment's sums in double, from memory: hardly any row needs them.
static __device__ __noinline__ ScoreSums<double> careful_segment(const float* scores, int first,
                                                                 int visible) {
  return segment_sums<double>(scores, first, visible, scores[0]);
}

template <int kWarps>
class HeldRow {
  static constexpr int kThreads = 32 * kWarps, kBits = held_bits(kWarps), kBins = 1 << kBits;
  static constexpr int kSample = held_sample(kWarps);

 public:
  __device__ __forceinline__ HeldRow(HeldShared<kWarps>& shared, const float* scores, int visible)
      : shared_(shared),
        scores_(scores),
        visible_(visible),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        lane_(thread_ % 32),
        active_(warp_ * kMomentSegment < visible) {}

  __device__ __forceinline__ void run(const Budget& budget, const RowOutputs& out, int row) {
    clear(shared_.bins);
    if constexpr (kSample > 0) clear(shared_.sample_bins);
    if (thread_ == 0) shared_.few = 0, shared_.higher = 0;
    if ((warp_ + 1) * kMomentSegment <= visible_) {
      load<true>();
    } else {
      load<false>();
    }
    __syncthreads();
    find_range();
    if (thread_ == kThreads - 1) decide(budget);
    if constexpr (kSample > 0) add_to_bins<kHeldScores / kSample>(shared_.sample_bins, low_, high_);
    __syncthreads();
    if (isinf(shared_.variance)) {  // squares that leave float's range, or scores that are infinite
      __syncthreads();
      const auto segment = careful_segment(scores_, warp_ * kMomentSegment, visible_);
      if (lane_ == 0) shared_.segments[warp_] = segment;
      __syncthreads();
      if (thread_ == kThreads - 1) decide(budget);
      __syncthreads();
    }
    const float nan = __int_as_float(0x7fc00000);
    const int k = shared_.k;
    int histograms = 0, cut = -1;
    std::uint32_t order = ~0u;  // nothing is chosen
    RowChoice choice = {nan, visible_ - 1};
    if (k == visible_) {
      order = 0;  // everything visible is
      choice.threshold = -INFINITY;
    } else if (k > 0) {
      histograms = search(k);
      order = shared_.order, cut = shared_.cut;
      choice = {from_order(order), cut};
    }
    if (thread_ == 0) {
      write_row(out, row, k, k == 0 ? nan : static_cast<float>(shared_.variance), choice);
      count_work(out.work, {.rows = 1, .histograms = static_cast<unsigned>(histograms)});
    }
    if (out.words == nullptr) return;
    std::uint32_t* const words = out.words + row * out.words_per_query;
    std::uint32_t word = 0;
    if (active_) {
      word = cut >= visible_ - 1 ? segment_word([&](std::uint32_t x, int) { return x >= order; })
                                 : segment_word([&](std::uint32_t x, int position) {
                                     return x > order || (x == order && position <= cut);
                                   });
    }
    if (thread_ < out.words_per_query) words[thread_] = word;
    for (long long w = kThreads + thread_; w < out.words_per_query; w += kThreads) words[w] = 0;
  }

 private:
  // Of score i of this lane: chain lane % 4 of blocks lane / 4 and lane / 4 + 8 of the segment.
  __device__ __forceinline__ int position(int i) const {
    return warp_ * kMomentSegment + (i / 16 * 8 + lane_ / 4) * kMomentBlock + i % 16 / 2 * 8 +
           2 * (lane_ % 4) + i % 2;
  }

  __device__ __forceinline__ void clear(std::uint32_t (&bins)[kBins]) {
    for (int i = 4 * thread_; i < kBins; i += 4 * kThreads) {
      *reinterpret_cast<uint4*>(bins + i) = make_uint4(0, 0, 0, 0);
    }
  }

  // Scores of this warp's segment: their sums and range to shared memory, their orders to registers; the
  // order is 0, which no number has, where a position is not visible. whole: all are.
  template <bool whole>
  __device__ __forceinline__ void load() {
    float score[kHeldScores];
#pragma unroll
    for (int i = 0; i < kHeldScores; i += 2) {
      const int s = position(i);
      float2 pair = make_float2(0, 0);
      if (whole || s + 1 < visible_) {
        pair = *reinterpret_cast<const float2*>(scores_ + s);
      } else if (s < visible_) {  // the row's end: nobody wrote beyond it
        pair.x = scores_[s];
      }
      score[i] = pair.x, score[i + 1] = pair.y;
    }
    const float shift = scores_[0];
    ScoreSums<float> total;  // of chain lane % 4
    float low = INFINITY, high = -INFINITY;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ScoreSums<float> chain;
#pragma unroll
      for (int i = 16 * half; i < 16 * half + 16; ++i) {
        const bool seen = whole || position(i) < visible_;
        if (seen) {
          add_difference(chain, score[i], shift);
          low = fminf(low, score[i]);
          high = fmaxf(high, score[i]);
        }
        order_[i] = seen ? order_of(score[i]) : 0u;
      }
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        const ScoreSums<float> from = {__shfl_sync(~0u, chain.sum, 4 * b + lane_ % 4),
                                       __shfl_sync(~0u, chain.square, 4 * b + lane_ % 4)};
        add_sums(total, from);
      }
    }
    total = join_chains(total);
    const std::uint32_t lowest = __reduce_min_sync(~0u, order_of(low));
    const std::uint32_t highest = __reduce_max_sync(~0u, order_of(high));
    if (lane_ == 0) {
      shared_.segments[warp_] = {static_cast<double>(total.sum), static_cast<double>(total.square)};
      shared_.low[warp_] = lowest, shared_.high[warp_] = highest;
    }
  }

  // The row's range, from those of its segments.
  __device__ __forceinline__ void find_range() {
    const int segments = (visible_ + kMomentSegment - 1) / kMomentSegment;
    low_ = __reduce_min_sync(~0u, lane_ < segments ? shared_.low[lane_ % kWarps] : ~0u);
    high_ = __reduce_max_sync(~0u, lane_ < segments ? shared_.high[lane_ % kWarps] : 0u);
  }

  // Variance and k of the row from its segments, by one thread. The variance is infinite where it has to be
  // taken again with care, or where it still is; k is 0 where a score is not finite.
  __device__ __forceinline__ void decide(const Budget& budget) {
    const int segments = (visible_ + kMomentSegment - 1) / kMomentSegment;
    ScoreSums<double> row;
#pragma unroll 1
    for (int i = 0; i < segments; ++i) add_segment(row, shared_.segments[i]);
    double variance = variance_of(row, visible_);
    if (isnan(row.square)) {
      variance = row.square;
    } else if (!isfinite(variance)) {
      variance = static_cast<double>(INFINITY);
    }
    const bool sound = isfinite(variance) && isfinite(from_order(low_)) && isfinite(from_order(high_));
    shared_.k = sound ? budget_for(budget, variance, visible_) : 0;
    shared_.variance = variance;
  }

  static __device__ __forceinline__ int shift_of(std::uint32_t low, std::uint32_t high) {
    return max(0, 32 - __clz(static_cast<int>(high - low)) - kBits);
  }
  // Adds every step-th score of each lane that lies within [low, high] to a histogram.
  template <int step>
  __device__ __forceinline__ void add_to_bins(std::uint32_t (&bins)[kBins], std::uint32_t low,
                                              std::uint32_t high) {
    if (!active_) return;
    const std::uint32_t width = high - low;
    const int shift = shift_of(low, high);
#pragma unroll
    for (int i = 0; i < kHeldScores; i += step) {
      const std::uint32_t above = order_[i] - low;  // wraps around where it is less
      if (above <= width) atomicAdd(&bins[above >> shift], 1u);
    }
  }

  // Scores within a range that a lane has set aside, and which of its scores they are, by bits.
  struct Aside {
    std::uint32_t which = 0;
    std::uint32_t low = 0, high = 0;
  };

  // Sets aside what lies where a sample says that the k-th largest is; counts what lies above. False: it has
  // to be all scores.
  __device__ __forceinline__ bool set_aside(int k, Aside& mine) {
    const float part = static_cast<float>(kSample) / kHeldScores;
    const float expected = part * static_cast<float>(k), margin = kHeldMargin * sqrtf(expected) + 4.0f;
    const bool bounded = expected - margin >= 1.0f;
    find_bins(shared_.sample_bins, static_cast<int>(expected + margin),
              bounded ? static_cast<int>(expected - margin) : 1);
    if (shared_.bin < 0 || shared_.upper_bin < 0) return false;  // fewer scores than that
    const int shift = shift_of(low_, high_);
    mine.low = low_ + (static_cast<std::uint32_t>(shared_.bin) << shift);
    mine.high = high_;
    if (bounded) {
      mine.high = min(high_, low_ + ((static_cast<std::uint32_t>(shared_.upper_bin) + 1) << shift) - 1);
    }
    int higher = 0;
    if (active_) {
      const std::uint32_t width = mine.high - mine.low;
      auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(&shared_.aside[warp_][0][lane_]));
#pragma unroll
      for (int i = 0; i < kHeldScores; ++i) {
        higher += order_[i] > mine.high;
        push_where(order_[i] - mine.low, width, order_[i], 1u << i, to, mine.which);
      }
      higher = __reduce_add_sync(~0u, higher);
      if (lane_ == 0 && higher > 0) atomicAdd(&shared_.higher, higher);
    }
    return true;
  }

  // The k-th largest score, 1 <= k < visible: shared.order and shared.cut, as of a RowChoice. How many
  // histograms it took.
  __device__ __forceinline__ int search(int k) {
    std::uint32_t low = low_, high = high_;
    int wanted = k;  // the wanted-th largest of the scores within [low, high]
    int inside = visible_, histograms = 0;
    if constexpr (kSample > 0) {
      if (low != high && inside > kHeldFew) {
        Aside aside;
        if (set_aside(k, aside)) {
          const int shift = shift_of(aside.low, aside.high);
          const int count = __popc(aside.which);
          for (int i = 0; i < count; ++i) {
            atomicAdd(&shared_.bins[(shared_.aside[warp_][i][lane_] - aside.low) >> shift], 1u);
          }
          __syncthreads();
          wanted = k - shared_.higher;
          find_bins(shared_.bins, wanted, wanted);
          ++histograms;
          if (wanted > 0 && shared_.bin >= 0) {
            wanted -= shared_.above;
            inside = shared_.inside;
            low = aside.low + (static_cast<std::uint32_t>(shared_.bin) << shift);
            high = min(aside.high, low + ((1u << shift) - 1));
            if (inside <= kHeldFew) {
              const std::uint32_t width = high - low;
              std::uint32_t which = aside.which;
              for (int i = 0; i < count; ++i, which &= which - 1) {
                const std::uint32_t order = shared_.aside[warp_][i][lane_];
                if (order - low <= width) add_to_few(order, __ffs(static_cast<int>(which)) - 1);
              }
              rank_few(wanted);
              return histograms;
            }
          } else {
            wanted = k;
          }
        }
        if (low != high && inside > kHeldFew) {
          __syncthreads();
          clear(shared_.bins);
          __syncthreads();
        }
      }
    }
    while (low != high && inside > kHeldFew) {
      const int shift = shift_of(low, high);
      add_to_bins<1>(shared_.bins, low, high);
      __syncthreads();
      find_bins(shared_.bins, wanted, wanted);
      ++histograms;
      wanted -= shared_.above;
      inside = shared_.inside;
      low += static_cast<std::uint32_t>(shared_.bin) << shift;
      high = min(high, low + ((1u << shift) - 1));
      __syncthreads();
      clear(shared_.bins);
      __syncthreads();
    }
    if (inside <= kHeldFew) {
      if (active_) {
        const std::uint32_t width = high - low;
#pragma unroll
        for (int i = 0; i < kHeldScores; ++i) {
          if (order_[i] - low <= width) add_to_few(order_[i], i);
        }
      }
      rank_few(wanted);
    } else {
      find_equal(low, wanted, inside);
    }
    return histograms;
  }

  // The bin that holds the wanted-th largest, the scores above it and in it, and the bin of another rank; -1
  // where there are fewer scores.
  __device__ __forceinline__ void find_bins(const std::uint32_t (&bins)[kBins], int wanted, int other) {
    constexpr int kEach = kBins / kThreads;
    static_assert(kEach * kThreads == kBins);
    const int top = kBins - 1 - thread_ * kEach;  // this thread's bins, downwards
    int mine = 0;
    if constexpr (kEach % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kEach; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(&bins[top - i - 3]);
        mine += static_cast<int>(four.x + four.y + four.z + four.w);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) mine += static_cast<int>(bins[top - i]);
    }
    int upto = mine;  // inclusive sum over threads
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int sum = __shfl_up_sync(~0u, upto, step);
      if (lane_ >= step) upto += sum;
    }
    if (thread_ == 0) shared_.bin = shared_.upper_bin = -1;
    if (lane_ == 31) shared_.part[warp_] = upto;
    __syncthreads();
    upto += __reduce_add_sync(~0u, lane_ < warp_ ? shared_.part[lane_ % kWarps] : 0);
    const int before = upto - mine;
    if (before < wanted && upto >= wanted) {
      int bin = top, above = before;
      while (above + static_cast<int>(bins[bin]) < wanted) {
        above += static_cast<int>(bins[bin--]);
      }
      shared_.bin = bin;
      shared_.above = above;
      shared_.inside = static_cast<int>(bins[bin]);
    }
    if (before < other && upto >= other) {
      int bin = top, above = before;
      while (above + static_cast<int>(bins[bin]) < other) {
        above += static_cast<int>(bins[bin--]);
      }
      shared_.upper_bin = bin;
    }
    __syncthreads();
  }

  // Score i of this lane.
  __device__ __forceinline__ void add_to_few(std::uint32_t order, int i) {
    const int at = atomicAdd(&shared_.few, 1);
    shared_.few_order[at] = order;
    shared_.few_position[at] = position(i);
  }

  // The wanted-th largest of the few scores that were added.
  __device__ __forceinline__ void rank_few(int wanted) {
    __syncthreads();
    const int few = shared_.few;
    for (int i = thread_; i < few; i += kThreads) {
      const FewRank rank = rank_among_few(shared_, few, i);
      if (rank.before == wanted - 1) {
        shared_.order = rank.order;
        shared_.cut = rank.cut(visible_);
      }
    }
    __syncthreads();
  }

  // Many equal scores, `inside` of them, of which the first `wanted` are taken.
  __device__ __forceinline__ void find_equal(std::uint32_t order, int wanted, int inside) {
    const std::uint32_t word = active_ ? segment_word([&](std::uint32_t x, int) { return x == order; }) : 0u;
    int upto = __popc(word);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, upto, step);
      if (lane_ >= step) upto += other;
    }
    if (lane_ == 31) shared_.part[warp_] = upto;
    __syncthreads();
    upto += __reduce_add_sync(~0u, lane_ < warp_ ? shared_.part[lane_ % kWarps] : 0);
    const int before = upto - __popc(word);
    if (before < wanted && upto >= wanted) {
      std::uint32_t bits = word;
      for (int left = wanted - before; left > 1; --left) bits &= bits - 1;
      shared_.order = order;
      const int last = 32 * thread_ + __ffs(static_cast<int>(bits)) - 1;
      shared_.cut = wanted == inside ? visible_ - 1 : last;
    }
    __syncthreads();
  }

  // Word `lane` of the 32 that the segment has in a mask: the bits of positions where test(order, position).
  template <class Test>
  __device__ __forceinline__ std::uint32_t segment_word(Test test) const {
    std::uint32_t word[4];  // of this lane's blocks, two each
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      std::uint32_t bits = 0;
#pragma unroll
      for (int i = 8 * w; i < 8 * w + 8; ++i) {
        const bool in = test(order_[i], position(i));
        bits |= static_cast<std::uint32_t>(in) << (i % 8 / 2 * 8 + i % 2);
      }
      bits <<= 2 * (lane_ % 4);
      bits |= __shfl_xor_sync(~0u, bits, 1);
      bits |= __shfl_xor_sync(~0u, bits, 2);
      word[w] = bits;
    }
    // Lane 4 b + w has word w of block b: that is word 16 (w / 2) + 2 b + w % 2 of the segment.
    const int w = lane_ % 4;
    const std::uint32_t mine = w == 0 ? word[0] : w == 1 ? word[1] : w == 2 ? word[2] : word[3];
    return __shfl_sync(~0u, mine, lane_ % 16 / 2 * 4 + lane_ / 16 * 2 + lane_ % 2);
  }

  HeldShared<kWarps>& shared_;
  const float* const scores_;
  const int visible_, thread_, warp_, lane_;
  const bool active_;                 // some of the warp's positions are visible
  std::uint32_t low_ = 0, high_ = 0;  // of the row
  std::uint32_t order_[kHeldScores];
};

}  // namespace gsa::cuda::selecting
