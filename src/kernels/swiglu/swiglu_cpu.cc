// swiglu on the CPU: chunks of rows are converted to the arithmetic type, worked on and stored; bound by
// memory.
// Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu/swiglu_cpu.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/common/sigmoid-inl.h"
#include "kernels/swiglu/swiglu_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

constexpr std::int64_t kSwigluChunk = 256;

// Calls body(token, column, size) for every chunk of every row.
template <class Body>
void for_swiglu_chunks(const SwigluShape& shape, const Parallel& parallel, const Body& body) {
  // About 64K values a task: enough to pay for handing it out.
  const std::int64_t tokens = std::max<std::int64_t>(1, (std::int64_t{1} << 16) / shape.size);
  parallel.run((shape.tokens + tokens - 1) / tokens, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(shape.tokens, (task + 1) * tokens);
    for (std::int64_t token = task * tokens; token < end; ++token) {
      for (std::int64_t c = 0; c < shape.size; c += kSwigluChunk) {
        body(token, c, std::min(kSwigluChunk, shape.size - c));
      }
    }
  });
}

template <typename T>
void swiglu_typed(const SwigluArgs& a, const Parallel& parallel) {
  const auto [dtype, tokens, width] = a.shape;
  for_swiglu_chunks(a.shape, parallel, [&](std::int64_t token, std::int64_t c, std::int64_t size) {
    HWY_ALIGN T g[kSwigluChunk];
    HWY_ALIGN T u[kSwigluChunk];
    HWY_ALIGN T open[kSwigluChunk];
    const void* const row = at(a.x, dtype, token * 2 * width + c);
    load_row<T>(g, row, dtype, size, T(1));
    load_row<T>(u, at(row, dtype, width), dtype, size, T(1));
    std::copy_n(g, padded(size), open);
    sigmoid_row(open, size);
    for (std::int64_t i = 0; i < size; ++i) u[i] *= g[i] * open[i];
    store_row<T>(at(a.y, dtype, token * width + c), dtype, u, size, T(1));
  });
}

template <typename T>
void swiglu_backward_typed(const SwigluBackwardArgs& a, const Parallel& parallel) {
  const auto [dtype, tokens, width] = a.shape;
  for_swiglu_chunks(a.shape, parallel, [&](std::int64_t token, std::int64_t c, std::int64_t size) {
    HWY_ALIGN T g[kSwigluChunk];
    HWY_ALIGN T u[kSwigluChunk];
    HWY_ALIGN T dy[kSwigluChunk];
    HWY_ALIGN T open[kSwigluChunk];
    const std::int64_t offset = token * 2 * width + c;
    load_row<T>(g, at(a.x, dtype, offset), dtype, size, T(1));
    load_row<T>(u, at(a.x, dtype, offset + width), dtype, size, T(1));
    load_row<T>(dy, at(a.dy, dtype, token * width + c), dtype, size, T(1));
    std::copy_n(g, padded(size), open);
    sigmoid_row(open, size);
    for (std::int64_t i = 0; i < size; ++i) {
      const T gate = g[i], back = dy[i] * open[i];
      g[i] = back * u[i] * (T(1) + gate * (T(1) - open[i]));
      u[i] = back * gate;
    }
    store_row<T>(at(a.dx, dtype, offset), dtype, g, size, T(1));
    store_row<T>(at(a.dx, dtype, offset + width), dtype, u, size, T(1));
  });
}

void swiglu_target(const SwigluArgs& a, const Parallel& parallel) {
  a.shape.dtype == DType::f64 ? swiglu_typed<double>(a, parallel) : swiglu_typed<float>(a, parallel);
}
void swiglu_backward_target(const SwigluBackwardArgs& a, const Parallel& parallel) {
  a.shape.dtype == DType::f64 ? swiglu_backward_typed<double>(a, parallel)
                              : swiglu_backward_typed<float>(a, parallel);
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(swiglu_target);
HWY_EXPORT(swiglu_backward_target);
void swiglu_cpu(const SwigluArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(swiglu_target)(args, parallel);
}
void swiglu_backward_cpu(const SwigluBackwardArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(swiglu_backward_target)(args, parallel);
}
}  // namespace gsa
#endif
