// attend_lse on the CPU. The work is in attend_lse_cpu.cc.
#include "kernels/attend_lse/attend_lse.h"

#include "gsa/error.h"
#include "kernels/attend_lse/attend_lse_checks.h"
#include "kernels/attend_lse/attend_lse_cpu.h"
#include "kernels/common/plans.h"
#include "kernels/common/simd.h"

namespace gsa {

void attend_lse(const AttendLseArgs& args, const Parallel& parallel) {
  if (!check_attend_lse(args)) return;
  if (prints_plans()) {
    print_cpu_plan("attend_lse", concat(describe(args.shape), ", ", describe(args.sequences)),
                   args.shape.dtype == DType::bf16 && bf16_products());
  }
  attend_lse_cpu(args, parallel);
}

}  // namespace gsa
