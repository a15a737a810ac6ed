// Budget, exact threshold and mask of one query by two to eight warps that walk over its stored scores once.
//
// They know k before they read a score: the sums behind the variance come with the scores. A sample of the
// row says between which two scores the k-th lies, with a margin. The walk marks what lies above that range,
// which is chosen whatever follows, and sets aside the candidates within it, a few in a hundred. The k-th is
// found among these: a histogram in the order of representable numbers, then one of the bin that holds it,
// until few are left, which are ranked, or one value is. Where the sample was wrong, every score is a
// candidate; where a lane has more candidates than it has room for, their scores are read again. So a row
// takes at most ceil(32 / bits of the bins) histograms beyond the first, however its scores are distributed.
//
// The time of a row is mostly that of waiting: for memory, for one another, for the instruction before. So
// several rows share a multiprocessor, each with few warps and little shared memory. What is done for every
// score has no branches.
#pragma once

#include "kernels/select/cuda/row.cuh"

namespace gsa::cuda::selecting {

constexpr int kLaneScores = 32;  // of a lane in a round, in which a warp takes a segment of the moments
constexpr int kRowFew = 64;      // scores that are ranked one against the other
constexpr int kRowBits = 9;      // of the bins of a histogram
constexpr int kSampleBits = 10;
static_assert(32 * kLaneScores == kMomentSegment);

// Rows of up to kWarps * kRounds segments. Behind it lies the room for candidates, [room][kThreads] floats.
template <int kWarps_, int kRounds_>
struct alignas(16) StoredShared {
  static constexpr int kWarps = kWarps_, kRounds = kRounds_, kThreads = 32 * kWarps;
  static constexpr int kKeys = kWarps * kRounds * kMomentSegment;
  // One score of so many is in the sample that is taken: all that is stored, or every second one.
  static constexpr int kStep = kKeys <= 16384 ? kStoredSample : 2 * kStoredSample;
  static constexpr int kBlocks = 32 / kWarps;  // of a multiprocessor
  static constexpr int kMinRoom = 32;          // for a row of one segment, and for the sample's bins before
  static_assert(kMinRoom * kThreads >= 1 << kSampleBits);

  std::uint32_t bins[1 << kRowBits];
  std::uint32_t above[kRounds][kThreads];      // bit i: score i of the lane is higher than all candidates
  std::uint32_t candidate[kRounds][kThreads];  // it is one of them
  ScoreSums<double> segments[kRounds * kWarps];
  std::uint32_t low[kWarps], high[kWarps];
  int part[kWarps];
  std::uint32_t few_order[kRowFew];
  int few_position[kRowFew];
  int few;
  double variance;
  int k;
  int bin, before, inside;  // of the rank that was looked for
  int upper_bin;            // of the other one
  int higher, candidates;   // scores above the range that the sample gave, and within it
  std::uint32_t order;
  int cut;
};

// Standard deviations of the sample's rank by which the range goes beyond what is expected, and some more.
GSA_DEVICE float sample_margin(float expected) { return 4.0f * sqrtf(expected) + 4.0f; }

// A score above the range sets a bit; one within it another, and is set aside. By predicates: the compiler
// makes branches of it, which take twice as many instructions.
template <int kStride>
__device__ __forceinline__ void sort_out(float score, float low, float high, std::uint32_t bit,
                                         std::uint32_t& to, std::uint32_t& above, std::uint32_t& candidate) {
  asm volatile(
      "{\n"
      ".reg .pred over, in;\n"
      "setp.gt.f32 over, %3, %5;\n"
      "setp.ge.and.f32 in, %3, %4, !over;\n"
      "@over or.b32 %1, %1, %6;\n"
      "@in st.shared.f32 [%0], %3;\n"
      "@in add.u32 %0, %0, %7;\n"
      "@in or.b32 %2, %2, %6;\n"
      "}\n"
      : "+r"(to), "+r"(above), "+r"(candidate)
      : "f"(score), "f"(low), "f"(high), "r"(bit), "n"(kStride)
      : "memory");
}

// A segment's sums in double: hardly any row needs them.
static __device__ __noinline__ ScoreSums<double> segment_in_double(const float* scores, int first,
                                                                   int visible) {
  return segment_sums<double>(scores, first, visible, scores[0]);
}

template <class Shared>
class StoredRow {
  static constexpr int kWarps = Shared::kWarps, kRounds = Shared::kRounds, kThreads = Shared::kThreads;
  static constexpr int kStep = Shared::kStep;
  static constexpr int kSamples = kRounds * kLaneScores / kStep;  // of a lane
  static constexpr float kUnseen = __builtin_nanf("");            // neither above nor below anything

