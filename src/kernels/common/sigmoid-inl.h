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

// 1 / (1 + e^-x). The part of log2(e) that float drops is added again: with |x| near 80 it would cost 7 bits.
HWY_INLINE FloatVec sigmoid(FloatVec x) {
  const FloatTag d;
  const FloatVec y = hn::Mul(x, hn::Set(d, -1.44269502f));
  const FloatVec rest = hn::MulSub(x, hn::Set(d, -1.44269502f), y);
  const FloatVec low = hn::MulAdd(x, hn::Set(d, -1.92596303e-8f), rest);
  const FloatVec e = power_of_two(d, hn::Min(hn::Set(d, 126.0f), y));
  const FloatVec corrected = hn::MulAdd(e, hn::Mul(low, hn::Set(d, 0.693147182f)), e);
  return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), corrected));
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
