// Selection in one pass: bounds from the sampled scores, a warp a query, and selection from what the pass
// left, a block a query. Kernels of their own: both wait for memory most of the time, and need neither the
// registers nor the shared memory that would keep most of a multiprocessor's warps out beside the pass.
#include "kernels/select/cuda/pass.cuh"

namespace gsa::cuda::selecting {
namespace {

__global__ __launch_bounds__(kThreads) void bound_kernel(const __grid_constant__ LongArgs args) {
  __shared__ std::uint32_t bins[kWarps][kListBins];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int number = static_cast<int>(blockIdx.x) * kWarps + warp;
  const int slot = number / kTileQueries, query = number % kTileQueries;
  const QueryTile tile = tile_of(args, slot);
  if (query >= tile.count) return;
  const int position = tile.position + query;
  int seen = 0;  // sampled keys that the query sees
  if (samples_of(args, tile) > 0) {
    seen = position >> args.shift;
    if (sample_position(seen, args.shift) <= position) ++seen;
  }
  Bound bound = {-INFINITY, 0.0f, 0};
  if (seen > 0) {
    const float* const scores = reinterpret_cast<const float*>(slot_of(args, slot));
    bound = bound_from_sample(scores + static_cast<long long>(query) * args.samples, seen, position + 1,
                              args.budget, args.list, bins[warp]);
  }
  if (threadIdx.x % 32 == 0) args.bounds[tile.row + query] = bound;
}

constexpr int kFinishThreads = 256;
constexpr int kListThreads = kFinishThreads / kLists;
constexpr int kKeptPairs = 6;
constexpr int kWindowWords = 4096;  // of a mask, put together at a time: 128K positions

struct FinishShared {
  std::uint32_t words[kWindowWords];
  std::uint32_t bins[kListBins];
  std::uint32_t few_order[kListFew];
  int few_position[kListFew];
  float low[kFinishThreads / 32], high[kFinishThreads / 32];
  double variance;
  int k;
  BinPlace place;
  RowChoice choice;
  int few;
};

// What was collected for a query: four lists of (score, position), each read by a quarter of the block. The
// first kKept pairs of entries of a thread stay in registers.
template <int kKept>
class Entries {
 public:
  __device__ __forceinline__ Entries(const uint2* lists, int stride, const RowPassed& passed, float low)
      : list_(lists + threadIdx.x / kListThreads * stride),
        first_(2 * static_cast<int>(threadIdx.x % kListThreads)),
        count_(passed.count[threadIdx.x / kListThreads]),
        stop_(passed.stop()),
        low_(low) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (first_ + i * kStep < count_) kept_[i] = read(first_ + i * kStep);
    }
  }

  // visit(score, position) for every entry, each by one thread.
  template <class Visit>
  __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll
    for (int i = 0; i < kKept; ++i) both(kept_[i], count_ - first_ - i * kStep, visit);
#pragma unroll 1
    for (int at = first_ + kKept * kStep; at < count_; at += kStep) both(read(at), count_ - at, visit);
  }

 private:
  static constexpr int kStep = 2 * kListThreads;

  __device__ __forceinline__ uint4 read(int at) const { return *reinterpret_cast<const uint4*>(list_ + at); }
  // Not all that equal the bound were collected beyond the place where they stopped: there none of them
  // counts.
  __device__ __forceinline__ bool counts(float score, int position) const {
    return position <= stop_ || score != low_;
  }
  template <class Visit>
  __device__ __forceinline__ void both(const uint4& pair, int left, Visit visit) const {
    const float first = __uint_as_float(pair.x), second = __uint_as_float(pair.z);
    const int at = static_cast<int>(pair.y), next = static_cast<int>(pair.w);
    if (left > 0 && counts(first, at)) visit(first, at);
    if (left > 1 && counts(second, next)) visit(second, next);
  }

  const uint2* const list_;
  const int first_, count_, stop_;
  const float low_;
  uint4 kept_[kKept > 0 ? kKept : 1];
};

// Narrows a range to the bin that holds the wanted-th of what count(add) adds to: add(order) for each.
template <class Count>
__device__ __forceinline__ void narrow(WantedRange& range, FinishShared& shared, Count count) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  for (int i = thread; i < kListBins; i += kFinishThreads) shared.bins[i] = 0;
  __syncthreads();
  count([&](std::uint32_t order) {
    if (range.holds(order)) atomicAdd(&shared.bins[range.bin(order)], 1u);
  });
  __syncthreads();
  if (thread < 32) {
    const BinPlace found = find_list_bin(shared.bins, range.wanted);
    if (thread == 0) shared.place = found;
  }
  __syncthreads();
  range.narrow(shared.place);
}

