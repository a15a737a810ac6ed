// Argument checks of swiglu, the same on every device. Each returns whether there is anything to do.
#pragma once

#include <limits>

#include "core/checked.h"
#include "kernels/common/checks.h"
#include "kernels/swiglu/swiglu.h"

namespace gsa {

inline bool check_swiglu_shape(const char* op, const SwigluShape& shape) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int64_t>::max() / 2;
  check::in_range(op, "tokens", shape.tokens, 0, kLimit);
  check::in_range(op, "size", shape.size, 0, kLimit);
  return checked_mul(shape.tokens, 2 * shape.size, op, "tokens x 2 size") > 0;
}

inline bool check_swiglu(const SwigluArgs& args) {
  constexpr const char* kOp = "swiglu";
  if (!check_swiglu_shape(kOp, args.shape)) return false;
  check::not_null(kOp, "x", args.x);
  check::not_null(kOp, "y", args.y);
  return true;
}

inline bool check_swiglu_backward(const SwigluBackwardArgs& args) {
  constexpr const char* kOp = "swiglu_backward";
  if (!check_swiglu_shape(kOp, args.shape)) return false;
  check::not_null(kOp, "x", args.x);
  check::not_null(kOp, "dy", args.dy);
  check::not_null(kOp, "dx", args.dx);
  return true;
}

}  // namespace gsa