 public:
  // sums: of the row's segments. room: candidates of a lane, at least Shared::kMinRoom.
  __device__ __forceinline__ StoredRow(Shared& shared, const float* scores, const float* sample,
                                       const float2* sums, int visible, int room)
      : shared_(shared),
        aside_(reinterpret_cast<float*>(&shared + 1)),
        scores_(scores),
        sample_(sample),
        sums_(sums),
        visible_(visible),
        segments_((visible + kMomentSegment - 1) / kMomentSegment),
        room_(room),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        lane_(thread_ % 32) {}

  __device__ __forceinline__ void run(const Budget& budget, const RowOutputs& out, int row) {
    const bool decides = warp_ == kWarps - 1;
    float2 sums = {0, 0};
    if (decides && lane_ < segments_) sums = sums_[lane_];
    std::uint32_t sample[kSamples];
    load_sample(sample);
    clear<kRowBits>(shared_.bins);
    clear<kSampleBits>(sample_bins());
    if (thread_ == 0) shared_.few = shared_.higher = shared_.candidates = 0;
    if (decides) {
      if (lane_ < segments_) {
        shared_.segments[lane_] = {static_cast<double>(sums.x), static_cast<double>(sums.y)};
      }
      __syncwarp();
      if (lane_ == 0) decide(budget);
    }
    find_sample_range(sample);
    if (isinf(shared_.variance)) {  // squares that leave float's range, or scores that are infinite
      __syncthreads();
      for (int s = warp_; s < segments_; s += kWarps) {
        const auto exact = segment_in_double(scores_, s * kMomentSegment, visible_);
        if (lane_ == 0) shared_.segments[s] = exact;
      }
      __syncthreads();
      if (thread_ == 0) decide(budget);
      __syncthreads();
    }
    const float nan = __int_as_float(0x7fc00000);
    const int k = shared_.k;
    int histograms = 0;
    RowChoice choice = {nan, visible_ - 1};
    if (k == visible_) {
      choice.threshold = -INFINITY;
    } else if (k > 0) {
      histograms = search(k, sample);
      choice = {from_order(shared_.order), shared_.cut};
    }
    if (thread_ == 0) {
      write_row(out, row, k, k == 0 ? nan : static_cast<float>(shared_.variance), choice);
      count_work(out.work, {.rows = 1, .histograms = static_cast<unsigned>(histograms)});
    }
    if (out.words == nullptr) return;
    std::uint32_t* const words = out.words + row * out.words_per_query;
    if (k == visible_ || k == 0) {
      for (long long w = thread_; w < out.words_per_query; w += kThreads) {
        const long long left = k - 32 * w;
        words[w] = left >= 32 ? ~0u : left > 0 ? (1u << left) - 1 : 0u;
      }
      return;
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if (segment(r) >= segments_) break;
      const int w = 32 * segment(r) + word_of_lane();
      const std::uint32_t word = transposed(shared_.above[r][thread_]);
      if (w < out.words_per_query) words[w] = word;
    }
    for (long long w = 32 * segments_ + thread_; w < out.words_per_query; w += kThreads) words[w] = 0;
  }

