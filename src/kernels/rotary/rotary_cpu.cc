// rotary on the CPU: each head of a token is converted to the arithmetic type, rotated and stored; bound by
// memory.
// Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotary/rotary_cpu.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/common/checks.h"
#include "kernels/common/numeric-inl.h"
#include "kernels/rotary/rotary_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

// Where head `head` of the joint row lies in the tensor that it belongs to.
struct RotaryHead {
  int part;               // 0: q, 1: k, 2: v
  std::int64_t offset;    // of its first element in that tensor, for one token
  std::int64_t row_size;  // elements of a token there
};
HWY_INLINE RotaryHead rotary_head(const RotaryShape& shape, std::int64_t head) {
  const std::int64_t heads[] = {shape.q_heads, shape.k_heads, shape.v_heads};
  int part = 0;
  while (head >= heads[part]) head -= heads[part++];
  return {part, head * shape.head_size, heads[part] * shape.head_size};
}

// Calls body(token, head of the joint row).
template <class Body>
void for_rotary_heads(const RotaryShape& shape, const Parallel& parallel, const Body& body) {
  const std::int64_t heads = shape.q_heads + shape.k_heads + shape.v_heads;
  // About 64K values a task: enough to pay for handing it out.
  const std::int64_t tokens = std::max<std::int64_t>(1, (std::int64_t{1} << 16) / (heads * shape.head_size));
  parallel.run((shape.tokens + tokens - 1) / tokens, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(shape.tokens, (task + 1) * tokens);
    for (std::int64_t token = task * tokens; token < end; ++token) {
      for (std::int64_t head = 0; head < heads; ++head) body(token, head);
    }
  });
}

// to <- from, rotated; sign -1 rotates back. cos and sin are the token's.
template <typename T>
HWY_INLINE void rotate_head(const RotaryShape& shape, const void* from, const T* cos, const T* sin, T sign,
                            void* to) {
  HWY_ALIGN T x[check::kMaxHeadSize];
  load_row<T>(x, from, shape.dtype, shape.head_size, T(1));
  T* const x1 = x;
  T* const x2 = x + shape.pairs;
  for (std::int64_t i = 0; i < shape.pairs; ++i) {
    const T a = x1[i], b = x2[i], s = sign * sin[i];
    x1[i] = a * cos[i] - b * s;
    x2[i] = b * cos[i] + a * s;
  }
  store_row<T>(to, shape.dtype, x, shape.head_size, T(1));
}

template <typename T>
void rotary_typed(const RotaryArgs& a, const Parallel& parallel) {
  const RotaryShape& shape = a.shape;
  const std::int64_t width = (shape.q_heads + shape.k_heads + shape.v_heads) * shape.head_size;
  void* const parts[] = {a.q, a.k, a.v};
  for_rotary_heads(shape, parallel, [&](std::int64_t token, std::int64_t head) {
    const RotaryHead place = rotary_head(shape, head);
    const void* const from = at(a.x, shape.dtype, token * width + head * shape.head_size);
    void* const to = at(parts[place.part], shape.dtype, token * place.row_size + place.offset);
    if (place.part == 2) {
      std::memcpy(to, from, static_cast<std::size_t>(shape.head_size) * size_of(shape.dtype));
    } else {
      rotate_head<T>(shape, from, static_cast<const T*>(a.cos) + token * shape.pairs,
                     static_cast<const T*>(a.sin) + token * shape.pairs, T(1), to);
    }
  });
}

template <typename T>
void rotary_backward_typed(const RotaryBackwardArgs& a, const Parallel& parallel) {
  const RotaryShape& shape = a.shape;
  const std::int64_t width = (shape.q_heads + shape.k_heads + shape.v_heads) * shape.head_size;
  const void* const parts[] = {a.dq, a.dk, a.dv};
  for_rotary_heads(shape, parallel, [&](std::int64_t token, std::int64_t head) {
    const RotaryHead place = rotary_head(shape, head);
    const void* const from = at(parts[place.part], shape.dtype, token * place.row_size + place.offset);
    void* const to = at(a.dx, shape.dtype, token * width + head * shape.head_size);
    if (place.part == 2) {
      std::memcpy(to, from, static_cast<std::size_t>(shape.head_size) * size_of(shape.dtype));
    } else {
      rotate_head<T>(shape, from, static_cast<const T*>(a.cos) + token * shape.pairs,
                     static_cast<const T*>(a.sin) + token * shape.pairs, T(-1), to);
    }
  });
}

void rotary_target(const RotaryArgs& a, const Parallel& parallel) {
  a.shape.dtype == DType::f64 ? rotary_typed<double>(a, parallel) : rotary_typed<float>(a, parallel);
}
void rotary_backward_target(const RotaryBackwardArgs& a, const Parallel& parallel) {
  a.shape.dtype == DType::f64 ? rotary_backward_typed<double>(a, parallel)
                              : rotary_backward_typed<float>(a, parallel);
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(rotary_target);
HWY_EXPORT(rotary_backward_target);
void rotary_cpu(const RotaryArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(rotary_target)(args, parallel);
}
void rotary_backward_cpu(const RotaryBackwardArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(rotary_backward_target)(args, parallel);
}
}  // namespace gsa
#endif
