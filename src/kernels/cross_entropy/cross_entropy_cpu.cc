// cross_entropy on the CPU. A row passes through cache-sized scratch memory chunk by chunk, twice: maximum
// and sum, then gradient. The sum runs in kPad lanes that meet at the end: an order that the row's size
// fixes. Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cross_entropy/cross_entropy_cpu.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/common/numeric-inl.h"
#include "kernels/cross_entropy/cross_entropy_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

constexpr std::int64_t kLogitsChunk = 2048;

// x[0..size) <- e^(x - maximum), size a multiple of kPad; their sums are added to lanes. The difference is
// taken first: scaled to powers of two, large logits would lose bits.
HWY_INLINE void powers(float* HWY_RESTRICT x, std::int64_t size, float maximum, float* HWY_RESTRICT lanes) {
  const hn::CappedTag<float, kPad> d;
  const std::int64_t step = static_cast<std::int64_t>(hn::Lanes(d));
  const auto m = hn::Set(d, maximum), scale = hn::Set(d, static_cast<float>(Base<float>::kLogE));
  for (std::int64_t c = 0; c < size; c += kPad) {
    for (std::int64_t i = 0; i < kPad; i += step) {
      const auto p = power_of_two(d, hn::Mul(scale, hn::Sub(hn::Load(d, x + c + i), m)));
      hn::Store(p, d, x + c + i);
      hn::Store(hn::Add(hn::Load(d, lanes + i), p), d, lanes + i);
    }
  }
}
HWY_INLINE void powers(double* x, std::int64_t size, double maximum, double* lanes) {
  for (std::int64_t i = 0; i < size; ++i) {
    x[i] = std::exp(x[i] - maximum);
    lanes[i % kPad] += x[i];
  }
}

// NaN is the maximum where there is one.
template <typename T>
HWY_INLINE T maximum_of(const T* x, std::int64_t size, T maximum) {
  bool nan = false;
  for (std::int64_t i = 0; i < size; ++i) {
    maximum = x[i] > maximum ? x[i] : maximum;
    nan |= x[i] != x[i];
  }
  return nan ? std::numeric_limits<T>::quiet_NaN() : maximum;
}

template <typename T>
class LogitsRow {
 public:
  LogitsRow(const CrossEntropyArgs& args, std::int64_t token)
      : dtype_(args.dtype), classes_(args.classes), row_(at(args.logits, dtype_, token * classes_)) {}

  // Maximum, and sum of e^(z - maximum).
  void scan() {
    for_chunks([&](std::int64_t c, std::int64_t size) {
      load(c, size);
      const T before = maximum_;
      maximum_ = maximum_of(x_, size, before);
      // A row that begins with -inf alone has no sum yet, and -inf - (-inf) is no number.
      if (maximum_ == -std::numeric_limits<T>::infinity()) return;
      const T factor = std::exp(before - maximum_);
      for (T& lane : lanes_) lane *= factor;
      powers(x_, padded(size), maximum_, lanes_);
    });
    for (const T lane : lanes_) sum_ += lane;
  }

  // log of the sum of e^z.
  T lse() const { return maximum_ + std::log(sum_); }

  // The row becomes softmax - [j = target].
  void to_gradient(std::int64_t target) {
    const T inverse = T(1) / sum_;
    HWY_ALIGN T unused[kPad] = {};
    for_chunks([&](std::int64_t c, std::int64_t size) {
      load(c, size);
      powers(x_, padded(size), maximum_, unused);
      for (std::int64_t i = 0; i < size; ++i) x_[i] *= inverse;
      if (target >= c && target < c + size) x_[target - c] -= T(1);
      store_row<T>(at(row_, dtype_, c), dtype_, x_, size, T(1));
    });
  }

  void to_zero() {
    std::fill_n(static_cast<char*>(row_), classes_ * static_cast<std::int64_t>(size_of(dtype_)), char(0));
  }

 private:
  template <class Body>
  void for_chunks(const Body& body) {
    for (std::int64_t c = 0; c < classes_; c += kLogitsChunk) body(c, std::min(kLogitsChunk, classes_ - c));
  }

  void load(std::int64_t c, std::int64_t size) {
    load_row<T>(x_, at(row_, dtype_, c), dtype_, size, T(1));
    std::fill(x_ + size, x_ + padded(size), -std::numeric_limits<T>::infinity());
  }

  DType dtype_;
  std::int64_t classes_;
  void* row_;
  HWY_ALIGN T x_[kLogitsChunk];
  HWY_ALIGN T lanes_[kPad] = {};
  T maximum_ = -std::numeric_limits<T>::infinity();
  T sum_ = 0;
};

template <typename T>
void cross_entropy_typed(const CrossEntropyArgs& a, const Parallel& parallel) {
  parallel.run(a.tokens, [&](std::int64_t token, int) {
    const std::int64_t target = a.targets[token];
    T& loss = static_cast<T*>(a.loss)[token];
    LogitsRow<T> row(a, token);
    if (target == a.ignored) {
      loss = 0;
      if (a.gradient) row.to_zero();
      return;
    }
    // Read first: the gradient overwrites it.
    const T at_target = load_value<T>(at(a.logits, a.dtype, token * a.classes + target), a.dtype);
    row.scan();
    loss = row.lse() - at_target;
    if (a.gradient) row.to_gradient(target);
  });
}

void cross_entropy_target(const CrossEntropyArgs& a, const Parallel& parallel) {
  a.dtype == DType::f64 ? cross_entropy_typed<double>(a, parallel) : cross_entropy_typed<float>(a, parallel);
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(cross_entropy_target);
void cross_entropy_cpu(const CrossEntropyArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(cross_entropy_target)(args, parallel);
}
}  // namespace gsa
#endif
