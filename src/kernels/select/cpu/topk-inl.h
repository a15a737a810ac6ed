// The k-th largest of a row of scores, exactly, and the mask that follows from it.
//
// The search brackets the threshold by counting how many scores reach a trial value (a few passes over a row
// that lies in cache) and finishes among the few that are left between the bounds. A good first guess saves
// passes and changes nothing in the result. Included once per Highway target.
#if defined(GSA_KERNELS_TOPK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GSA_KERNELS_TOPK_INL_H_
#undef GSA_KERNELS_TOPK_INL_H_
#else
#define GSA_KERNELS_TOPK_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "kernels/common/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
struct Moments {
  double mean = 0;
  double variance = 0;
  T low = 0;
  T high = 0;
};

// Sums over blocks of kBlock values in T, sums of blocks in double.
constexpr std::int64_t kBlock = 1024;

// Mean and variance without intermediate results in T, which overflow or vanish where scores are extreme.
template <typename T>
HWY_INLINE void extreme_moments(const T* x, std::int64_t n, Moments<T>& m) {
  double total = 0, squares = 0;
  for (std::int64_t i = 0; i < n; ++i) total += static_cast<double>(x[i]);
  m.mean = total / static_cast<double>(n);
  for (std::int64_t i = 0; i < n; ++i) {
    const double v = static_cast<double>(x[i]) - m.mean;
    squares += v * v;
  }
  m.variance = squares / static_cast<double>(n);
}

template <typename T>
HWY_INLINE Moments<T> moments(const T* HWY_RESTRICT x, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto low = hn::Set(d, x[0]), high = low;
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = std::min(n, begin + kBlock);
    auto sum = hn::Zero(d);
    std::int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      const auto v = hn::LoadU(d, x + i);
      sum = hn::Add(sum, v);
      low = hn::Min(low, v);
      high = hn::Max(high, v);
    }
    double block = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    for (; i < end; ++i) {
      block += static_cast<double>(x[i]);
      low = hn::Min(low, hn::Set(d, x[i]));
      high = hn::Max(high, hn::Set(d, x[i]));
    }
    total += block;
  }
  Moments<T> m;
  m.mean = total / static_cast<double>(n);
  m.low = hn::GetLane(hn::MinOfLanes(d, low));
  m.high = hn::GetLane(hn::MaxOfLanes(d, high));
  if (m.low == m.high) return m;  // exactly zero, whatever the rounding of the mean
  // The sum above has an error of some units in the last place of T, and so has the mean: where scores differ
  // by no more than that, it is as large as their deviation. The differences to it are exact there; their own
  // mean is what is missing.
  const T mean = static_cast<T>(m.mean);
  double squares = 0, differences = 0;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = std::min(n, begin + kBlock);
    auto square = hn::Zero(d), sum = hn::Zero(d);
    std::int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      const auto v = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
      square = hn::MulAdd(v, v, square);
      sum = hn::Add(sum, v);
    }
    squares += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, square)));
    differences += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    for (; i < end; ++i) {
      const double v = static_cast<double>(x[i] - mean);
      squares += v * v;
      differences += v;
    }
  }
  const double shift = differences / static_cast<double>(n);
  m.mean = static_cast<double>(mean) + shift;
  m.variance = std::max(0.0, squares / static_cast<double>(n) - shift * shift);
  if (!std::isfinite(m.variance) || m.variance == 0) extreme_moments(x, n, m);
  return m;
}

// How many of x[0..n) are at least `bound`.
template <typename T>
HWY_INLINE std::int64_t count_at_least(const T* HWY_RESTRICT x, std::int64_t n, T bound) {
  const hn::ScalableTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto b = hn::Set(d, bound);
  std::int64_t count = 0;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    count += static_cast<std::int64_t>(hn::CountTrue(d, hn::Ge(hn::LoadU(d, x + i), b)));
  }
  for (; i < n; ++i) count += x[i] >= bound;
  return count;
}

// How many of x[0..n) are greater than `bound`.
template <typename T>
HWY_INLINE std::int64_t count_above(const T* HWY_RESTRICT x, std::int64_t n, T bound) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) count += x[i] > bound;
  return count;
}

// Copies the values in [low, high) to out, which has room for them and one vector more; returns how many.
template <typename T>
HWY_INLINE std::int64_t collect(const T* HWY_RESTRICT x, std::int64_t n, T low, T high, T* HWY_RESTRICT out) {
  const hn::ScalableTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto a = hn::Set(d, low), b = hn::Set(d, high);
  std::int64_t count = 0;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto inside = hn::And(hn::Ge(v, a), hn::Lt(v, b));
    if (hn::AllFalse(d, inside)) continue;
    // Compress, then store whole: compressing stores are slow on Zen 4.
    hn::StoreU(hn::Compress(v, inside), d, out + count);
    count += static_cast<std::int64_t>(hn::CountTrue(d, inside));
  }
  for (; i < n; ++i) {
    if (x[i] >= low && x[i] < high) out[count++] = x[i];
  }
  return count;
}

