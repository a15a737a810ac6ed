// What the kernels' tests share: tensors of any storage type and layout, seeded random numbers, and the ways
// to compare results. Tensors are filled with NaN first, also between their rows, so that an operator that
// reads what it must not read, or forgets to write, shows.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "backend.h"
#include "gsa/dtype.h"
#include "gsa/error.h"
#include "gsa/tensor_view.h"

namespace gsa::testing {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

// ---- storage types

struct Format {
  int mantissa_bits;  // stored, without the leading one
  int min_exponent;   // of the smallest normal number
  int max_exponent;   // of the largest finite number
};

inline Format format_of(DType type) {
  switch (type) {
    case DType::f32:
      return {23, -126, 127};
    case DType::f64:
      return {52, -1022, 1023};
    case DType::bf16:
      return {7, -126, 127};
    case DType::f16:
      return {10, -14, 15};
  }
  throw Error("unknown dtype");
}

// The error of one rounding to nearest, relative to the number rounded.
inline double rounding_unit(DType type) { return std::ldexp(1.0, -format_of(type).mantissa_bits - 1); }

// What operators accumulate and return sums in.
inline DType real_of(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

// The nearest number of the format; ties to even (the default rounding mode of nearbyint).
inline double round_to(DType type, double x) {
  if (type == DType::f64 || x == 0 || !std::isfinite(x)) return x;
  const Format format = format_of(type);
  const int exponent = std::max(std::ilogb(x), format.min_exponent);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, format.mantissa_bits - exponent)),
                                    exponent - format.mantissa_bits);
  return std::ilogb(rounded) > format.max_exponent ? std::copysign(kInf, x) : rounded;
}

inline std::uint64_t encode(DType type, double x) {
  if (type == DType::f64) return std::bit_cast<std::uint64_t>(x);
  const double rounded = round_to(type, x);
  if (type == DType::f32) return std::bit_cast<std::uint32_t>(static_cast<float>(rounded));
  if (type == DType::bf16) return std::bit_cast<std::uint32_t>(static_cast<float>(rounded)) >> 16;
  const std::uint64_t sign = std::signbit(x) ? 0x8000u : 0u;
  if (std::isnan(x)) return sign | 0x7e00u;
  if (std::isinf(rounded)) return sign | 0x7c00u;
  if (rounded == 0) return sign;
  // In units of the smallest subnormal the encoding is a plain integer up to the first binade; above it each
  // binade adds 1024.
  const int exponent = std::max(std::ilogb(rounded), -14);
  const auto units = static_cast<std::uint64_t>(std::ldexp(std::abs(rounded), 10 - exponent));
  return sign | (static_cast<std::uint64_t>(exponent + 14) * 1024 + units);
}

inline double decode(DType type, std::uint64_t bits) {
  if (type == DType::f64) return std::bit_cast<double>(bits);
  if (type == DType::f32) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  if (type == DType::bf16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits << 16));
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const double fraction = static_cast<double>(bits & 1023);
  if (exponent == 31) return fraction != 0 ? kNan : sign * kInf;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

// ---- tensors

