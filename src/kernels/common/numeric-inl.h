// Vector helpers: powers of two, and rows between their storage type and the arithmetic type.
// Included once per Highway target (no ordinary include guard).
#if defined(GSA_KERNELS_NUMERIC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GSA_KERNELS_NUMERIC_INL_H_
#undef GSA_KERNELS_NUMERIC_INL_H_
#else
#define GSA_KERNELS_NUMERIC_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "gsa/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows in scratch memory are padded with zeros to a whole number of the widest vectors.
constexpr std::int64_t kPad = 16;
constexpr std::int64_t padded(std::int64_t size) { return (size + kPad - 1) / kPad * kPad; }

// float works in powers of two (scores are scaled by log2 e on the way in); double in powers of e.
template <typename T>
struct Base {
  static constexpr double kLogE = 1.4426950408889634;  // log of e in this base
};
template <>
struct Base<double> {
  static constexpr double kLogE = 1.0;
};
HWY_INLINE float power(float x) { return std::exp2(x); }
HWY_INLINE double power(double x) { return std::exp(x); }

// Bounds that let NaN through on every target: Max and Min drop it on some, and on others by order of
// operands.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V at_least(D d, float bound, V x) {
  const V b = hn::Set(d, bound);
  return hn::IfThenElse(hn::Lt(x, b), b, x);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V at_most(D d, float bound, V x) {
  const V b = hn::Set(d, bound);
  return hn::IfThenElse(hn::Gt(x, b), b, x);
}

// 2^x, relative error below 1e-7; 0 below 2^-126, infinite from 127.5 on; NaN stays NaN. x above `most`
// counts as `most`.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V power_of_two(D d, V x, float max_exponent = 128.0f) {
  const hn::RebindToSigned<D> di;
  const V clamped = at_most(d, max_exponent, at_least(d, -127.0f, x));
  const auto n = hn::NearestInt(clamped);
  const V r = hn::Sub(clamped, hn::ConvertTo(d, n));
  V p = hn::Set(d, 1.5370704932138324e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3399848248809576e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 9.618373587727547e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.550329014658928e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.4022647738456726e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.931471824645996e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  return hn::Mul(p, power);
}

HWY_INLINE float float_from_bf16(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Round to nearest, ties to even; NaN stays NaN.
HWY_INLINE std::uint16_t bf16_from_float(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>(value == value ? rounded : quiet);
}

// Conversions from and to float16 run on whole vectors, into and out of which rows of any size are copied.
using HalfTag = hn::CappedTag<float, 16>;
constexpr std::int64_t kHalfLanes = static_cast<std::int64_t>(hn::MaxLanes(HalfTag()));

#if HWY_TARGET == HWY_SSE4
// Highway emulates float16 here without NaN and without rounding to nearest: do it by hand.
HWY_INLINE void halves_to_floats(const hwy::float16_t* src, float* dst) {
  for (std::int64_t i = 0; i < kHalfLanes; ++i) {
    std::uint16_t half;
    std::memcpy(&half, src + i, sizeof half);
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t rest = half & 0x7FFFu;
    float magnitude;
    if (rest >= 0x7C00u) {  // infinity and NaN
      const std::uint32_t bits = 0x7F800000u | ((rest & 0x3FFu) << 13);
      std::memcpy(&magnitude, &bits, sizeof bits);
    } else {  // 2^112 moves the exponent's bias, subnormal numbers included
      const std::uint32_t bits = rest << 13;
      std::memcpy(&magnitude, &bits, sizeof bits);
      magnitude *= 0x1p112f;
    }
    std::uint32_t bits;
    std::memcpy(&bits, &magnitude, sizeof bits);
    bits |= sign;
    std::memcpy(dst + i, &bits, sizeof bits);
  }
}

HWY_INLINE void floats_to_halves(const float* src, hwy::float16_t* dst) {
  for (std::int64_t i = 0; i < kHalfLanes; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, src + i, sizeof bits);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    bits &= 0x7FFFFFFFu;
    std::uint32_t half;
    if (bits > 0x7F800000u) {  // NaN
      half = 0x7E00u | ((bits >> 13) & 0x1FFu);
    } else if (bits >= 0x477FF000u) {  // rounds to 65536 or more
      half = 0x7C00u;
    } else if (bits < 0x38800000u) {  // subnormal: the sum rounds to a multiple of 2^-24
      float magnitude;
      std::memcpy(&magnitude, &bits, sizeof bits);
      magnitude += 0.5f;
      std::memcpy(&half, &magnitude, sizeof half);
      half -= 0x3F000000u;
    } else {
      half = (bits - 0x38000000u + 0xFFFu + ((bits >> 13) & 1u)) >> 13;
    }
    const std::uint16_t result = static_cast<std::uint16_t>(sign | half);
    std::memcpy(dst + i, &result, sizeof result);
  }
}
#else
HWY_INLINE void halves_to_floats(const hwy::float16_t* src, float* dst) {
  const hn::Rebind<hwy::float16_t, HalfTag> d16;
  hn::StoreU(hn::PromoteTo(HalfTag(), hn::LoadU(d16, src)), HalfTag(), dst);
}