 private:
  __device__ __forceinline__ int segment(int round) const { return round * kWarps + warp_; }
  // Of score i of this lane in a round: four in a row, 32 lanes side by side.
  __device__ __forceinline__ int position(int round, int i) const {
    return segment(round) * kMomentSegment + i / 4 * 128 + 4 * lane_ + i % 4;
  }
  // The bit of a position in `above`.
  __device__ __forceinline__ void choose(int position) {
    const int segment = position / kMomentSegment, at = position % kMomentSegment;
    atomicOr(&shared_.above[segment / kWarps][32 * (segment % kWarps) + at % 128 / 4],
             1u << (at / 128 * 4 + at % 4));
  }

  // Bits of score i in lane l become bits of positions 32 w to 32 w + 31 of the segment, w = word_of_lane():
  // a nibble is four positions in a row, so eight lanes transpose eight nibbles each.
  __device__ __forceinline__ int word_of_lane() const { return lane_ % 8 * 4 + lane_ / 8; }
  __device__ __forceinline__ std::uint32_t transposed(std::uint32_t bits) const {
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
      const std::uint32_t lower = step == 4 ? 0x0000ffffu : step == 2 ? 0x00ff00ffu : 0x0f0f0f0fu;
      const std::uint32_t other = __shfl_xor_sync(~0u, bits, step);
      bits = (lane_ & step) != 0 ? (bits & ~lower) | (other & ~lower) >> 4 * step
                                 : (bits & lower) | (other & lower) << 4 * step;
    }
    return bits;
  }

  __device__ __forceinline__ std::uint32_t* sample_bins() const {
    return reinterpret_cast<std::uint32_t*>(aside_);
  }
  template <int kBits>
  __device__ __forceinline__ void clear(std::uint32_t* bins) {
#pragma unroll
    for (int i = 4 * thread_; i < 1 << kBits; i += 4 * kThreads) {
      *reinterpret_cast<uint4*>(bins + i) = make_uint4(0, 0, 0, 0);
    }
  }