enum class Layout {
  tokens_first,  // [tokens, heads, size], contiguous
  heads_first,   // [heads, tokens, size]: a transposed view
  gaps,          // space between rows and heads, data not aligned to more than an element
  wide_gaps,     // the same in steps of 8 elements, so that rows stay aligned
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::int64_t tokens, std::int64_t heads, std::int64_t size,
         Layout layout = Layout::tokens_first)
      : dtype_(dtype), tokens_(tokens), heads_(heads), size_(size), layout_(layout) {
    std::int64_t elements = tokens * heads * size;
    token_stride_ = heads * size;
    head_stride_ = size;
    if (layout == Layout::heads_first) {
      token_stride_ = size;
      head_stride_ = tokens * size;
    } else if (layout == Layout::gaps) {
      head_stride_ = size + 3;
      token_stride_ = heads * head_stride_ + 5;
      offset_ = 1;
      elements = offset_ + tokens * token_stride_;
    } else if (layout == Layout::wide_gaps) {
      head_stride_ = (size + 15) / 8 * 8;
      token_stride_ = heads * head_stride_ + 24;
      offset_ = 8;
      elements = offset_ + tokens * token_stride_;
    }
    bytes_.resize(static_cast<std::size_t>(elements) * size_of(dtype));
    for (std::int64_t e = 0; e < elements; ++e) store(e, encode(dtype_, kNan));
  }

  static Tensor reals(DType dtype, std::int64_t count) { return Tensor(real_of(dtype), count, 1, 1); }

  DType dtype() const { return dtype_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t heads() const { return heads_; }
  std::int64_t size() const { return size_; }

  // Null when there is no element, as with an empty tensor of a framework.
  void* data() { return bytes_.empty() ? nullptr : bytes_.data() + offset_ * size_of(dtype_); }
  const void* data() const { return const_cast<Tensor*>(this)->data(); }
  Rows rows() { return {data(), token_stride_, head_stride_}; }
  ConstRows rows() const { return {data(), token_stride_, head_stride_}; }

  std::uint64_t bits(std::int64_t t, std::int64_t h = 0, std::int64_t c = 0) const {
    std::uint64_t value = 0;
    std::memcpy(&value, &bytes_[index(t, h, c) * size_of(dtype_)], size_of(dtype_));
    return value;
  }
  double at(std::int64_t t, std::int64_t h = 0, std::int64_t c = 0) const {
    return decode(dtype_, bits(t, h, c));
  }
  void set(std::int64_t t, std::int64_t h, std::int64_t c, double x) {
    store(index(t, h, c), encode(dtype_, x));
  }

  Tensor& fill(const std::function<double()>& next) {
    for (std::int64_t t = 0; t < tokens_; ++t) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        for (std::int64_t c = 0; c < size_; ++c) set(t, h, c, next());
      }
    }
    return *this;
  }
  Tensor& fill_token(std::int64_t t, double x) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t c = 0; c < size_; ++c) set(t, h, c, x);
    }
    return *this;
  }

  // Tokens begin .. end - 1 as [tokens, heads, size], contiguous.
  template <typename T>
  std::vector<T> values(std::int64_t begin, std::int64_t end) const {
    std::vector<T> result;
    result.reserve((end - begin) * heads_ * size_);
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        for (std::int64_t c = 0; c < size_; ++c) result.push_back(static_cast<T>(at(t, h, c)));
      }
    }
    return result;
  }
  template <typename T>
  std::vector<T> values() const {
    return values<T>(0, tokens_);
  }

  // A copy of tokens begin .. end - 1 in the same layout.
  Tensor slice(std::int64_t begin, std::int64_t end) const {
    Tensor result(dtype_, end - begin, heads_, size_, layout_);
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        for (std::int64_t c = 0; c < size_; ++c) result.store(result.index(t - begin, h, c), bits(t, h, c));
      }
    }
    return result;
  }

  // Whether nothing was written between the rows.
  bool gaps_intact() const {
    Tensor blank(*this);
    for (std::int64_t t = 0; t < tokens_; ++t) blank.fill_token(t, kNan);
    return blank.bytes_ == Tensor(dtype_, tokens_, heads_, size_, layout_).bytes_;
  }

 private:
  std::size_t index(std::int64_t t, std::int64_t h, std::int64_t c) const {
    return static_cast<std::size_t>(offset_ + t * token_stride_ + h * head_stride_ + c);
  }
  void store(std::size_t element, std::uint64_t value) {
    std::memcpy(&bytes_[element * size_of(dtype_)], &value, size_of(dtype_));
  }

  DType dtype_ = DType::f32;
  std::int64_t tokens_ = 0, heads_ = 0, size_ = 0;
  Layout layout_ = Layout::tokens_first;
  std::int64_t token_stride_ = 0, head_stride_ = 0, offset_ = 0;
  std::vector<unsigned char> bytes_;
};

// ---- random numbers: the same on every machine, which the distributions of <random> are not

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {  // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n));
  }
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

// ---- comparisons

// Bit for bit, NaN included.
inline ::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (a.tokens() != b.tokens() || a.heads() != b.heads() || a.size() != b.size() || a.dtype() != b.dtype()) {
    return ::testing::AssertionFailure() << "shapes or types differ";
  }
  for (std::int64_t t = 0; t < a.tokens(); ++t) {
    for (std::int64_t h = 0; h < a.heads(); ++h) {
      for (std::int64_t c = 0; c < a.size(); ++c) {
        if (a.bits(t, h, c) != b.bits(t, h, c)) {
          return ::testing::AssertionFailure()
                 << "at [" << t << ", " << h << ", " << c << "]: " << a.at(t, h, c) << " and "
                 << b.at(t, h, c) << " differ";
        }
      }
    }
  }
  return ::testing::AssertionSuccess();
}

// As same_bits on a backend where a query's bits depend on its own selection alone. Where they depend on the
// earlier queries of its tile too, roundings may differ: each side errs by one of the stored type (and by
// some in float, where the order of sums differs).
inline ::testing::AssertionResult same_up_to_tiles(const Tensor& a, const Tensor& b) {
  if (backend::traits().tile == 1) return same_bits(a, b);
  const std::vector<double> x = a.values<double>(), y = b.values<double>();
  double largest = 0;
  for (const double value : y) largest = std::max(largest, std::isfinite(value) ? std::abs(value) : 0);
  const double bound = 4 * (rounding_unit(a.dtype()) + 8 * rounding_unit(DType::f32)) * largest;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool same = std::isfinite(y[i]) ? std::abs(x[i] - y[i]) <= bound
                                          : std::isnan(x[i]) == std::isnan(y[i]) && !std::isfinite(x[i]);
    if (!same) return ::testing::AssertionFailure() << "at " << i << ": " << x[i] << " and " << y[i];
  }
  return ::testing::AssertionSuccess();
}