// The wanted-th highest of the scores in one bin of many: a radix search between the lowest and the highest
// of them, then, where equal ones are left, over positions. Entries are read again each time, so that nobody
// else has to spare registers for this.
__device__ __noinline__ RowChoice search_radix(const uint2* lists, int stride, const RowPassed& passed,
                                               float from, const Bound& bound, int bin, int wanted,
                                               int inside, int visible, FinishShared& shared) {
  const Entries<0> all(lists, stride, passed, from);
  const auto each = [&](auto visit) {
    all.each([&](float score, int position) {
      if (bin_of(score, bound.low, bound.scale) == bin) visit(order_of(score), position);
    });
  };
  std::uint32_t low = ~0u, high = 0;
  each([&](std::uint32_t order, int) { low = min(low, order), high = max(high, order); });
  low = __reduce_min_sync(kAll, low);
  high = __reduce_max_sync(kAll, high);
  if (threadIdx.x % 32 == 0) {
    shared.low[threadIdx.x / 32] = __uint_as_float(low);
    shared.high[threadIdx.x / 32] = __uint_as_float(high);
  }
  __syncthreads();
  for (int w = 0; w < kFinishThreads / 32; ++w) {
    low = min(low, __float_as_uint(shared.low[w]));
    high = max(high, __float_as_uint(shared.high[w]));
  }
  WantedRange range = {{low, high}, wanted, inside};
  while (range.low != range.high) {
    narrow(range, shared, [&](auto add) { each([&](std::uint32_t order, int) { add(order); }); });
  }
  const float threshold = from_order(range.low);
  if (range.wanted == range.inside) return {threshold, visible - 1};
  // Earlier positions come first: they count as higher.
  const std::uint32_t last = static_cast<std::uint32_t>(visible - 1);
  WantedRange places = {{0, last}, range.wanted, range.inside};
  while (places.low != places.high) {
    narrow(places, shared, [&](auto add) {
      each([&](std::uint32_t order, int position) {
        if (order == range.low) add(last - static_cast<std::uint32_t>(position));
      });
    });
  }
  return {threshold, static_cast<int>(last - places.low)};
}

// Bins for scores of which no bound is known.
template <class All>
__device__ __forceinline__ Bound bound_of(const All& all, FinishShared& shared) {
  float low = INFINITY, high = -INFINITY;
  all.each([&](float score, int) { low = fminf(low, score), high = fmaxf(high, score); });
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    low = fminf(low, __shfl_xor_sync(kAll, low, step));
    high = fmaxf(high, __shfl_xor_sync(kAll, high, step));
  }
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (threadIdx.x % 32 == 0) shared.low[warp] = low, shared.high[warp] = high;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kFinishThreads / 32; ++w) {
    low = fminf(low, shared.low[w]);
    high = fmaxf(high, shared.high[w]);
  }
  return {low, high > low ? static_cast<float>(kListBins - 1) / (high - low) : 0.0f};
}

// Bits of the mask that is put together: words `base` and following of the row.
struct Window {
  std::uint32_t* words;
  int base;

