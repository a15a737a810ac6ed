// The pick stage: from a row of scores to the list of where its selected keys lie.
//
// A cluster of blocks shares a row (one block alone before sm_90), each block a range of positions. k_t
// follows from the sums of the segments, which every warp adds up for itself. Then all warps filter: the
// moments suggest a bound that about four times k_t scores reach, and only those, in order, go to shared
// memory. A histogram of them finds the bucket where the count passes k_t, another one the part of that
// bucket, until few scores are left, which are ranked one by one. Where the bound was too high, or too many
// scores reach it, or too many are equal, a radix search over all scores between their extremes, then over
// the positions of equal ones, takes its place: at most six histograms. Both ways find the same last key: the
// score and position that exactly k_t keys reach or beat. Where other layers share the selection, positions are
// written beside the list.
//
// With one row there is little to do and much to wait for: code is kept short (instructions come from memory
// too) and barriers few.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/common/mma.cuh"
#include "kernels/decode/cuda/device.cuh"
#include "kernels/scores/budget.cuh"
#include "kernels/scores/moments.cuh"
#include "kernels/scores/order.cuh"

namespace gsa::cuda::decoding {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kRound = kThreads;  // positions that a block visits at once
constexpr int kBucketBits = 9;
constexpr int kBuckets = 1 << kBucketBits;
static_assert(kBuckets == kThreads);
constexpr int kFew = kThreads;     // candidates that are ranked one by one
constexpr int kTooMany = 1 << 20;  // more than kFew; a block's warps together stay far below 2^31
// Scores that a block keeps in shared memory: on Hopper, where a row has eight blocks, as many as a row of
// 128K keys has in one.
template <int cluster>
constexpr int kKept = cluster > 1 ? 16384 : 8192;
constexpr int kAhead = 32;  // rounds whose scores are loaded together
constexpr unsigned kAll = 0xffffffffu;

struct PickParams {
  Cache cache;
  Budget budget;
  Scratch scratch;
  std::int32_t* k_t;
  std::int32_t* positions;  // [rows, position_stride], null where nobody shares them
  int position_stride;
  DecodeWork* work;
};

// A score and its position in one number: more is better, and no two are equal.
using Rank = unsigned long long;
__device__ __forceinline__ Rank rank_of(float score, int position) {
  return static_cast<Rank>(order_of(score)) << 32 | (~static_cast<std::uint32_t>(position));
}

struct Shared {
  int histogram[kBuckets];
  Rank candidates[kFew];  // of this block
  Rank gathered[kFew];    // of all blocks
  unsigned long long warp_sums[kWarps];
  ScoreSums<double> sums;  // of the row's scores relative to the first, where they are added in their order
  int bad;                 // some score is not finite
  int candidate_count;
  int total;                      // keys that this block selects
  int bucket, above, inside;      // where the count passes k
  int before;                     // of those above, how many are of blocks before this one
  int inside_of[kHopperCluster];  // of the bucket, how many are of each block
  Rank last;
};

template <int cluster>
__device__ __forceinline__ int block_rank() {
  return cluster == 1 ? 0 : static_cast<int>(blockIdx.x);
}
// All threads of all blocks of the row.
template <int cluster>
__device__ __forceinline__ void row_arrive() {
#if __CUDA_ARCH__ >= 900
  if constexpr (cluster > 1) asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
template <int cluster>
__device__ __forceinline__ void row_wait() {
#if __CUDA_ARCH__ >= 900
  if constexpr (cluster > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
template <int cluster>
__device__ __forceinline__ void row_barrier() {
  if constexpr (cluster == 1) {
    __syncthreads();
  } else {
    row_arrive<cluster>();
    row_wait<cluster>();
  }
}
// What another block of the row has at the same place of its shared memory.
template <int cluster, typename T>
__device__ __forceinline__ T read_from(const T* mine, int rank) {
  if constexpr (cluster == 1) {
    return *mine;
  } else {
    std::uint32_t address = shared_address(mine);
    T value = {};
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(address), "r"(rank));
    if constexpr (sizeof(T) == 8) {
      asm volatile("ld.shared::cluster.b64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
    } else {
      asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    }
#endif
    return value;
  }
}

// The range of positions of a block: each warp has rounds * 32 of them one after another.
struct Range {
  const float* row;  // scores from position 0
  int begin, rounds, visible;

  __device__ __forceinline__ int position(int round) const {
    return begin + (static_cast<int>(threadIdx.x / 32) * rounds + round) * 32 +
           static_cast<int>(threadIdx.x % 32);
  }
  // Of a position that is not visible: minus infinity, which no visible score is.
  __device__ __forceinline__ float load(int round) const {
    return round < rounds && position(round) < visible ? __ldcg(row + position(round)) : -INFINITY;
  }
  // visit(score, position) in every round, by whole warps. ahead: the first kAhead rounds, loaded before.
  template <class Visit>
  __device__ __forceinline__ void each_round(float (&ahead)[kAhead], const Visit& visit) const {
#pragma unroll 1
    for (int first = 0; first < rounds; first += kAhead) {
      if (first > 0) {
#pragma unroll
        for (int r = 0; r < kAhead; ++r) ahead[r] = load(first + r);
      }
#pragma unroll
      for (int r = 0; r < kAhead; ++r) visit(ahead[r], position(first + r));
    }
  }
  // visit(rank) for every visible score of this thread; loads are under way together.
  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
    float score[kAhead];
#pragma unroll
    for (int r = 0; r < kAhead; ++r) score[r] = load(r);
    each_round(score, [&](float x, int position) {
      if (x > -INFINITY) visit(rank_of(x, position));
    });
  }
};

// ---- sums and budget

// Moments and extremes of the row, from its segments; every warp gets the same.
struct Guide {
  ScoreSums<double> sums;
  bool exact;       // the sums are those of segments added in their order
  float low, high;  // scores
};

// The exponents of the lowest and of the highest bit of numbers, as a float has them plus 200; zero has none.
__device__ __forceinline__ void add_bits(float x, std::uint32_t& lowest, std::uint32_t& highest) {
  if (x == 0.0f) return;
  const std::uint32_t bits = __float_as_uint(x), exponent = bits >> 23 & 0xffu;
  const std::uint32_t digits = (bits & 0x7fffffu) | (exponent == 0 ? 0u : 0x800000u);
  const std::uint32_t unit = 200u + max(exponent, 1u);  // of digits
  lowest = min(lowest, unit + static_cast<std::uint32_t>(__ffs(static_cast<int>(digits)) - 1));
  highest = max(highest, unit + 24u);
}

// Where no addition in double rounds, whatever the order, the sum is that of the fixed order too: so it is
// where the bits of all numbers lie close enough together. Scores whose sums are not like that are rare.
__device__ __forceinline__ bool always_exact(std::uint32_t lowest, std::uint32_t highest, int count) {
  lowest = __reduce_min_sync(kAll, lowest);
  highest = __reduce_max_sync(kAll, highest);
  constexpr std::uint32_t kNotFinite = 200u + 255u + 24u;
  return highest == 0 || (highest < kNotFinite && highest - lowest + (32u - __clz(count)) <= 53u);
}

__device__ __forceinline__ Guide guide_of(const SegmentRecord* records, int visible) {
  const int segments = (visible + kMomentSegment - 1) / kMomentSegment;
  Guide guide;
  std::uint32_t low = kAll, high = 0, lowest[2] = {kAll, kAll}, highest[2] = {};
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x % 32); i < segments; i += 32) {
    const float4 record = __ldcg(reinterpret_cast<const float4*>(records + i));
    add_bits(record.x, lowest[0], highest[0]);
    add_bits(record.y, lowest[1], highest[1]);
    add_segment(guide.sums, ScoreSums<float>{record.x, record.y});
    low = min(low, __float_as_uint(record.z));
    high = max(high, __float_as_uint(record.w));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const ScoreSums<double> other = {__shfl_xor_sync(kAll, guide.sums.sum, step),
                                     __shfl_xor_sync(kAll, guide.sums.square, step)};
    add_sums(guide.sums, other);
  }
  guide.exact =
      always_exact(lowest[0], highest[0], segments) && always_exact(lowest[1], highest[1], segments);
  guide.low = from_order(__reduce_min_sync(kAll, low));
  guide.high = from_order(__reduce_max_sync(kAll, high));
  return guide;
}

// By one warp: the sums in their order, one by one.
__device__ __noinline__ void add_segments(const SegmentRecord* records, int visible, Shared* shared) {
  const int segments = (visible + kMomentSegment - 1) / kMomentSegment;
  ScoreSums<double> total;
#pragma unroll 4
  for (int i = 0; i < segments; ++i) {
    const float2 record = __ldcg(reinterpret_cast<const float2*>(records + i));
    add_segment(total, ScoreSums<float>{record.x, record.y});
  }
  if (threadIdx.x % 32 == 0) {
    shared->sums = total;
    shared->bad = isnan(total.square) || isnan(total.sum);
  }
}

// The sums once more with chains in double, for scores whose squares leave the range of float.
__device__ __forceinline__ void add_segments_in_double(const float* row, int visible, Shared* shared) {
  int bad = 0;
  for (int s = static_cast<int>(threadIdx.x); s < visible; s += kThreads) bad |= !isfinite(__ldcg(row + s));
  bad = __syncthreads_or(bad);
  if (threadIdx.x < 32) {
    ScoreSums<double> total;
    for (int first = 0; first < visible; first += kMomentSegment) {
      add_segment(total, segment_sums<double>(row, first, visible, row[0]));
    }
    if (threadIdx.x == 0) {
      shared->sums = total;
      shared->bad = bad;
    }
  }
  __syncthreads();
}

// The sums where their order matters, or where they are not finite. All threads.
__device__ __noinline__ ScoreSums<double> ordered_sums(const float* row, const SegmentRecord* records,
                                                       int visible, Shared* shared) {
  if (threadIdx.x < 32) add_segments(records, visible, shared);
  __syncthreads();
  if (isinf(shared->sums.square) || isinf(shared->sums.sum)) add_segments_in_double(row, visible, shared);
  const double nan = __longlong_as_double(0x7ff8000000000000ll);
  return shared->bad ? ScoreSums<double>{nan, nan} : shared->sums;
}

// ---- counting

// Of a histogram spread over the blocks: the bucket, from the top, where the count passes k. True where it
// does so at all; what there is to know of it is then in `shared`. All blocks have arrived at a barrier
// since they wrote.
template <int cluster, int buckets>
__device__ __forceinline__ bool find_bucket(Shared& shared, int k) {
  static_assert(buckets <= kThreads);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int bucket = buckets - 1 - thread;
  int of_block[cluster] = {};
  int here = 0, before = 0;
  if (thread < buckets) {
#pragma unroll
    for (int c = 0; c < cluster; ++c) of_block[c] = read_from<cluster>(&shared.histogram[bucket], c);
#pragma unroll
    for (int c = 0; c < cluster; ++c) {
      here += of_block[c];
      if (c < block_rank<cluster>()) before += of_block[c];
    }
  }
  // Prefix sums of both numbers at once.
  const unsigned long long mine = static_cast<unsigned long long>(here) << 32 | static_cast<unsigned>(before);
  unsigned long long reached = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const unsigned long long other = __shfl_up_sync(kAll, reached, step);
    if (lane >= step) reached += other;
  }
  if (lane == 31) shared.warp_sums[warp] = reached;
  __syncthreads();
  const unsigned long long earlier = lane < warp ? shared.warp_sums[lane] : 0;
  reached += static_cast<unsigned long long>(__reduce_add_sync(kAll, static_cast<unsigned>(earlier >> 32)))
             << 32;
  reached += __reduce_add_sync(kAll, static_cast<unsigned>(earlier));
  const int count = static_cast<int>(reached >> 32);
  const bool passes = count >= k && count - here < k;
  if (passes) {
    shared.bucket = bucket;
    shared.above = count - here;
    shared.inside = here;
    shared.before = static_cast<int>(reached & kAll) - before;
#pragma unroll
    for (int c = 0; c < cluster; ++c) shared.inside_of[c] = of_block[c];
  }
  return __syncthreads_or(passes) != 0;
}

