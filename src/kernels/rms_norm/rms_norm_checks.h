// Argument checks of rms_norm, the same on every device. Each returns whether there is anything to do.
#pragma once

#include <limits>

#include "core/checked.h"
#include "gsa/error.h"
#include "kernels/common/checks.h"
#include "kernels/rms_norm/rms_norm.h"

namespace gsa {

inline bool check_rms_norm_shape(const char* op, const RmsNormShape& shape) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int64_t>::max();
  check::in_range(op, "tokens", shape.tokens, 0, kLimit);
  check::in_range(op, "size", shape.size, 1, 1 << 20);
  if (!(shape.eps >= 0)) bad_argument(op, "eps", "a number of at least 0", concat(shape.eps));
  return checked_mul(shape.tokens, shape.size, op, "tokens x size") > 0;
}

inline bool check_rms_norm(const RmsNormArgs& args) {
  constexpr const char* kOp = "rms_norm";
  if (!check_rms_norm_shape(kOp, args.shape)) return false;
  check::not_null(kOp, "x", args.x);
  check::not_null(kOp, "weight", args.weight);
  check::not_null(kOp, "y", args.y);
  check::not_null(kOp, "rstd", args.rstd);
  if ((args.branch == nullptr) != (args.sum == nullptr)) {
    bad_argument(kOp, "sum", "memory exactly where there is a branch",
                 args.sum == nullptr ? "null" : "memory");
  }
  return true;
}

// Without tokens there is still a gradient of the weight: zero.
inline bool check_rms_norm_backward(const RmsNormBackwardArgs& args) {
  constexpr const char* kOp = "rms_norm_backward";
  check::not_null(kOp, "dweight", args.dweight);
  if (!check_rms_norm_shape(kOp, args.shape)) return true;
  check::not_null(kOp, "dy", args.dy);
  check::not_null(kOp, "sum", args.sum);
  check::not_null(kOp, "weight", args.weight);
  check::not_null(kOp, "rstd", args.rstd);
  check::not_null(kOp, "dx", args.dx);
  return true;
}

}  // namespace gsa
