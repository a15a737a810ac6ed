// Argument checks of attend, the same on every device. Each returns whether there is anything to do.
#pragma once

#include "kernels/attend/attend.h"
#include "kernels/common/checks.h"

namespace gsa {

// What forward and backward have in common.
template <typename Args>
bool check_attend_inputs(const char* op, const Args& args) {
  check::attend_shape(op, args.shape);
  check::sequences(op, args.sequences);
  check::mask(op, args.mask, args.sequences);
  if (args.sequences.total_queries() == 0) return false;
  check::not_null(op, "q", args.q.data);
  check::not_null(op, "k", args.k.data);
  check::not_null(op, "v", args.v.data);
  check::not_null(op, "out", args.out.data);
  return true;
}

// in_pages: whether the backend reads keys that lie in pages.
inline bool check_attend(const AttendArgs& args, bool in_pages = false) {
  if (!check_attend_inputs("attend", args)) return false;
  check::pages("attend", args.pages, args.sequences, in_pages);
  return true;
}

inline bool check_attend_backward(const AttendBackwardArgs& args) {
  constexpr const char* kOp = "attend_backward";
  if (!check_attend_inputs(kOp, args)) return false;
  check::not_null(kOp, "lse", args.lse);
  check::not_null(kOp, "dout", args.dout.data);
  check::not_null(kOp, "dq", args.dq.data);
  check::not_null(kOp, "dk", args.dk);
  check::not_null(kOp, "dv", args.dv);
  return true;
}

}  // namespace gsa
