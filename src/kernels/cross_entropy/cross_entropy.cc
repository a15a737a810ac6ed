// cross_entropy on the CPU. The work is in cross_entropy_cpu.cc.
#include "kernels/cross_entropy/cross_entropy.h"

#include "gsa/error.h"
#include "kernels/common/plans.h"
#include "kernels/cross_entropy/cross_entropy_checks.h"
#include "kernels/cross_entropy/cross_entropy_cpu.h"

namespace gsa {

void cross_entropy(const CrossEntropyArgs& args, const Parallel& parallel) {
  if (!check_cross_entropy(args)) return;
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    const std::int64_t target = args.targets[t];
    if (target != args.ignored && (target < 0 || target >= args.classes)) {
      bad_argument("cross_entropy_", "targets",
                   concat("numbers in 0 .. ", args.classes - 1, ", or ", args.ignored),
                   concat(target, " at ", t));
    }
  }
  if (prints_plans()) {
    print_cpu_plan("cross_entropy_",
                   concat(args.tokens, " rows of ", args.classes, ", ", name_of(args.dtype)));
  }
  cross_entropy_cpu(args, parallel);
}

}  // namespace gsa
