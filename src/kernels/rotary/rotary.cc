// rotary on the CPU. The work is in rotary_cpu.cc.
#include "kernels/rotary/rotary.h"

#include "kernels/rotary/rotary_checks.h"
#include "kernels/rotary/rotary_cpu.h"

namespace gsa {

void rotary(const RotaryArgs& args, const Parallel& parallel) {
  if (check_rotary(args)) rotary_cpu(args, parallel);
}

void rotary_backward(const RotaryBackwardArgs& args, const Parallel& parallel) {
  if (check_rotary_backward(args)) rotary_backward_cpu(args, parallel);
}

}  // namespace gsa
