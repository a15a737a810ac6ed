// Argument checks of attend. The work is in attend_cpu.cc and attend_backward_cpu.cc.
#include "kernels/attend/attend.h"

#include "kernels/attend/attend_cpu.h"
#include "kernels/common/checks.h"

namespace gsa {

void attend(const AttendArgs& args, const Parallel& parallel) {
  constexpr const char* kOp = "attend";
  check::attend_shape(kOp, args.shape);
  check::sequences(kOp, args.sequences);
  check::mask(kOp, args.mask, args.sequences);
  if (args.sequences.total_queries() == 0) return;
  check::not_null(kOp, "q", args.q.data);
  check::not_null(kOp, "k", args.k.data);
  check::not_null(kOp, "v", args.v.data);
  check::not_null(kOp, "out", args.out.data);
  attend_cpu(args, parallel);
}

void attend_backward(const AttendBackwardArgs& args, const Parallel& parallel) {
  constexpr const char* kOp = "attend_backward";
  check::attend_shape(kOp, args.shape);
  check::sequences(kOp, args.sequences);
  check::mask(kOp, args.mask, args.sequences);
  if (args.sequences.total_queries() == 0) return;
  check::not_null(kOp, "q", args.q.data);
  check::not_null(kOp, "k", args.k.data);
  check::not_null(kOp, "v", args.v.data);
  check::not_null(kOp, "out", args.out.data);
  check::not_null(kOp, "lse", args.lse);
  check::not_null(kOp, "dout", args.dout.data);
  check::not_null(kOp, "dq", args.dq.data);
  check::not_null(kOp, "dk", args.dk);
  check::not_null(kOp, "dv", args.dv);
  attend_backward_cpu(args, parallel);
}

}  // namespace gsa
