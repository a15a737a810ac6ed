// Online softmax over tiles (see tile-inl.h). A row keeps four partial maxima and sums, one a lane of its
// 128-bit block; they meet at the end. Included once per Highway target.
#if defined(GSA_KERNELS_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GSA_KERNELS_SOFTMAX_INL_H_
#undef GSA_KERNELS_SOFTMAX_INL_H_
#else
#define GSA_KERNELS_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Keys that pad the last group count for nothing.
template <typename T>
HWY_INLINE void pad_tile(T* tile, std::int64_t count) {
  for (std::int64_t i = count; i % kGroup != 0; ++i) {
    for (int r = 0; r < kTileRows; ++r) tile[tile_index(r, i)] = -std::numeric_limits<T>::infinity();
  }
}

// A weight e^x, where x is the difference of a logit and the maximum or log-sum-exp of its row: above 0 in
// rounding alone, so that a weight is at most 1. The difference is taken in powers of e and the base changed
// here: between close numbers it is exact, however large they are, and the largest logit of a row weighs
// exactly 1 where it stands alone. A change of base on each side would leave a few units of the last place of
// the logits between them.
HWY_INLINE FloatVec exp_of(FloatVec x) {
  const FloatTag d;
  return power_of_two(d, hn::Mul(x, hn::Set(d, static_cast<float>(Base<float>::kLogE))), 0.0f);
}

// The weight e^(logit - lse).
HWY_INLINE FloatVec softmax_weight(FloatVec logit, FloatVec lse) { return exp_of(hn::Sub(logit, lse)); }
HWY_INLINE double softmax_weight(double logit, double lse) {
  const double x = logit - lse;
  return std::exp(x > 0 ? 0 : x);
}

// tile <- e^(tile - new maximum); maximum and sum (4 lanes a row) move on; factor (4 lanes a row) is what
// the row's earlier results have to be multiplied with. All three have room for 16 values.
HWY_INLINE void softmax_update(float* HWY_RESTRICT tile, std::int64_t count, int row_count,
                               float* HWY_RESTRICT maximum, float* HWY_RESTRICT sum,
                               float* HWY_RESTRICT factor) {
  const FloatTag d;
  pad_tile(tile, count);
  const std::int64_t size = tile_size(count);
  for (std::int64_t lane = 0; lane < row_count * kGroup; lane += kLanes) {
    const FloatVec before = hn::LoadU(d, maximum + lane);
    FloatVec m = before;
    for (std::int64_t g = lane; g < size; g += kGroupSize) m = hn::Max(m, hn::Load(d, tile + g));
    m = hn::Max(m, hn::Shuffle2301(m));
    m = hn::Max(m, hn::Shuffle1032(m));
    const FloatVec scale = exp_of(hn::Sub(before, m));
    FloatVec total = hn::Mul(hn::LoadU(d, sum + lane), scale);
    for (std::int64_t g = lane; g < size; g += kGroupSize) {
      const FloatVec p = exp_of(hn::Sub(hn::Load(d, tile + g), m));
      hn::Store(p, d, tile + g);
      total = hn::Add(total, p);
    }
    hn::StoreU(m, d, maximum + lane);
    hn::StoreU(total, d, sum + lane);
    hn::StoreU(scale, d, factor + lane);
  }
}

HWY_INLINE void softmax_update(double* tile, std::int64_t count, int row_count, double* maximum, double* sum,
                               double* factor) {
  for (int r = 0; r < row_count; ++r) {
    const double before = maximum[r * kGroup];
    double m = before;
    for (std::int64_t i = 0; i < count; ++i) m = std::max(m, tile[tile_index(r, i)]);
    const double scale = std::exp(before - m);
    for (int lane = 0; lane < kGroup; ++lane) {
      maximum[r * kGroup + lane] = m;
      factor[r * kGroup + lane] = scale;
      sum[r * kGroup + lane] *= scale;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      double& p = tile[tile_index(r, i)];
      p = std::exp(p - m);
      sum[r * kGroup + i % kGroup] += p;
    }
  }
}

// The sum of a row's four lanes.
template <typename T>
HWY_INLINE T row_sum(const T* lanes) {
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

// The logarithm of a row's sum, where total is the row_sum: never below the maximum, and the maximum itself
// where the other keys weigh nothing. A row without keys gets NaN.
template <typename T>
HWY_INLINE T log_sum(T maximum, T total) {
  if (total == T(0)) return std::numeric_limits<T>::quiet_NaN();
  return maximum + std::log(total);
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#endif  // GSA_KERNELS_SOFTMAX_INL_H_
