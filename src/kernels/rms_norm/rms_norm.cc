// rms_norm on the CPU. The work is in rms_norm_cpu.cc.
#include "kernels/rms_norm/rms_norm.h"

#include "gsa/error.h"
#include "kernels/common/plans.h"
#include "kernels/rms_norm/rms_norm_checks.h"
#include "kernels/rms_norm/rms_norm_cpu.h"

namespace gsa {
namespace {

std::string rms_norm_text(const RmsNormShape& shape) {
  return concat(shape.tokens, " rows of ", shape.size, ", ", name_of(shape.dtype));
}

}  // namespace

void rms_norm(const RmsNormArgs& args, const Parallel& parallel) {
  if (!check_rms_norm(args)) return;
  if (prints_plans()) print_cpu_plan("rms_norm", rms_norm_text(args.shape));
  rms_norm_cpu(args, parallel);
}

void rms_norm_backward(const RmsNormBackwardArgs& args, const Parallel& parallel) {
  if (!check_rms_norm_backward(args)) return;
  if (prints_plans()) print_cpu_plan("rms_norm_backward", rms_norm_text(args.shape));
  rms_norm_backward_cpu(args, parallel);
}

}  // namespace gsa