// Where the list of this block's selected keys begins in the row's list.
template <int cluster>
__device__ __noinline__ int selected_before(const Range range, Shared* shared, Rank last) {
  int mine = 0;
  range.each([&](Rank rank) { mine += rank >= last; });
  if (threadIdx.x == 0) shared->total = 0;
  __syncthreads();
  mine = __reduce_add_sync(kAll, mine);
  if (threadIdx.x % 32 == 0) atomicAdd(&shared->total, mine);
  row_barrier<cluster>();
  int before = 0;
  for (int c = 0; c < block_rank<cluster>(); ++c) before += read_from<cluster>(&shared->total, c);
  return before;
}

// The last selected key, by a radix search: first over the orders of scores, between those of the lowest and
// the highest, then over the positions of equal ones.
template <int cluster>
__device__ __noinline__ Rank last_by_radix(const Range range, Shared* shared, int k, std::uint32_t low,
                                           std::uint32_t high) {
  Rank prefix = 0;
  int left = k;
#pragma unroll 1
  for (int half = 32; half >= 0; half -= 32) {  // the upper half of a rank is the order, the lower the place
    if (half == 0) low = ~static_cast<std::uint32_t>(range.visible - 1), high = ~0u;
#pragma unroll 1
    while (low != high) {
      const int shift = max(0, 32 - __clz(static_cast<int>(high - low)) - kBucketBits);
      row_barrier<cluster>();  // nobody reads the histogram any more
      shared->histogram[threadIdx.x] = 0;
      __syncthreads();
      range.each([&](Rank rank) {
        const std::uint32_t part = static_cast<std::uint32_t>(rank >> half);
        if ((half == 32 || rank >> 32 == prefix >> 32) && part - low <= high - low) {
          atomicAdd(&shared->histogram[(part - low) >> shift], 1);
        }
      });
      row_barrier<cluster>();
      find_bucket<cluster, kBuckets>(*shared, left);
      left -= shared->above;
      low += static_cast<std::uint32_t>(shared->bucket) << shift;
      high = min(high, low + ((1u << shift) - 1));
      const bool whole = left == shared->inside;
      __syncthreads();
      if (whole) return prefix | static_cast<Rank>(low) << half;  // all that are within are selected
    }
    prefix |= static_cast<Rank>(low) << half;
  }
  return prefix;
}

