// gate on the CPU. The work is in gate_cpu.cc.
#include "kernels/gate/gate.h"

#include "gsa/error.h"
#include "kernels/common/plans.h"
#include "kernels/gate/gate_checks.h"
#include "kernels/gate/gate_cpu.h"

namespace gsa {
namespace {

std::string gate_text(const GateShape& shape) {
  return concat(shape.tokens, " tokens, ", shape.heads, " heads of ", shape.head_size, ", ",
                shape.head_wise ? "a gate a head, " : "", name_of(shape.dtype));
}

}  // namespace

void gate(const GateArgs& args, const Parallel& parallel) {
  if (!check_gate(args)) return;
  if (prints_plans()) print_cpu_plan("gate", gate_text(args.shape));
  gate_cpu(args, parallel);
}

void gate_backward(const GateBackwardArgs& args, const Parallel& parallel) {
  if (!check_gate_backward(args)) return;
  if (prints_plans()) print_cpu_plan("gate_backward", gate_text(args.shape));
  gate_backward_cpu(args, parallel);
}

}  // namespace gsa
