// Argument checks of cross_entropy, the same on every device. Returns whether there is anything to do.
#pragma once

#include <limits>

#include "core/checked.h"
#include "kernels/common/checks.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace gsa {

inline bool check_cross_entropy(const CrossEntropyArgs& args) {
  constexpr const char* kOp = "cross_entropy_";  // as users of torch know it
  check::in_range(kOp, "tokens", args.tokens, 0, std::numeric_limits<std::int64_t>::max());
  check::in_range(kOp, "classes", args.classes, 1, std::int64_t{1} << 30);
  checked_mul(args.tokens, args.classes, kOp, "tokens x classes");
  if (args.tokens == 0) return false;
  check::not_null(kOp, "logits", args.logits);
  check::not_null(kOp, "targets", args.targets);
  check::not_null(kOp, "loss", args.loss);
  return true;
}

}  // namespace gsa
