// attend on the CPU. The work is in cpu/forward.cc and cpu/backward.cc.
#include "kernels/attend/attend.h"

#include "gsa/error.h"
#include "kernels/attend/attend_checks.h"
#include "kernels/attend/attend_cpu.h"
#include "kernels/common/plans.h"
#include "kernels/common/simd.h"

namespace gsa {

void attend(const AttendArgs& args, const Parallel& parallel) {
  if (!check_attend(args, true)) return;
  if (prints_plans()) {
    print_cpu_plan("attend", concat(describe(args.shape), ", ", describe(args.sequences)),
                   args.shape.dtype == DType::bf16 && bf16_products());
  }
  attend_cpu(args, parallel);
}

void attend_backward(const AttendBackwardArgs& args, const Parallel& parallel) {
  if (!check_attend_backward(args)) return;
  if (prints_plans()) {
    print_cpu_plan("attend_backward", concat(describe(args.shape), ", ", describe(args.sequences)));
  }
  attend_backward_cpu(args, parallel);
}

}  // namespace gsa
