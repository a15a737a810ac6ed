// append on the CPU: head by head, converted to the arithmetic type, rotated or gated, and stored; bound by
// memory.
// Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/append/append_cpu.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/append/append_cpu.h"
#include "kernels/common/checks.h"
#include "kernels/common/numeric-inl.h"
#include "kernels/common/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

// One token's row, read from the front.
struct AppendRow {
  const void* data;
  DType dtype;
  std::int64_t column = 0;

  HWY_INLINE const void* next(std::int64_t width) {
    const void* const part = at(data, dtype, column);
    column += width;
    return part;
  }
};

template <typename T>
HWY_INLINE void rotate(T* x, std::int64_t pairs, const T* cos, const T* sin) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const T a = x[i], b = x[pairs + i];
    x[i] = a * cos[i] - b * sin[i];
    x[pairs + i] = b * cos[i] + a * sin[i];
  }
}

// A key in eight bits. x: as the type holds it.
template <typename T>
HWY_INLINE void quantize(const T* x, std::int64_t size, std::int8_t* values, float* scale) {
  T largest = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < size; ++i) {
    largest = std::max(largest, std::abs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  const float s = static_cast<float>(largest / T(127));
  *scale = finite ? s : std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t i = 0; i < size; ++i) {
    const T value = finite && s > 0 ? std::nearbyint(x[i] / T(s)) : T(0);
    values[i] = static_cast<std::int8_t>(std::clamp(value, T(-127), T(127)));
  }
}

template <typename T>
void append_token(const AppendArgs& a, std::int64_t t) {
  HWY_ALIGN T x[check::kMaxHeadSize];
  HWY_ALIGN T g[check::kMaxHeadSize];
  const std::int64_t size = a.head_size, index_size = a.index_head_size, slot = a.slots[t];
  AppendRow row{at(a.x, a.dtype, t * a.x_stride), a.dtype};
  const auto rotated = [&](std::int64_t width, std::int64_t pairs, const void* cos, const void* sin,
                           void* to) {
    load_row<T>(x, row.next(width), a.dtype, width, T(1));
    rotate(x, pairs, static_cast<const T*>(cos) + t * pairs, static_cast<const T*>(sin) + t * pairs);
    store_row<T>(to, a.dtype, x, width, T(1));
  };
  for (std::int64_t h = 0; h < a.q_heads; ++h) {
    rotated(size, a.pairs, a.cos, a.sin, at(a.q, a.dtype, (t * a.q_heads + h) * size));
  }
  for (std::int64_t h = 0; h < a.kv_heads; ++h) {
    rotated(size, a.pairs, a.cos, a.sin, at(a.k, a.dtype, (slot * a.kv_heads + h) * size));
  }
  const void* const values = row.next(a.kv_heads * size);
  for (std::int64_t h = 0; h < a.index_heads; ++h) {
    rotated(index_size, a.index_pairs, a.index_cos, a.index_sin,
            at(a.index_q, a.dtype, (t * a.index_heads + h) * index_size));
  }
  if (a.index_heads > 0 && a.index_scale == nullptr) {
    rotated(index_size, a.index_pairs, a.index_cos, a.index_sin, at(a.index_k, a.dtype, slot * index_size));
  } else if (a.index_heads > 0) {
    HWY_ALIGN T key[check::kMaxHeadSize];  // rounded to the type, in the room of the widest
    rotated(index_size, a.index_pairs, a.index_cos, a.index_sin, key);
    load_row<T>(x, key, a.dtype, index_size, T(1));
    quantize(x, index_size, static_cast<std::int8_t*>(a.index_k) + slot * index_size, a.index_scale + slot);
  }
  const void* const gates = row.next(a.value_gate);
  for (std::int64_t h = 0; h < a.kv_heads; ++h) {
    void* const to = at(a.v, a.dtype, (slot * a.kv_heads + h) * size);
    const void* const from = at(values, a.dtype, h * size);
    if (a.value_gate == 0) {
      std::memcpy(to, from, static_cast<std::size_t>(size) * size_of(a.dtype));
      continue;
    }
    const std::int64_t width = a.value_gate / a.kv_heads;  // 1: one gate for the head
    load_row<T>(g, at(gates, a.dtype, h * width), a.dtype, width, T(1));
    sigmoid_row(g, width);
    load_row<T>(x, from, a.dtype, size, T(1));
    for (std::int64_t i = 0; i < size; ++i) x[i] *= g[width == 1 ? 0 : i];
    store_row<T>(to, a.dtype, x, size, T(1));
  }
  if (a.index_heads == 0) return;
  row.column = a.index_w_column;
  load_row<T>(x, row.next(a.index_heads), a.dtype, a.index_heads, T(1));
  T scale = 1;
  if (a.sigmoid_w) {
    sigmoid_row(x, a.index_heads);
  } else {
    scale = static_cast<T>(1 / std::sqrt(static_cast<double>(a.index_heads)));
  }
  store_row<T>(at(a.index_w, a.dtype, t * a.index_heads), a.dtype, x, a.index_heads, scale);
}

template <typename T>
void append_typed(const AppendArgs& a, const Parallel& parallel) {
  // About 64K values a task: enough to pay for handing it out.
  const std::int64_t tokens = std::max<std::int64_t>(1, (std::int64_t{1} << 16) / a.x_stride);
  parallel.run((a.tokens + tokens - 1) / tokens, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(a.tokens, (task + 1) * tokens);
    for (std::int64_t t = task * tokens; t < end; ++t) append_token<T>(a, t);
  });
}

void append_target(const AppendArgs& a, const Parallel& parallel) {
  a.dtype == DType::f64 ? append_typed<double>(a, parallel) : append_typed<float>(a, parallel);
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(append_target);
void append_cpu(const AppendArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(append_target)(args, parallel);
}
}  // namespace gsa
#endif
