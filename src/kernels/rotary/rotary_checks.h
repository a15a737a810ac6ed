// Argument checks of rotary, the same on every device. Each returns whether there is anything to do.
#pragma once

#include <limits>

#include "core/checked.h"
#include "kernels/common/checks.h"
#include "kernels/rotary/rotary.h"

namespace gsa {

inline bool check_rotary_shape(const char* op, const RotaryShape& shape) {
  constexpr std::int64_t kMaxHeads = 1 << 20;
  check::in_range(op, "tokens", shape.tokens, 0, std::numeric_limits<std::int64_t>::max());
  check::in_range(op, "q_heads", shape.q_heads, 0, kMaxHeads);
  check::in_range(op, "k_heads", shape.k_heads, 0, kMaxHeads);
  check::in_range(op, "v_heads", shape.v_heads, 0, kMaxHeads);
  check::in_range(op, "head_size", shape.head_size, 1, check::kMaxHeadSize);
  check::in_range(op, "pairs", shape.pairs, 0, shape.head_size / 2);
  const std::int64_t width = (shape.q_heads + shape.k_heads + shape.v_heads) * shape.head_size;
  return checked_mul(shape.tokens, width, op, "tokens x heads x head_size") > 0;
}

struct RotaryPointer {
  const char* name;
  const void* data;
};

// joint: all heads together; parts: those of q, k and v.
inline bool check_rotary_inputs(const char* op, const RotaryShape& shape, const void* cos, const void* sin,
                                RotaryPointer joint, const RotaryPointer (&parts)[3]) {
  if (!check_rotary_shape(op, shape)) return false;
  check::not_null(op, joint.name, joint.data);
  if (shape.pairs > 0) check::not_null(op, "cos", cos);
  if (shape.pairs > 0) check::not_null(op, "sin", sin);
  const std::int64_t heads[] = {shape.q_heads, shape.k_heads, shape.v_heads};
  for (int i = 0; i < 3; ++i) {
    if (heads[i] > 0) check::not_null(op, parts[i].name, parts[i].data);
  }
  return true;
}

inline bool check_rotary(const RotaryArgs& a) {
  return check_rotary_inputs("rotary", a.shape, a.cos, a.sin, {"x", a.x},
                             {{"q", a.q}, {"k", a.k}, {"v", a.v}});
}

inline bool check_rotary_backward(const RotaryBackwardArgs& a) {
  return check_rotary_inputs("rotary_backward", a.shape, a.cos, a.sin, {"dx", a.dx},
                             {{"dq", a.dq}, {"dk", a.dk}, {"dv", a.dv}});
}

}  // namespace gsa
