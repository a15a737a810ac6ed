// swiglu on the CPU. The work is in swiglu_cpu.cc.
#include "kernels/swiglu/swiglu.h"

#include "kernels/swiglu/swiglu_checks.h"
#include "kernels/swiglu/swiglu_cpu.h"

namespace gsa {

void swiglu(const SwigluArgs& args, const Parallel& parallel) {
  if (check_swiglu(args)) swiglu_cpu(args, parallel);
}

void swiglu_backward(const SwigluBackwardArgs& args, const Parallel& parallel) {
  if (check_swiglu_backward(args)) swiglu_backward_cpu(args, parallel);
}

}  // namespace gsa
