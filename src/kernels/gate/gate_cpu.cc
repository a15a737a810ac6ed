// gate on the CPU: chunks of rows are converted to the arithmetic type, gated and stored; bound by memory.
// Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gate/gate_cpu.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/common/sigmoid-inl.h"
#include "kernels/gate/gate_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

constexpr std::int64_t kGateChunk = 256;

// Calls body(token, head) for every row.
template <class Body>
void for_gate_rows(const GateShape& shape, const Parallel& parallel, const Body& body) {
  // About 64K values a task: enough to pay for handing it out.
  const std::int64_t tokens = std::max<std::int64_t>(
      1, (std::int64_t{1} << 16) / std::max<std::int64_t>(1, shape.heads * shape.head_size));
  parallel.run((shape.tokens + tokens - 1) / tokens, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(shape.tokens, (task + 1) * tokens);
    for (std::int64_t token = task * tokens; token < end; ++token) {
      for (std::int64_t head = 0; head < shape.heads; ++head) body(token, head);
    }
  });
}

// The gate's values for one chunk: sigmoid(z) of each element, or of the head's one z.
template <typename T>
HWY_INLINE void load_gate(const GateShape& shape, const ConstRows& z, std::int64_t token, std::int64_t head,
                          std::int64_t column, std::int64_t size, T* g) {
  const std::int64_t offset = token * z.token_stride + head * z.head_stride;
  if (shape.head_wise) {
    load_row<T>(g, at(z.data, shape.dtype, offset), shape.dtype, 1, T(1));
    sigmoid_row(g, 1);
    std::fill_n(g, padded(size), g[0]);
  } else {
    load_row<T>(g, at(z.data, shape.dtype, offset + column), shape.dtype, size, T(1));
    sigmoid_row(g, size);
  }
}

template <typename T>
void gate_typed(const GateArgs& a, const Parallel& parallel) {
  const GateShape& shape = a.shape;
  for_gate_rows(shape, parallel, [&](std::int64_t token, std::int64_t head) {
    HWY_ALIGN T x[kGateChunk];
    HWY_ALIGN T g[kGateChunk];
    for (std::int64_t c = 0; c < shape.head_size; c += kGateChunk) {
      const std::int64_t size = std::min(kGateChunk, shape.head_size - c);
      load_row<T>(x, at(a.x.data, shape.dtype, token * a.x.token_stride + head * a.x.head_stride + c),
                  shape.dtype, size, T(1));
      load_gate(shape, a.z, token, head, c, size, g);
      for (std::int64_t i = 0; i < size; ++i) x[i] *= g[i];
      store_row<T>(at(a.y.data, shape.dtype, token * a.y.token_stride + head * a.y.head_stride + c),
                   shape.dtype, x, size, T(1));
    }
  });
}

template <typename T>
void gate_backward_typed(const GateBackwardArgs& a, const Parallel& parallel) {
  const GateShape& shape = a.shape;
  for_gate_rows(shape, parallel, [&](std::int64_t token, std::int64_t head) {
    HWY_ALIGN T x[kGateChunk];
    HWY_ALIGN T g[kGateChunk];
    HWY_ALIGN T dy[kGateChunk];
    T lanes[kPad] = {};  // of the head-wise dz: a fixed order of summation
    for (std::int64_t c = 0; c < shape.head_size; c += kGateChunk) {
      const std::int64_t size = std::min(kGateChunk, shape.head_size - c);
      load_row<T>(x, at(a.x.data, shape.dtype, token * a.x.token_stride + head * a.x.head_stride + c),
                  shape.dtype, size, T(1));
      load_row<T>(dy, at(a.dy.data, shape.dtype, token * a.dy.token_stride + head * a.dy.head_stride + c),
                  shape.dtype, size, T(1));
      load_gate(shape, a.z, token, head, c, size, g);
      for (std::int64_t i = 0; i < padded(size); ++i) {
        x[i] = dy[i] * x[i] * g[i] * (T(1) - g[i]);
        dy[i] *= g[i];
      }
      store_row<T>(at(a.dx.data, shape.dtype, token * a.dx.token_stride + head * a.dx.head_stride + c),
                   shape.dtype, dy, size, T(1));
      if (shape.head_wise) {
        for (std::int64_t i = 0; i < padded(size); ++i) lanes[i % kPad] += x[i];
      } else {
        store_row<T>(at(a.dz.data, shape.dtype, token * a.dz.token_stride + head * a.dz.head_stride + c),
                     shape.dtype, x, size, T(1));
      }
    }
    if (shape.head_wise) {
      T sum = 0;
      for (const T lane : lanes) sum += lane;
      store_row<T>(at(a.dz.data, shape.dtype, token * a.dz.token_stride + head * a.dz.head_stride),
                   shape.dtype, &sum, 1, T(1));
    }
  });
}

void gate_target(const GateArgs& a, const Parallel& parallel) {
  a.shape.dtype == DType::f64 ? gate_typed<double>(a, parallel) : gate_typed<float>(a, parallel);
}
void gate_backward_target(const GateBackwardArgs& a, const Parallel& parallel) {
  a.shape.dtype == DType::f64 ? gate_backward_typed<double>(a, parallel)
                              : gate_backward_typed<float>(a, parallel);
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(gate_target);
HWY_EXPORT(gate_backward_target);
void gate_cpu(const GateArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(gate_target)(args, parallel);
}
void gate_backward_cpu(const GateBackwardArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(gate_backward_target)(args, parallel);
}
}  // namespace gsa
#endif
