// swiglu on the CPU. The work is in swiglu_cpu.cc.
#include "kernels/swiglu/swiglu.h"

#include "gsa/error.h"
#include "kernels/common/plans.h"
#include "kernels/swiglu/swiglu_checks.h"
#include "kernels/swiglu/swiglu_cpu.h"

namespace gsa {
namespace {

std::string swiglu_text(const SwigluShape& shape) {
  return concat(shape.tokens, " rows of ", shape.size, ", ", name_of(shape.dtype));
}

}  // namespace

void swiglu(const SwigluArgs& args, const Parallel& parallel) {
  if (!check_swiglu(args)) return;
  if (prints_plans()) print_cpu_plan("swiglu", swiglu_text(args.shape));
  swiglu_cpu(args, parallel);
}

void swiglu_backward(const SwigluBackwardArgs& args, const Parallel& parallel) {
  if (!check_swiglu_backward(args)) return;
  if (prints_plans()) print_cpu_plan("swiglu_backward", swiglu_text(args.shape));
  swiglu_backward_cpu(args, parallel);
}

}  // namespace gsa