// How many standard deviations above the mean a fraction of a normal distribution lies. Only a guide: any
// value gives the same selection.
__device__ __forceinline__ float normal_quantile(float fraction) {
  const float t = sqrtf(-2.0f * __logf(fraction));
  return t - __fdividef(2.30753f + 0.27061f * t, 1.0f + t * (0.99229f + 0.04481f * t));
}

// The order of a rank's score (scores/order.cuh).
__device__ __forceinline__ std::uint32_t order_in(Rank rank) {
  return static_cast<std::uint32_t>(rank >> 32);
}

// ---- the list

__device__ __forceinline__ unsigned lanes_below() { return (1u << threadIdx.x % 32) - 1; }

struct ListWriter {
  const std::int32_t* table;
  KeyPlace* list;
  std::int32_t* positions;  // may be null
  int page_shift;

  __device__ __forceinline__ void operator()(int index, int position) const {
    list[index] = {table[position >> page_shift], position & ((1 << page_shift) - 1)};
    if (positions != nullptr) positions[index] = position;
  }
};

// Where this warp's selected keys begin, given how many it has and where the block's begin.
__device__ __forceinline__ int warp_base(Shared& shared, int mine, int base) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  if (lane == 0) shared.warp_sums[warp] = static_cast<unsigned long long>(mine);
  __syncthreads();
  return base + __reduce_add_sync(kAll, lane < warp ? static_cast<int>(shared.warp_sums[lane]) : 0);
}