// How large the error of a result may be: factor times the error of the plain implementation, and never less
// than rounding the largest value to the type the result is stored in, as often as `roundings` says. Where
// larger terms cancel on the way to the result, `terms` is their size times the roundings they went through
// in the type of the arithmetic. `defined` comes on top: what the backend's own definition differs by.
struct Tolerance {
  double factor;
  DType stored;
  double roundings;
  double terms;
  double defined = 0;
};
inline Tolerance forward_tolerance(DType stored, double roundings = 1, double terms = 0) {
  return {2, stored, roundings, terms};
}
inline Tolerance gradient_tolerance(DType stored, double terms = 0) { return {3, stored, 1, terms}; }

// actual is ours, exact the reference at higher precision, plain the reference in the precision of our
// accumulators, both from the same stored inputs. NaN must stand in the same places.
template <typename Exact, typename Plain>
::testing::AssertionResult accurate(const Tensor& actual, const std::vector<Exact>& exact,
                                    const std::vector<Plain>& plain, const Tolerance& tolerance) {
  const std::vector<Exact> got = actual.values<Exact>();
  if (got.size() != exact.size() || got.size() != plain.size()) {
    return ::testing::AssertionFailure() << "sizes differ: " << got.size() << ", " << exact.size();
  }
  Exact error = 0, plain_error = 0, largest = 0;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) != std::isnan(exact[i]) || std::isinf(got[i]) != std::isinf(exact[i])) {
      return ::testing::AssertionFailure() << "at " << i << ": " << got[i] << ", expected " << exact[i];
    }
    if (!std::isfinite(exact[i])) continue;
    const double rounded = round_to(tolerance.stored, static_cast<double>(plain[i]));
    plain_error = std::max(plain_error, std::abs(static_cast<Exact>(rounded) - exact[i]));
    largest = std::max(largest, std::abs(exact[i]));
    if (std::abs(got[i] - exact[i]) > error) {
      error = std::abs(got[i] - exact[i]);
      worst = i;
    }
  }
  const double stored_unit = rounding_unit(tolerance.stored),
               real_unit = rounding_unit(real_of(tolerance.stored));
  const Exact floor = std::max(static_cast<Exact>(tolerance.roundings * stored_unit) * largest,
                               static_cast<Exact>(tolerance.terms * real_unit));
  const Exact slack = backend::error_slack(tolerance.stored);
  const Exact bound = slack * std::max(static_cast<Exact>(tolerance.factor) * plain_error, floor) +
                      static_cast<Exact>(tolerance.defined);
  if (error <= bound) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "at " << worst << ": " << got[worst] << ", expected " << exact[worst] << "; error " << error
         << " above " << bound << " (plain implementation " << plain_error << ", largest value " << largest
         << ")";
}

// Whether `gradient` is the derivative of objective() by each element of `input` (float64), by central
// differences. With a step of 1e-5 the objective's curvature and its rounding each leave an error of some
// 1e-10.
inline ::testing::AssertionResult is_derivative(const std::function<double()>& objective, Tensor& input,
                                                const Tensor& gradient) {
  constexpr double kStep = 1e-5, kTolerance = 1e-8;
  for (std::int64_t t = 0; t < input.tokens(); ++t) {
    for (std::int64_t h = 0; h < input.heads(); ++h) {
      for (std::int64_t c = 0; c < input.size(); ++c) {
        const double x = input.at(t, h, c);
        input.set(t, h, c, x + kStep);
        const double above = objective();
        input.set(t, h, c, x - kStep);
        const double below = objective();
        input.set(t, h, c, x);
        const double slope = (above - below) / (2 * kStep), got = gradient.at(t, h, c);
        if (!(std::abs(slope - got) <= kTolerance * (1 + std::abs(slope)))) {
          return ::testing::AssertionFailure()
                 << "at [" << t << ", " << h << ", " << c << "]: " << got << ", by differences " << slope;
        }
      }
    }
  }
  return ::testing::AssertionSuccess();
}

// Runs body and checks that it throws an Error of the form that bad_argument() gives.
inline ::testing::AssertionResult refuses(const std::string& op, const std::string& argument,
                                          const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string text = error.what();
    const bool well_formed = text.rfind("gsa::" + op + ": argument '", 0) == 0 &&
                             text.find("': expected ") != std::string::npos &&
                             text.find(", got ") != std::string::npos;
    if (!well_formed) return ::testing::AssertionFailure() << "not a complaint of " << op << ": " << text;
    if (text.find("argument '" + argument + "'") == std::string::npos) {
      return ::testing::AssertionFailure() << "does not name '" << argument << "': " << text;
    }
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "nothing was thrown for '" << argument << "'";
}

}  // namespace gsa::testing
