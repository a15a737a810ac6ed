// rms_norm on the CPU: a row is converted to the arithmetic type, worked on in cache and stored; bound by
// memory.
// Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm/rms_norm_cpu.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <vector>

#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "kernels/common/numeric-inl.h"
#include "kernels/rms_norm/rms_norm_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

// Tokens of a task. Sums over tokens are formed task by task: their order depends on this alone.
constexpr std::int64_t kTaskTokens = 64;

// The sum of f(i) over a row, in kPad lanes that meet at the end: vectors may be used, the order is fixed.
template <typename T, class F>
HWY_INLINE T sum_row(std::int64_t size, const F& f) {
  T lanes[kPad] = {};
  for (std::int64_t c = 0; c < padded(size); c += kPad) {
    for (std::int64_t i = 0; i < kPad; ++i) lanes[i] += f(c + i);
  }
  T sum = 0;
  for (const T lane : lanes) sum += lane;
  return sum;
}

template <class Body>
void for_token_tasks(std::int64_t tokens, const Parallel& parallel, const Body& body) {
  parallel.run((tokens + kTaskTokens - 1) / kTaskTokens, [&](std::int64_t task, int) {
    body(task, task * kTaskTokens, std::min(tokens, (task + 1) * kTaskTokens));
  });
}

template <typename T>
hwy::AlignedFreeUniquePtr<T[]> scratch_rows(std::int64_t rows, std::int64_t size) {
  return hwy::AllocateAligned<T>(static_cast<std::size_t>(rows * padded(size)));
}

template <typename T>
void rms_norm_typed(const RmsNormArgs& a, const Parallel& parallel) {
  const auto [dtype, tokens, size, eps] = a.shape;
  const auto weight = scratch_rows<T>(1, size);
  load_row<T>(weight.get(), a.weight, dtype, size, T(1));
  for_token_tasks(tokens, parallel, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    const auto memory = scratch_rows<T>(2, size);
    T* const s = memory.get();
    T* const branch = s + padded(size);
    for (std::int64_t t = begin; t < end; ++t) {
      load_row<T>(s, at(a.x, dtype, t * size), dtype, size, T(1));
      if (a.branch != nullptr) {
        load_row<T>(branch, at(a.branch, dtype, t * size), dtype, size, T(1));
        for (std::int64_t i = 0; i < padded(size); ++i) s[i] += branch[i];
        store_row<T>(at(a.sum, dtype, t * size), dtype, s, size, T(1));
        load_row<T>(s, at(a.sum, dtype, t * size), dtype, size, T(1));
      }
      const T square = sum_row<T>(size, [&](std::int64_t i) { return s[i] * s[i]; });
      const T rstd = T(1) / std::sqrt(square / static_cast<T>(size) + static_cast<T>(eps));
      static_cast<T*>(a.rstd)[t] = rstd;
      for (std::int64_t i = 0; i < padded(size); ++i) s[i] = s[i] * rstd * weight[i];
      store_row<T>(at(a.y, dtype, t * size), dtype, s, size, T(1));
    }
  });
}

template <typename T>
void rms_norm_backward_typed(const RmsNormBackwardArgs& a, const Parallel& parallel) {
  const auto [dtype, tokens, size, eps] = a.shape;
  const std::int64_t width = padded(size), tasks = (tokens + kTaskTokens - 1) / kTaskTokens;
  const auto weight = scratch_rows<T>(1, size);
  if (tokens > 0) load_row<T>(weight.get(), a.weight, dtype, size, T(1));
  std::vector<T> parts(static_cast<std::size_t>(tasks * width));  // of dweight, one row a task
  for_token_tasks(tokens, parallel, [&](std::int64_t task, std::int64_t begin, std::int64_t end) {
    const auto memory = scratch_rows<T>(3, size);
    T* const n = memory.get();
    T* const dy = n + width;
    T* const dsum = dy + width;
    T* const part = parts.data() + task * width;
    std::fill_n(dsum, width, T(0));
    for (std::int64_t t = begin; t < end; ++t) {
      const T rstd = static_cast<const T*>(a.rstd)[t];
      load_row<T>(n, at(a.sum, dtype, t * size), dtype, size, rstd);
      load_row<T>(dy, at(a.dy, dtype, t * size), dtype, size, T(1));
      if (a.dsum != nullptr) load_row<T>(dsum, at(a.dsum, dtype, t * size), dtype, size, T(1));
      for (std::int64_t i = 0; i < width; ++i) {
        part[i] += dy[i] * n[i];
        dy[i] *= weight[i];
      }
      const T mean = sum_row<T>(size, [&](std::int64_t i) { return dy[i] * n[i]; }) / static_cast<T>(size);
      for (std::int64_t i = 0; i < width; ++i) dy[i] = dsum[i] + rstd * (dy[i] - n[i] * mean);
      store_row<T>(at(a.dx, dtype, t * size), dtype, dy, size, T(1));
    }
  });
  T* const dweight = static_cast<T*>(a.dweight);
  std::fill_n(dweight, size, T(0));
  for (std::int64_t task = 0; task < tasks; ++task) {
    for (std::int64_t i = 0; i < size; ++i) dweight[i] += parts[static_cast<std::size_t>(task * width + i)];
  }
}

void rms_norm_target(const RmsNormArgs& a, const Parallel& parallel) {
  a.shape.dtype == DType::f64 ? rms_norm_typed<double>(a, parallel) : rms_norm_typed<float>(a, parallel);
}
void rms_norm_backward_target(const RmsNormBackwardArgs& a, const Parallel& parallel) {
  a.shape.dtype == DType::f64 ? rms_norm_backward_typed<double>(a, parallel)
                              : rms_norm_backward_typed<float>(a, parallel);
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(rms_norm_target);
HWY_EXPORT(rms_norm_backward_target);
void rms_norm_cpu(const RmsNormArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(rms_norm_target)(args, parallel);
}
void rms_norm_backward_cpu(const RmsNormBackwardArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(rms_norm_backward_target)(args, parallel);
}
}  // namespace gsa
#endif
