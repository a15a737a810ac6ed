// Selection in one pass: what the sample says about a query, and what was collected for it.
#pragma once

#include "kernels/select/cuda/warp.cuh"

namespace gsa::cuda::selecting {

// Sample i of the keys: one of each `1 << shift`, at a place that looks random.
__device__ __forceinline__ int sample_position(int i, int shift) {
  const std::uint32_t hash = static_cast<std::uint32_t>(i) * 0x9e3779b1u;
  return (i << shift) + static_cast<int>((hash >> 16) & ((1u << shift) - 1));
}

constexpr int kReserveStep = 16;  // entries that one tile of keys may add to a list

// A lower bound of the threshold of a query that sees `visible` keys, from `count` sampled scores. It may be
// wrong, seldom; the query then falls back. list: entries of one of its lists.
__device__ __forceinline__ Bound bound_from_sample(const float* sample, int count, int visible,
                                                   const Budget& budget, int list, std::uint32_t* bins) {
  const StoredRow all(sample, count);
  const float shift = sample[0];
  float low = INFINITY, high = -INFINITY, sum = 0, square = 0;
  all.each([&](float score, int) {
    const float d = score - shift;
    sum += d;
    square += d * d;
    low = fminf(low, score);
    high = fmaxf(high, score);
  });
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(kAll, sum, step);
    square += __shfl_xor_sync(kAll, square, step);
    low = fminf(low, __shfl_xor_sync(kAll, low, step));
    high = fmaxf(high, __shfl_xor_sync(kAll, high, step));
  }
  // The variance of a sample errs by about sqrt((kurtosis - 1) / count).
  const double n = count;
  const double variance = fmax(0.0, square / n - (sum / n) * (sum / n));
  const double error = kSampleMargin * sqrt(3.0 / n);
  const int k = budget_for(budget, variance, visible);
  const int max_k = max(budget_for(budget, variance * (1 + error), visible),
                        error < 1 ? budget_for(budget, variance * (1 - error), visible) : visible);
  const float part = static_cast<float>(count) / static_cast<float>(visible);
  const float expected = static_cast<float>(max_k) * part;
  const int rank = static_cast<int>(expected + kSampleMargin * sqrtf(expected) + 2.0f);
  Bound bound = {-INFINITY, 0.0f, 0};
  if (rank >= count) return bound;
  const WantedRange found = lower_quantile(all, count, rank, low, high, bins);
  bound.low = from_order(found.low);
  // The threshold should fall into the middle of the bins.
  const int expected_rank = max(1, static_cast<int>(static_cast<float>(k) * part));
  const float middle = from_order(lower_quantile(all, count, expected_rank, low, high, bins).low);
  bound.scale = static_cast<float>(kListBins / 2) / (middle - bound.low);
  const float above = static_cast<float>(rank - found.wanted), equal = static_cast<float>(found.inside);
  if (found.low == found.high && above + equal > 0.9f * part * static_cast<float>(kLists * list)) {
    const float max_above = (above + kSampleMargin * sqrtf(above) + 4.0f) / part / kLists;
    bound.reserve = min(list / 2, static_cast<int>(max_above + 4.0f * sqrtf(max_above)) + kReserveStep);
  }
  return bound;
}

}  // namespace gsa::cuda::selecting
