// The logistic function over rows of scratch memory. Included once per Highway target.
#if defined(GSA_KERNELS_SIGMOID_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GSA_KERNELS_SIGMOID_INL_H_
#undef GSA_KERNELS_SIGMOID_INL_H_
#else
#define GSA_KERNELS_SIGMOID_INL_H_
#endif

#include "kernels/common/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 1 / (1 + e^-x); 0 and 1 at the infinities, NaN stays NaN. The part of log2(e) that float drops is
// multiplied in again: with |x| near 80 it would cost 7 bits.
HWY_INLINE FloatVec sigmoid(FloatVec x) {
  const FloatTag d;
  const FloatVec bounded = at_most(d, 90.0f, at_least(d, -90.0f, x));
  const FloatVec y = hn::Mul(bounded, hn::Set(d, -1.44269502f));
  const FloatVec rest = hn::MulSub(bounded, hn::Set(d, -1.44269502f), y);
  const FloatVec low = hn::MulAdd(bounded, hn::Set(d, -1.92596303e-8f), rest);
  const FloatVec e = power_of_two(d, y);
  const FloatVec correction = hn::MulAdd(low, hn::Set(d, 0.693147182f), hn::Set(d, 1.0f));
  return hn::Div(hn::Set(d, 1.0f), hn::MulAdd(e, correction, hn::Set(d, 1.0f)));
}

// x <- sigmoid(x) for x[0..size); x has room for padded(size) values.
HWY_INLINE void sigmoid_row(float* HWY_RESTRICT x, std::int64_t size) {
  const FloatTag d;
  for (std::int64_t i = 0; i < size; i += kLanes) hn::Store(sigmoid(hn::Load(d, x + i)), d, x + i);
}

HWY_INLINE void sigmoid_row(double* x, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) x[i] = 1 / (1 + std::exp(-x[i]));
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#endif  // GSA_KERNELS_SIGMOID_INL_H_