  // The order of scores in the sample; 0, which no score has, where there is none.
  __device__ __forceinline__ void load_sample(std::uint32_t (&sample)[kSamples]) const {
    constexpr int kEach = kStep == kStoredSample ? 4 : 2;  // of four that are read
    float4 four[kSamples / kEach];
#pragma unroll
    for (int i = 0; i < kSamples / kEach; ++i) {
      const int at = 4 * (thread_ + i * kThreads);
      if (sample_position(at) < visible_) four[i] = *reinterpret_cast<const float4*>(sample_ + at);
    }
#pragma unroll
    for (int i = 0; i < kSamples / kEach; ++i) {
      const float score[4] = {four[i].x, four[i].y, four[i].z, four[i].w};
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const int j = 4 / kEach * e;
        const bool seen = sample_position(4 * (thread_ + i * kThreads) + j) < visible_;
        sample[kEach * i + e] = seen && !isnan(score[j]) ? order_of(score[j]) : 0u;
      }
    }
  }

  struct Range {  // of orders, both ends included
    std::uint32_t low = 0, high = ~0u;
  };

  // The range over all threads from each one's own. What a thread wrote to shared memory before is there for
  // all after it.
  __device__ __forceinline__ Range join(Range range) {
    range.low = __reduce_min_sync(~0u, range.low), range.high = __reduce_max_sync(~0u, range.high);
    if (lane_ == 0) shared_.low[warp_] = range.low, shared_.high[warp_] = range.high;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      range.low = min(range.low, shared_.low[w]), range.high = max(range.high, shared_.high[w]);
    }
    return range;
  }

  __device__ __forceinline__ void find_sample_range(const std::uint32_t (&sample)[kSamples]) {
    Range range = {~0u, 0};
#pragma unroll
    for (int i = 0; i < kSamples; ++i) {
      range.low = min(range.low, sample[i] - 1);  // 0 becomes the largest
      range.high = max(range.high, sample[i]);
    }
    range = join(range);
    sampled_ = {range.low + 1, range.high};
  }

  // Variance and k of the row from its segments, by one thread. The variance is infinite where it has to be
  // taken again in double, or where it still is; k is 0 where a score is not finite.
  __device__ __forceinline__ void decide(const Budget& budget) {
    ScoreSums<double> row;
#pragma unroll 1
    for (int i = 0; i < segments_; ++i) add_segment(row, shared_.segments[i]);
    double variance = variance_of(row, visible_);
    if (isnan(row.square)) {
      variance = row.square;
    } else if (!isfinite(variance)) {
      variance = static_cast<double>(INFINITY);
    }
    shared_.k = isfinite(variance) ? budget_for(budget, variance, visible_) : 0;
    shared_.variance = variance;
  }

  template <int kBits>
  static __device__ __forceinline__ int shift_of(const Range& range) {
    return max(0, 32 - __clz(static_cast<int>(range.high - range.low)) - kBits);
  }
  // The part of a range that falls into a bin.
  static __device__ __forceinline__ Range part_of(const Range& range, int bin, int shift) {
    const std::uint32_t low = range.low + (static_cast<std::uint32_t>(bin) << shift);
    return {low, low + min(range.high - low, (1u << shift) - 1)};
  }

  // Where the sample says that the k-th largest lies; from 0, to ~0 where it does not bound it.
  __device__ __forceinline__ Range range_of(int k, const std::uint32_t (&sample)[kSamples]) {
    const int shift = shift_of<kSampleBits>(sampled_);
#pragma unroll
    for (int i = 0; i < kSamples; ++i) {
      if (sample[i] != 0) atomicAdd(&sample_bins()[(sample[i] - sampled_.low) >> shift], 1u);
    }
    __syncthreads();
    const float expected = static_cast<float>(k) / kStep, margin = sample_margin(expected);
    const int upper = static_cast<int>(expected - margin);
    find_bins<kSampleBits>(sample_bins(), static_cast<int>(expected + margin), max(1, upper));
    Range range;
    if (shared_.bin >= 0 && shared_.bin == shared_.upper_bin && upper >= 1) {
      // Most of the sample's middle lies in one bin, as where scores are tied: how much of it do they span?
      const Range bin = part_of(sampled_, shared_.bin, shift);
      range = {~0u, 0};
#pragma unroll
      for (int i = 0; i < kSamples; ++i) {
        const bool in = sample[i] >= bin.low && sample[i] <= bin.high;
        range.low = min(range.low, in ? sample[i] : ~0u), range.high = max(range.high, in ? sample[i] : 0u);
      }
      return join(range);
    }
    if (shared_.bin >= 0) range.low = part_of(sampled_, shared_.bin, shift).low;
    if (upper >= 1 && shared_.upper_bin >= 0) {
      range.high = part_of(sampled_, shared_.upper_bin, shift).high;
      // Of -0, which is no score's order: compared as numbers, 0 is not above it.
      if (range.high == 0x7fffffffu) ++range.high;
    }
    return range;
  }

  // The scores of a round: kUnseen where the position is not visible.
  template <bool whole>
  __device__ __forceinline__ void load(int round, float (&score)[kLaneScores]) const {
#pragma unroll
    for (int i = 0; i < kLaneScores; i += 4) {
      const int s = position(round, i);
      if (whole || s + 3 < visible_) {
        const float4 four = *reinterpret_cast<const float4*>(scores_ + s);
        score[i] = four.x, score[i + 1] = four.y, score[i + 2] = four.z, score[i + 3] = four.w;
      } else {  // the row's end: nobody wrote beyond it
#pragma unroll
        for (int e = 0; e < 4; ++e) score[i + e] = s + e < visible_ ? scores_[s + e] : kUnseen;
      }
    }
  }

  // What a lane has when all its scores are sorted out.
  struct Sorted {
    std::uint32_t to;  // where the next candidate goes, in shared memory
    int higher = 0, candidates = 0;
    bool fits = true;  // all candidates were set aside
  };

  __device__ __forceinline__ void sort_out_round(int round, const float (&score)[kLaneScores], float low,
                                                 float high, std::uint32_t full, Sorted& sorted) {
    constexpr int kGroup = 8, kStride = 4 * kThreads;
    const std::uint32_t last = full - kGroup * kStride;
    std::uint32_t above = 0, candidate = 0;
#pragma unroll
    for (int i = 0; i < kLaneScores; ++i) {
      if (i % kGroup == 0 && sorted.to > last) {  // they are only marked from here on
        sorted.to = last;
        sorted.fits = false;
      }
      sort_out<kStride>(score[i], low, high, 1u << i, sorted.to, above, candidate);
    }
    shared_.above[round][thread_] = above;
    shared_.candidate[round][thread_] = candidate;
    sorted.higher += __popc(above), sorted.candidates += __popc(candidate);
  }

  // Sorts all scores out by a range: shared.higher and shared.candidates. False: some lane had no room. count:
  // what this lane has set aside.
  __device__ __forceinline__ bool sort_out_all(const Range& range, int& count) {
    const float low = range.low == 0 ? -INFINITY : from_order(range.low);
    const float high = range.high == ~0u ? INFINITY : from_order(range.high);
    const auto begin = static_cast<std::uint32_t>(__cvta_generic_to_shared(aside_ + thread_));
    const std::uint32_t full = begin + room_ * 4 * kThreads;
    const int whole = max(0, (visible_ / kMomentSegment - warp_ + kWarps - 1) / kWarps);  // rounds
    Sorted sorted = {begin};
    float score[kLaneScores];
#pragma unroll 1
    for (int r = 0; r < whole; ++r) {
      load<true>(r, score);
      sort_out_round(r, score, low, high, full, sorted);
    }
    if (segment(whole) < segments_) {
      load<false>(whole, score);
      sort_out_round(whole, score, low, high, full, sorted);
    }
    const int higher = __reduce_add_sync(~0u, sorted.higher);
    const int candidates = __reduce_add_sync(~0u, sorted.candidates);
    if (lane_ == 0) atomicAdd(&shared_.higher, higher), atomicAdd(&shared_.candidates, candidates);
    count = static_cast<int>(sorted.to - begin) / (4 * kThreads);
    return __syncthreads_and(sorted.fits) != 0;
  }

  // Every score is a candidate.
  __device__ __forceinline__ void mark_all() {
    for (int r = 0; r < kRounds && segment(r) < segments_; ++r) {
      std::uint32_t candidate = 0;
#pragma unroll
      for (int i = 0; i < kLaneScores; ++i) {
        candidate |= static_cast<std::uint32_t>(position(r, i) < visible_) << i;
      }
      shared_.above[r][thread_] = 0;
      shared_.candidate[r][thread_] = candidate;
    }
  }

  // Sets aside the candidates of one round, read again.
  __device__ __forceinline__ void reread(int round) {
    const std::uint32_t candidate = shared_.candidate[round][thread_];
    float score[kLaneScores];
    load<false>(round, score);
    float* to = aside_ + thread_;
#pragma unroll
    for (int i = 0; i < kLaneScores; ++i) {
      if ((candidate >> i & 1) == 0) continue;
      *to = score[i];
      to += kThreads;
    }
  }

  // visit(score, round, bit) for every candidate of this lane, then done(round). listed: they were all set
  // aside.
  template <class Visit, class Done>
  __device__ __forceinline__ void each_candidate(bool listed, Visit visit, Done done) {
    const float* next = aside_ + thread_;
#pragma unroll 1
    for (int r = 0; r < kRounds && segment(r) < segments_; ++r) {
      if (!listed) {
        reread(r);
        next = aside_ + thread_;
      }
      float ahead = *next;
      for (std::uint32_t bits = shared_.candidate[r][thread_]; bits != 0; bits &= bits - 1) {
        const float score = ahead;
        next += kThreads;
        ahead = *next;
        visit(score, r, bits & -bits);
      }
      done(r);
    }
  }

  // The k-th largest score, 1 <= k < visible: shared.order and shared.cut, as of a RowChoice, and what is
  // chosen in shared.above. How many histograms it took.
  __device__ __forceinline__ int search(int k, const std::uint32_t (&sample)[kSamples]) {
    Range range;  // of a row of one segment: everything, for which there is room
    if (segments_ > 1) range = range_of(k, sample);
    int count, histograms = 0;
    bool listed = sort_out_all(range, count);
    int wanted = k - shared_.higher;  // the wanted-th largest of the candidates within the range
    int inside = shared_.candidates;
    if (wanted < 1 || wanted > inside) {
      mark_all();
      listed = false;
      range = {};
      wanted = k, inside = visible_;
    }
    if (listed && (range.low == 0 || range.high == ~0u)) range = range_of_listed(count);
    while (range.low != range.high && inside > kRowFew) {
      if (histograms > 0) {
        clear<kRowBits>(shared_.bins);
        __syncthreads();
      }
      const std::uint32_t width = range.high - range.low;
      const int shift = shift_of<kRowBits>(range);
      const auto add = [&](float score) {
        const std::uint32_t above = order_of(score) - range.low;  // wraps around where it is less
        if (above <= width) atomicAdd(&shared_.bins[above >> shift], 1u);
      };
      if (listed) {
#pragma unroll 4
        for (int i = 0; i < count; ++i) add(aside_[i * kThreads + thread_]);
      } else {
        each_candidate(
            false, [&](float score, int, std::uint32_t) { add(score); }, [](int) {});
      }
      __syncthreads();
      find_bins<kRowBits>(shared_.bins, wanted, wanted);
      ++histograms;
      wanted -= shared_.before;
      inside = shared_.inside;
      range = part_of(range, shared_.bin, shift);
    }
    if (inside <= kRowFew) {
      choose_among_few(listed, range, wanted);
    } else {
      choose_among_equal(listed, inside == shared_.candidates && histograms == 0, range.low, wanted, inside);
    }
    return histograms;
  }

  __device__ __forceinline__ Range range_of_listed(int count) {
    Range range = {~0u, 0};
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const std::uint32_t order = order_of(aside_[i * kThreads + thread_]);
      range.low = min(range.low, order), range.high = max(range.high, order);
    }
    return join(range);
  }

  // The bin that holds the wanted-th largest, the scores before it and in it, and the bin of another rank; -1
  // where there are fewer scores.
  template <int kBits>
  __device__ __forceinline__ void find_bins(const std::uint32_t* bins, int wanted, int other) {
    constexpr int kEach = (1 << kBits) / kThreads;
    const int top = (1 << kBits) - 1 - thread_ * kEach;  // this thread's bins, downwards
    int each[kEach], mine = 0;
#pragma unroll
    for (int i = 0; i < kEach && kEach % 4 != 0; ++i) {
      each[i] = static_cast<int>(bins[top - i]);
      mine += each[i];
    }
#pragma unroll
    for (int i = 0; i < kEach && kEach % 4 == 0; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(&bins[top - i - 3]);
      each[i] = static_cast<int>(four.w), each[i + 1] = static_cast<int>(four.z);
      each[i + 2] = static_cast<int>(four.y), each[i + 3] = static_cast<int>(four.x);
      mine += each[i] + each[i + 1] + each[i + 2] + each[i + 3];
    }
    if (thread_ == 0) shared_.bin = shared_.upper_bin = -1;
    const int upto = sum_upto(mine), before = upto - mine;
    if (before < wanted && upto >= wanted) {
      int sum = before;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (sum < wanted && sum + each[i] >= wanted) {
          shared_.bin = top - i, shared_.before = sum, shared_.inside = each[i];
        }
        sum += each[i];
      }
    }
    if (before < other && upto >= other) {
      int sum = before;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (sum < other && sum + each[i] >= other) shared_.upper_bin = top - i;
        sum += each[i];
      }
    }
    __syncthreads();
  }

  // The sum of a number over this thread and those before it. All threads wait for each other in it.
  __device__ __forceinline__ int sum_upto(int mine) {
    int upto = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, upto, step);
      if (lane_ >= step) upto += other;
    }
    if (lane_ == 31) shared_.part[warp_] = upto;
    __syncthreads();
