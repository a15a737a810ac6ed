// attend_lse on the CPU. The work is in attend_lse_cpu.cc.
#include "kernels/attend_lse/attend_lse.h"

#include "kernels/attend_lse/attend_lse_checks.h"
#include "kernels/attend_lse/attend_lse_cpu.h"

namespace gsa {

void attend_lse(const AttendLseArgs& args, const Parallel& parallel) {
  if (check_attend_lse(args)) attend_lse_cpu(args, parallel);
}

}  // namespace gsa