// Floats and doubles in the order of integers, and back: a search over them ends after as many steps as bits.
HWY_INLINE std::int64_t order_of(float x) {
  const std::int32_t bits = std::bit_cast<std::int32_t>(x);
  return bits < 0 ? static_cast<std::int64_t>(std::numeric_limits<std::int32_t>::min()) - bits : bits;
}
HWY_INLINE std::int64_t order_of(double x) {
  const std::int64_t bits = std::bit_cast<std::int64_t>(x);
  return bits < 0 ? std::numeric_limits<std::int64_t>::min() - bits : bits;
}
HWY_INLINE float from_order(std::int64_t order, float) {
  const std::int64_t bits = order < 0 ? std::numeric_limits<std::int32_t>::min() - order : order;
  return std::bit_cast<float>(static_cast<std::int32_t>(bits));
}
HWY_INLINE double from_order(std::int64_t order, double) {
  return std::bit_cast<double>(order < 0 ? std::numeric_limits<std::int64_t>::min() - order : order);
}

constexpr std::int64_t kFew = 1024;

// The k-th largest of x[0..n), 1 <= k <= n, all finite. few: room for kFew + 64 values. guess: any value.
template <typename T>
HWY_INLINE T kth_largest(const T* x, std::int64_t n, std::int64_t k, const Moments<T>& m, T guess, T* few) {
  // Invariant: count(>= low) >= k > count(>= high), so the answer lies in [low, high).
  T low = m.low;
  T high = std::nextafter(m.high, std::numeric_limits<T>::infinity());
  // Never a subnormal number: a thread that treats those as zero would find nothing below it.
  if (std::abs(high) < std::numeric_limits<T>::min()) high = std::numeric_limits<T>::min();
  std::int64_t at_low = n, at_high = 0;
  const double spread = std::sqrt(m.variance);
  // Scores per unit near the threshold, as if they were normally distributed: only a guide for the steps.
  const double density = 0.2 * static_cast<double>(n) / std::max(spread, 1e-30);
  T trial = guess;
  for (int step = 0; at_low - at_high > kFew; ++step) {
    const bool usable = trial > low && trial < high;
    if (step >= 6 || !usable) {  // halve the interval in the order of representable numbers
      const std::int64_t a = order_of(low), b = order_of(high);
      const std::int64_t middle =
          a + static_cast<std::int64_t>((static_cast<std::uint64_t>(b) - static_cast<std::uint64_t>(a)) / 2);
      if (middle == a) return low;  // nothing lies between: every candidate equals low
      trial = from_order(middle, T());
    }
    const std::int64_t count = count_at_least(x, n, trial);
    if (count >= k) {
      low = trial;
      at_low = count;
    } else {
      high = trial;
      at_high = count;
    }
    // Aim a little past the threshold, so that the two bounds close in from both sides.
    const double error = static_cast<double>(count - k);
    const double margin = 0.25 * static_cast<double>(kFew) + 0.1 * std::abs(error);
    trial = static_cast<T>(static_cast<double>(trial) + (error + (error >= 0 ? margin : -margin)) / density);
  }
  const std::int64_t count = collect(x, n, low, high, few);
  T* nth = few + (k - at_high - 1);
  std::nth_element(few, nth, few + count, std::greater<T>());
  return *nth;
}

// Up to which position scores equal to the k-th largest are taken; all of them (n - 1) where no tie is cut.
template <typename T>
HWY_INLINE std::int64_t tie_cut_of(const T* x, std::int64_t n, std::int64_t k, T threshold) {
  const std::int64_t reached = count_at_least(x, n, threshold);
  if (reached == k) return n - 1;
  std::int64_t left = k - count_above(x, n, threshold);
  for (std::int64_t i = 0; i < n; ++i) {
    if (x[i] == threshold && --left == 0) return i;
  }
  return n - 1;
}

// Bits of scores above the threshold, and of equal ones up to tie_cut. Writes whole words for n positions and
// zeros up to `words`.
template <typename T>
HWY_INLINE void write_mask(const T* HWY_RESTRICT x, std::int64_t n, T threshold, std::int64_t tie_cut,
                           std::uint32_t* HWY_RESTRICT out, std::int64_t words) {
  const hn::ScalableTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto t = hn::Set(d, threshold);
  std::int64_t w = 0;
  for (; (w + 1) * 32 <= n; ++w) {
    const T* part = x + w * 32;
    const bool ties_in = (w + 1) * 32 <= tie_cut + 1;
    std::uint32_t word = 0;
    if (ties_in || w * 32 > tie_cut) {
      for (std::int64_t i = 0; i < 32; i += lanes) {
        const auto v = hn::LoadU(d, part + i);
        std::uint8_t bytes[8] = {};
        hn::StoreMaskBits(d, ties_in ? hn::Ge(v, t) : hn::Gt(v, t), bytes);
        word |= static_cast<std::uint32_t>(bytes[0] | (bytes[1] << 8)) << i;
      }
    } else {  // the one word that holds the cut
      for (std::int64_t i = 0; i < 32; ++i) {
        const bool in = part[i] > threshold || (part[i] == threshold && w * 32 + i <= tie_cut);
        word |= static_cast<std::uint32_t>(in) << i;
      }
    }
    out[w] = word;
  }
  if (w * 32 < n) {
    std::uint32_t word = 0;
    for (std::int64_t s = w * 32; s < n; ++s) {
      const bool in = x[s] > threshold || (x[s] == threshold && s <= tie_cut);
      word |= static_cast<std::uint32_t>(in) << (s % 32);
    }
    out[w++] = word;
  }
  std::fill(out + w, out + words, 0u);
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#endif  // GSA_KERNELS_TOPK_INL_H_
