// Argument checks of rotary, the same on every device. Each returns whether there is anything to do.
#pragma once

#include <limits>

#include "core/checked.h"
#include "kernels/common/checks.h"
#include "kernels/rotary/rotary.h"

namespace gsa {

inline bool check_rotary_shape(const char* op, const RotaryShape& shape) {
  constexpr std::int64_t kMostHeads = 1 << 20;
  check::in_range(op, "tokens", shape.tokens, 0, std::numeric_limits<std::int64_t>::max());
  check::in_range(op, "q_heads", shape.q_heads, 0, kMostHeads);
  check::in_range(op, "k_heads", shape.k_heads, 0, kMostHeads);
  check::in_range(op, "v_heads", shape.v_heads, 0, kMostHeads);
  check::in_range(op, "head_size", shape.head_size, 1, check::kMaxHeadSize);
  check::in_range(op, "pairs", shape.pairs, 0, shape.head_size / 2);
  const std::int64_t width = (shape.q_heads + shape.k_heads + shape.v_heads) * shape.head_size;
  return checked_mul(shape.tokens, width, op, "tokens x heads x head_size") > 0;
}

inline bool check_rotary(const RotaryArgs& args) {
  constexpr const char* kOp = "rotary";
  if (!check_rotary_shape(kOp, args.shape)) return false;
  check::not_null(kOp, "x", args.x);
  if (args.shape.pairs > 0) check::not_null(kOp, "cos", args.cos);
  if (args.shape.pairs > 0) check::not_null(kOp, "sin", args.sin);
  if (args.shape.q_heads > 0) check::not_null(kOp, "q", args.q);
  if (args.shape.k_heads > 0) check::not_null(kOp, "k", args.k);
  if (args.shape.v_heads > 0) check::not_null(kOp, "v", args.v);
  return true;
}

inline bool check_rotary_backward(const RotaryBackwardArgs& args) {
  constexpr const char* kOp = "rotary_backward";
  if (!check_rotary_shape(kOp, args.shape)) return false;
  check::not_null(kOp, "dx", args.dx);
  if (args.shape.pairs > 0) check::not_null(kOp, "cos", args.cos);
  if (args.shape.pairs > 0) check::not_null(kOp, "sin", args.sin);
  if (args.shape.q_heads > 0) check::not_null(kOp, "dq", args.dq);
  if (args.shape.k_heads > 0) check::not_null(kOp, "dk", args.dk);
  if (args.shape.v_heads > 0) check::not_null(kOp, "dv", args.dv);
  return true;
}

}  // namespace gsa
