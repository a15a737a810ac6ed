// Argument checks of gate, the same on every device. Each returns whether there is anything to do.
#pragma once

#include <limits>

#include "core/checked.h"
#include "kernels/common/checks.h"
#include "kernels/gate/gate.h"

namespace gsa {

inline bool check_gate_shape(const char* op, const GateShape& shape) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int64_t>::max();
  check::in_range(op, "tokens", shape.tokens, 0, kLimit);
  check::in_range(op, "heads", shape.heads, 0, kLimit);
  check::in_range(op, "head_size", shape.head_size, 0, kLimit);
  const std::int64_t rows = checked_mul(shape.tokens, shape.heads, op, "tokens x heads");
  return checked_mul(rows, shape.head_size, op, "tokens x heads x head_size") > 0;
}

inline bool check_gate(const GateArgs& args) {
  constexpr const char* kOp = "gate";
  if (!check_gate_shape(kOp, args.shape)) return false;
  check::not_null(kOp, "x", args.x.data);
  check::not_null(kOp, "z", args.z.data);
  check::not_null(kOp, "y", args.y.data);
  return true;
}

inline bool check_gate_backward(const GateBackwardArgs& args) {
  constexpr const char* kOp = "gate_backward";
  if (!check_gate_shape(kOp, args.shape)) return false;
  check::not_null(kOp, "x", args.x.data);
  check::not_null(kOp, "z", args.z.data);
  check::not_null(kOp, "dy", args.dy.data);
  check::not_null(kOp, "dx", args.dx.data);
  check::not_null(kOp, "dz", args.dz.data);
  return true;
}

}  // namespace gsa
