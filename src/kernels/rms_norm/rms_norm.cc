// rms_norm on the CPU. The work is in rms_norm_cpu.cc.
#include "kernels/rms_norm/rms_norm.h"

#include "kernels/rms_norm/rms_norm_checks.h"
#include "kernels/rms_norm/rms_norm_cpu.h"

namespace gsa {

void rms_norm(const RmsNormArgs& args, const Parallel& parallel) {
  if (check_rms_norm(args)) rms_norm_cpu(args, parallel);
}

void rms_norm_backward(const RmsNormBackwardArgs& args, const Parallel& parallel) {
  if (check_rms_norm_backward(args)) rms_norm_backward_cpu(args, parallel);
}

}  // namespace gsa