HWY_INLINE void floats_to_halves(const float* src, hwy::float16_t* dst) {
  const hn::Rebind<hwy::float16_t, HalfTag> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::LoadU(HalfTag(), src)), d16, dst);
}
#endif

// dst[0..size) = scale * src[0..size), dst[size..padded) = 0. dst is aligned scratch.
template <typename T>
HWY_INLINE void load_row(T* HWY_RESTRICT dst, const void* src, DType type, std::int64_t size, T scale) {
  switch (type) {
    case DType::f32: {
      const float* s = static_cast<const float*>(src);
      for (std::int64_t i = 0; i < size; ++i) dst[i] = scale * static_cast<T>(s[i]);
      break;
    }
    case DType::f64: {
      const double* s = static_cast<const double*>(src);
      for (std::int64_t i = 0; i < size; ++i) dst[i] = scale * static_cast<T>(s[i]);
      break;
    }
    case DType::bf16: {
      const std::uint16_t* s = static_cast<const std::uint16_t*>(src);
      for (std::int64_t i = 0; i < size; ++i) dst[i] = scale * static_cast<T>(float_from_bf16(s[i]));
      break;
    }
    case DType::f16: {
      const hwy::float16_t* s = static_cast<const hwy::float16_t*>(src);
      for (std::int64_t i = 0; i < size; i += kHalfLanes) {
        const std::int64_t count = size - i < kHalfLanes ? size - i : kHalfLanes;
        hwy::float16_t raw[kHalfLanes] = {};
        if (count < kHalfLanes) std::memcpy(raw, s + i, static_cast<std::size_t>(count) * sizeof(raw[0]));
        float part[kHalfLanes];
        halves_to_floats(count < kHalfLanes ? raw : s + i, part);
        for (std::int64_t j = 0; j < count; ++j) dst[i + j] = scale * static_cast<T>(part[j]);
      }
      break;
    }
  }
  for (std::int64_t i = size; i < padded(size); ++i) dst[i] = T(0);
}

template <typename T>
HWY_INLINE T load_value(const void* src, DType type) {
  HWY_ALIGN T row[kPad] = {};
  load_row<T>(row, src, type, 1, T(1));
  return row[0];
}

// dst[0..size) = scale * src[0..size), rounded to the storage type.
template <typename T>
HWY_INLINE void store_row(void* dst, DType type, const T* HWY_RESTRICT src, std::int64_t size, T scale) {
  switch (type) {
    case DType::f32: {
      float* out = static_cast<float*>(dst);
      for (std::int64_t i = 0; i < size; ++i) out[i] = static_cast<float>(scale * src[i]);
      break;
    }
    case DType::f64: {
      double* out = static_cast<double*>(dst);
      for (std::int64_t i = 0; i < size; ++i) out[i] = static_cast<double>(scale * src[i]);
      break;
    }
    case DType::bf16: {
      std::uint16_t* out = static_cast<std::uint16_t*>(dst);
      for (std::int64_t i = 0; i < size; ++i) out[i] = bf16_from_float(static_cast<float>(scale * src[i]));
      break;
    }
    case DType::f16: {
      hwy::float16_t* out = static_cast<hwy::float16_t*>(dst);
      for (std::int64_t i = 0; i < size; i += kHalfLanes) {
        const std::int64_t count = size - i < kHalfLanes ? size - i : kHalfLanes;
        float part[kHalfLanes] = {};
        for (std::int64_t j = 0; j < count; ++j) part[j] = static_cast<float>(scale * src[i + j]);
        if (count == kHalfLanes) {
          floats_to_halves(part, out + i);
        } else {
          hwy::float16_t raw[kHalfLanes];
          floats_to_halves(part, raw);
          std::memcpy(out + i, raw, static_cast<std::size_t>(count) * sizeof(raw[0]));
        }
      }
      break;
    }
  }
}

// Where element [token, head, 0] of a tensor lies.
HWY_INLINE const void* at(const void* data, DType type, std::int64_t offset) {
  return static_cast<const char*>(data) + offset * static_cast<std::int64_t>(size_of(type));
}
HWY_INLINE void* at(void* data, DType type, std::int64_t offset) {
  return static_cast<char*>(data) + offset * static_cast<std::int64_t>(size_of(type));
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#endif  // GSA_KERNELS_NUMERIC_INL_H_