#pragma unroll
    for (int w = 0; w + 1 < kWarps; ++w) upto += w < warp_ ? shared_.part[w] : 0;
    return upto;
  }

  // Few candidates lie within a range: the first `wanted` of them are chosen, and all above it.
  __device__ __forceinline__ void choose_among_few(bool listed, const Range& range, int wanted) {
    const float low = from_order(range.low);
    std::uint32_t chosen = 0;
    each_candidate(
        listed,
        [&](float score, int round, std::uint32_t bit) {
          if (score < low) return;
          const std::uint32_t order = order_of(score);
          if (order > range.high) {
            chosen |= bit;
          } else {
            const int at = atomicAdd(&shared_.few, 1);
            shared_.few_order[at] = order;
            shared_.few_position[at] = position(round, __ffs(static_cast<int>(bit)) - 1);
          }
        },
        [&](int round) {
          shared_.above[round][thread_] |= chosen;
          chosen = 0;
        });
    __syncthreads();
    const int few = shared_.few;
    for (int i = thread_; i < few; i += kThreads) {
      const FewRank rank = rank_among_few(shared_, few, i);
      if (rank.before < wanted) choose(rank.position);
      if (rank.before == wanted - 1) {
        shared_.order = rank.order;
        shared_.cut = rank.cut(visible_);
      }
    }
    __syncthreads();
  }

  // Many candidates equal a value, `inside` of them (all: every candidate does): the first `wanted` are
  // chosen, and all above it.
  __device__ __forceinline__ void choose_among_equal(bool listed, bool all, std::uint32_t order, int wanted,
                                                     int inside) {
    std::uint32_t *const of_segment = shared_.bins, *const words = shared_.bins + 32;  // of one segment
    if (thread_ < 32) of_segment[thread_] = words[thread_] = 0;
    __syncthreads();
    if (!all) {  // afterwards all candidates do
      std::uint32_t higher = 0, equal = 0;
      each_candidate(
          listed,
          [&](float score, int, std::uint32_t bit) {
            const std::uint32_t x = order_of(score);
            if (x > order) higher |= bit;
            if (x == order) equal |= bit;
          },
          [&](int round) {
            shared_.above[round][thread_] |= higher;
            shared_.candidate[round][thread_] = equal;
            higher = equal = 0;
          });
    }
    for (int r = 0; r < kRounds && segment(r) < segments_; ++r) {
      const int count = __reduce_add_sync(~0u, __popc(shared_.candidate[r][thread_]));
      if (lane_ == 0) of_segment[segment(r)] = static_cast<std::uint32_t>(count);
    }
    __syncthreads();
    int last = 0, left = wanted;  // the left-th of segment `last` is the last that is chosen
    while (left > static_cast<int>(of_segment[last])) left -= static_cast<int>(of_segment[last++]);
    if (last % kWarps == warp_) words[word_of_lane()] = transposed(shared_.candidate[last / kWarps][thread_]);
    __syncthreads();
    if (thread_ == 0) {
      int word = 0;
      while (left > __popc(words[word])) left -= __popc(words[word++]);
      std::uint32_t bits = words[word];
      while (--left > 0) bits &= bits - 1;
      const int at = last * kMomentSegment + 32 * word + __ffs(static_cast<int>(bits)) - 1;
      shared_.order = order;
      shared_.cut = wanted == inside ? visible_ - 1 : at;
    }
    __syncthreads();
    const int cut = shared_.cut;
    for (int r = 0; r < kRounds && segment(r) <= cut / kMomentSegment; ++r) {
      std::uint32_t before = 0;
#pragma unroll
      for (int i = 0; i < kLaneScores; ++i) before |= static_cast<std::uint32_t>(position(r, i) <= cut) << i;
      shared_.above[r][thread_] |= shared_.candidate[r][thread_] & before;
    }
  }

  Shared& shared_;
  float* const aside_;
  const float* const scores_;
  const float* const sample_;
  const float2* const sums_;
  const int visible_, segments_, room_, thread_, warp_, lane_;
  Range sampled_;  // range of the sample
};

}  // namespace gsa::cuda::selecting
