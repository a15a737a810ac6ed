// Argument checks of attend_lse, the same on every device.
#pragma once

#include "kernels/attend_lse/attend_lse.h"
#include "kernels/attention/query_tiles.h"
#include "kernels/common/checks.h"

namespace gsa {

// Returns whether there is anything to do.
inline bool check_attend_lse(const AttendLseArgs& args) {
  constexpr const char* kOp = "attend_lse";
  check::attend_shape(kOp, args.shape);
  check::sequences(kOp, args.sequences);
  check::query_tiles(kOp, args.tiles, args.sequences);
  if (args.sequences.total_queries() == 0) return false;
  check::not_null(kOp, "q", args.q.data);
  check::not_null(kOp, "k", args.k.data);
  check::not_null(kOp, "lse", args.lse);
  return true;
}

}  // namespace gsa