// Writes the block's part of the list from all its scores.
__device__ __noinline__ void write_from_scores(const Range range, Shared* shared, const ListWriter write,
                                               Rank last, int base) {
  int mine = 0;
  range.each([&](Rank rank) { mine += rank >= last; });
  base = warp_base(*shared, __reduce_add_sync(kAll, mine), base);
  float score[kAhead];
#pragma unroll
  for (int r = 0; r < kAhead; ++r) score[r] = range.load(r);
  range.each_round(score, [&](float x, int position) {
    const bool chosen = x > -INFINITY && rank_of(x, position) >= last;
    const unsigned lanes = __ballot_sync(kAll, chosen);
    if (chosen) write(base + __popc(lanes & lanes_below()), position);
    base += __popc(lanes);
  });
}

template <int cluster>
__global__ void __launch_bounds__(kThreads, 1) pick_kernel(const PickParams p) {
#if __CUDA_ARCH__ < 900
  if constexpr (cluster > 1) return;
#endif
  extern __shared__ __align__(16) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int row = static_cast<int>(blockIdx.y), n = row / p.cache.queries;
  const int visible = visible_to(p.cache, keys_of(p.cache, n), row % p.cache.queries);
  const int rank = block_rank<cluster>();
  shared.histogram[thread] = 0;
  if (thread == 0) shared.candidate_count = 0;
  Range range;
  range.row = p.scratch.scores + row * p.scratch.score_stride;
  range.visible = visible;
  range.rounds = (visible + kRound * cluster - 1) / (kRound * cluster);
  range.begin = rank * range.rounds * kRound;
  const SegmentRecord* const records =
      p.scratch.segments + static_cast<std::int64_t>(row) * p.scratch.segment_stride;
  const ListWriter write = {
      p.cache.block_table + n * p.cache.blocks,
      p.scratch.list + static_cast<std::int64_t>(row) * p.scratch.list_stride,
      p.positions == nullptr ? nullptr : p.positions + static_cast<std::int64_t>(row) * p.position_stride,
      p.cache.page_shift};
  wait_for_previous();
  const auto tell = [&](int k) {  // late: a barrier of the cluster waits for stores
    if (write.positions != nullptr) {
#pragma unroll 1
      for (int i = k + rank * kThreads + thread; i < p.position_stride; i += cluster * kThreads) {
        write.positions[i] = -1;
      }
    }
    if (rank != 0 || thread != 0) return;
    p.scratch.selected[row] = k;
    if (p.k_t != nullptr) p.k_t[row] = k;
  };
  if (visible == 0) {
    tell(0);
    return;
  }
  float ahead[kAhead];
#pragma unroll
  for (int r = 0; r < kAhead; ++r) ahead[r] = range.load(r);
  Guide guide = guide_of(records, visible);
  __syncthreads();
  if (!guide.exact) guide.sums = ordered_sums(range.row, records, visible, &shared);
  const double variance = variance_of(guide.sums, visible);
  const int k = isnan(guide.sums.square) ? 0 : budget_for(p.budget, variance, visible);
  if (k == 0) {
    tell(0);
    return;
  }

  // About four times as many scores as are wanted, were they normally distributed.
  const float mean = __ldcg(range.row) + static_cast<float>(guide.sums.sum) / static_cast<float>(visible);
  const float fraction = 4.0f * static_cast<float>(k) / static_cast<float>(visible);
  float low = guide.low;
  if (fraction < 0.5f) {
    const float bound = mean + normal_quantile(fraction) * sqrtf(static_cast<float>(variance));
    if (bound > guide.low && bound < guide.high) low = bound;
  }
  // They are counted before they are kept: a trained model's lie close together, its recent keys above all,
  // and a fixed part of the memory for each warp would overflow in some while the rest stays empty.
  Rank* const kept = reinterpret_cast<Rank*>(memory + sizeof(Shared));  // in ascending order of positions
  const auto reaches = [&](float score) { return score >= low && score > -INFINITY; };
  int mine_of_low = 0;
  range.each_round(ahead, [&](float score, int) { mine_of_low += reaches(score); });
  mine_of_low = __reduce_add_sync(kAll, mine_of_low);
  int to = warp_base(shared, mine_of_low, 0);
  int total = __reduce_add_sync(kAll, lane < kWarps ? static_cast<int>(shared.warp_sums[lane]) : 0);
  if (range.rounds > kAhead) {
#pragma unroll
    for (int r = 0; r < kAhead; ++r) ahead[r] = range.load(r);
  }
  range.each_round(ahead, [&](float score, int position) {
    const bool chosen = reaches(score);
    const unsigned lanes = __ballot_sync(kAll, chosen);
    const int at = to + __popc(lanes & lanes_below());
    if (chosen && at < kKept<cluster>) kept[at] = rank_of(score, position);
    to += __popc(lanes);
  });
  if (total > kKept<cluster>) {  // as good as too many in the top bucket
    total = kKept<cluster>;
    if (thread == 0) atomicAdd(&shared.histogram[kBuckets - 1], kTooMany);
  }
  __syncthreads();
  // Of these each warp has an equal share.
  const int share = (total + kThreads - 1) / kThreads * 32;
  const int begin = min(warp * share, total), end = min(begin + share, total);

  // Histograms of the kept scores, each of the bucket of the one before, until few are left.
  OrderRange<kBucketBits> span = {order_of(low), order_of(guide.high)};
  int wanted = k, before = 0;  // the wanted-th of the span; those above it in blocks before this one
  bool few = false;
#pragma unroll 1
  while (k < visible && span.low != span.high) {
#pragma unroll 1
    for (int i = begin + lane; i < end; i += 32) {
      const Rank mine = kept[i];
      if (span.holds(order_in(mine))) atomicAdd(&shared.histogram[span.bin(order_in(mine))], 1);
    }
    row_barrier<cluster>();
    if (!find_bucket<cluster, kBuckets>(shared, wanted) || shared.inside >= kTooMany) break;
    wanted -= shared.above;
    before += shared.before;
    span = span.part(shared.bucket);
    few = shared.inside <= kFew;
    if (few) break;
    row_barrier<cluster>();  // nobody reads the histogram any more
    shared.histogram[thread] = 0;
    __syncthreads();
  }
  if (!few) {
    Rank last = 0;
    int base = min(range.begin, visible);
    if (k < visible) {
      if (p.work != nullptr && rank == 0 && thread == 0) atomicAdd(&p.work->searched, 1ull);
      last = last_by_radix<cluster>(range, &shared, k, order_of(guide.low), order_of(guide.high));
      base = selected_before<cluster>(range, &shared, last);
    }
    row_arrive<cluster>();  // this block reads no other's memory any more
    write_from_scores(range, &shared, write, last, base);
    tell(k);
    row_wait<cluster>();  // others may still read this block's memory
    return;
  }

  const int inside = shared.inside;
#pragma unroll 1
  for (int i = begin + lane; i < end; i += 32) {
    const Rank mine = kept[i];
    if (span.holds(order_in(mine))) shared.candidates[atomicAdd(&shared.candidate_count, 1)] = mine;
  }
  row_barrier<cluster>();
  int owner = 0, index = thread;
  Rank mine = 0;
  if (thread < inside) {
    if constexpr (cluster > 1) {
      while (index >= shared.inside_of[owner]) index -= shared.inside_of[owner++];
    }
    mine = read_from<cluster>(&shared.candidates[index], owner);
    shared.gathered[thread] = mine;
  }
  row_arrive<cluster>();
  __syncthreads();
  if (thread < inside) {
    int better = 0;
#pragma unroll 4
    for (int i = 0; i < inside; ++i) better += shared.gathered[i] > mine;
    if (better == wanted - 1) shared.last = mine;
  }
  __syncthreads();
  const Rank last = shared.last;
  int base = before + __syncthreads_count(thread < inside && owner < rank && mine >= last);
  int selected = 0;
#pragma unroll 1
  for (int i = begin + lane; i < end; i += 32) selected += kept[i] >= last;
  base = warp_base(shared, __reduce_add_sync(kAll, selected), base);
#pragma unroll 1
  for (int first = begin; first < end; first += 32) {
    const Rank here = first + lane < end ? kept[first + lane] : 0;
    const unsigned lanes = __ballot_sync(kAll, here >= last);
    if (here >= last) {
      write(base + __popc(lanes & lanes_below()), static_cast<int>(~static_cast<std::uint32_t>(here)));
    }
    base += __popc(lanes);
  }
  tell(k);
  row_wait<cluster>();  // others may still read this block's memory
}

}  // namespace

void pick(const DecodeArgs& args, const Scratch& scratch, int blocks, const Context& context,
          DecodeWork* work) {
  PickParams p = {};
  p.cache = cache_of(args);
  p.budget = args.budget;
  p.scratch = scratch;
  p.k_t = args.k_t;
  p.positions = args.selected_out;
  p.position_stride = static_cast<int>(args.selected_width);
  p.work = work;
  Launch how;
  how.cluster = blocks;
  how.grid = dim3(static_cast<unsigned>(how.cluster), static_cast<unsigned>(args.sequences * args.queries));
  how.threads = kThreads;
  how.overlap = true;
  const auto run = [&]<int cluster>(std::integral_constant<int, cluster>) {
    how.shared_bytes = sizeof(Shared) + sizeof(Rank) * kKept<cluster>;
    launch(pick_kernel<cluster>, p, how, context, "decode: pick");
  };
  if (how.cluster > 1) {
    run(std::integral_constant<int, kHopperCluster>());
  } else {
    run(std::integral_constant<int, 1>());
  }
}

}  // namespace gsa::cuda::decoding