  __device__ __forceinline__ void clear(int count) const {
    for (int w = 4 * static_cast<int>(threadIdx.x); w < count; w += 4 * kFinishThreads) {
      *reinterpret_cast<uint4*>(words + w) = make_uint4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void set(int position) const {
    const int word = position / 32 - base;
    if (word >= 0 && word < kWindowWords) atomicOr(&words[word], 1u << (position % 32));
  }
  __device__ __forceinline__ void write(std::uint32_t* row, int count) const {
    std::uint32_t* const to = row + base;
    const int thread = static_cast<int>(threadIdx.x);
    const int whole = reinterpret_cast<std::uintptr_t>(to) % 16 == 0 ? count / 4 * 4 : 0;
    for (int w = 4 * thread; w < whole; w += 4 * kFinishThreads) {
      *reinterpret_cast<uint4*>(to + w) = *reinterpret_cast<const uint4*>(words + w);
    }
    for (int w = whole + thread; w < count; w += kFinishThreads) to[w] = words[w];
  }
};

// The k-th highest of the scores, 1 <= k < visible, of which there are at least k. bins, few and the window's
// words are zero; leaves the latter as the choice says.
template <class All, class Fallback>
__device__ __forceinline__ RowChoice search(const All& all, int k, int visible, Bound bound,
                                            FinishShared& shared, const Window& window, Fallback fallback) {
  const int thread = static_cast<int>(threadIdx.x);
  const float from = bound.low;
  if (bound.low == -INFINITY || !(bound.scale > 0 && bound.scale < INFINITY)) bound = bound_of(all, shared);
  all.each([&](float score, int) { atomicAdd(&shared.bins[bin_of(score, bound.low, bound.scale)], 1u); });
  __syncthreads();
  if (thread < 32) {
    const BinPlace found = find_list_bin(shared.bins, k);
    if (thread == 0) shared.place = found;
  }
  __syncthreads();
  const BinPlace place = shared.place;
  if (place.inside == 0) return {from, visible};  // fewer than k are known: see where the choice is looked at
  if (place.inside > kListFew) {
    const RowChoice choice = fallback(bound, place);
    all.each([&](float score, int position) {
      if (chosen(score, position, choice)) window.set(position);
    });
    return choice;
  }
  sort_out(all, place, bound, shared, window);
  __syncthreads();
  const int wanted = k - place.above;
  if (thread < place.inside) {
    const FewRank rank = rank_among_few(shared, place.inside, thread);
    if (rank.before < wanted) window.set(rank.position);
    if (rank.before == wanted - 1) shared.choice = {from_order(rank.order), rank.cut(visible)};
  }
  __syncthreads();
  return shared.choice;
}

// Budget, threshold and mask of one query.
__global__ __launch_bounds__(kFinishThreads, 4) void finish_kernel(const __grid_constant__ LongArgs args) {
  __shared__ __align__(16) FinishShared shared;
  const int number = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int slot = number / kTileQueries, query = number % kTileQueries;
  const QueryTile tile = tile_of(args, slot);
  if (query >= tile.count) return;
  const int row = tile.row + query, visible = tile.position + query + 1;
  const RowPassed& passed = args.passed[number];
  const uint2* const lists = reinterpret_cast<const uint2*>(slot_of(args, slot));
  const uint2* const own = lists + static_cast<long long>(query) * kLists * args.list;
  const Bound bound = args.bounds[row];
  const Entries<kKeptPairs> all(own, args.list, passed, bound.low);

  Window window = {shared.words, 0};
  const int used = (visible + 31) / 32;
  window.clear(min(used, kWindowWords));
  for (int i = thread; i < kListBins; i += kFinishThreads) shared.bins[i] = 0;
  if (thread == 0) {
    shared.few = 0;
    // k is 0 where a score is not finite, -1 where the query goes to the fallback.
    const double variance = variance_of({passed.sum, passed.square}, visible);
    int k = 0;
    if (!isnan(passed.square)) {
      bool overflow = false;
      int entries = 0;
      for (int i = 0; i < kLists; ++i) {
        overflow = overflow || passed.count[i] < 0;
        entries += passed.count[i];
      }
      if (isfinite(variance)) k = budget_for(args.budget, variance, visible);
      if (k == 0 || (k < visible && (overflow || entries < k))) k = -1;
      count_work(args.out.work, {.entries = static_cast<unsigned>(max(0, entries))});
    }
    shared.k = k;
    shared.variance = variance;
  }
  __syncthreads();
  const int k = shared.k;
  if (k < 0) {
    if (thread == 0) args.failed[atomicAdd(args.failed_count, 1)] = row;
    return;
  }
  const float nan = __int_as_float(0x7fc00000);
  RowChoice choice = {k == 0 ? nan : -INFINITY, visible - 1};
  if (k > 0 && k < visible) {
    choice = search(all, k, visible, bound, shared, window, [&](const Bound& bins, const BinPlace& place) {
      if (thread == 0) count_work(args.out.work, {.refined = 1});
      return search_radix(own, args.list, passed, bound.low, bins, place.bin, k - place.above, place.inside,
                          visible, shared);
    });
  }
  // Later ones that equal the bound may not have been collected: whether some are left over is then not
  // known.
  const int stop = passed.stop();
  if (stop < visible && choice.threshold == bound.low && choice.tie_cut >= stop) {
    if (thread == 0) args.failed[atomicAdd(args.failed_count, 1)] = row;
    return;
  }
  if (thread == 0) write_row(args.out, row, k, k == 0 ? nan : static_cast<float>(shared.variance), choice);
  if (args.out.words == nullptr) return;

  std::uint32_t* const words = args.out.words + row * args.out.words_per_query;
  if (k == visible) {
    for (int w = thread; w < used; w += kFinishThreads) {
      const int left = visible - 32 * w;
      words[w] = left >= 32 ? kAll : (1u << left) - 1;
    }
  } else {
    for (;;) {
      const int count = min(kWindowWords, used - window.base);
      __syncthreads();
      window.write(words, count);
      window.base += kWindowWords;
      if (window.base >= used) break;
      __syncthreads();
      window.clear(min(kWindowWords, used - window.base));
      if (k == 0) continue;
      __syncthreads();
      all.each([&](float score, int position) {
        if (chosen(score, position, choice)) window.set(position);
      });
    }
  }
  for (long long w = used + thread; w < args.out.words_per_query; w += kFinishThreads) words[w] = 0;
}

}  // namespace

void launch_bounds(const LongArgs& args, const Context& context) {
  const unsigned blocks = static_cast<unsigned>(args.tiles * kTileQueries / kWarps);
  bound_kernel<<<blocks, kThreads, 0, stream_of(context.stream)>>>(args);
  check_launch("bound_kernel");
}

void launch_finish(const LongArgs& args, const Context& context) {
  const unsigned blocks = static_cast<unsigned>(args.tiles * kTileQueries);
  finish_kernel<<<blocks, kFinishThreads, 0, stream_of(context.stream)>>>(args);
  check_launch("finish_kernel");
}

}  // namespace gsa::cuda::selecting
