// attend on the CPU. The work is in cpu/forward.cc and cpu/backward.cc.
#include "kernels/attend/attend.h"

#include "kernels/attend/attend_checks.h"
#include "kernels/attend/attend_cpu.h"

namespace gsa {

void attend(const AttendArgs& args, const Parallel& parallel) {
  if (check_attend(args, true)) attend_cpu(args, parallel);
}

void attend_backward(const AttendBackwardArgs& args, const Parallel& parallel) {
  if (check_attend_backward(args)) attend_backward_cpu(args, parallel);
}

}  // namespace gsa
