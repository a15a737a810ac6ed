// gate on the CPU. The work is in gate_cpu.cc.
#include "kernels/gate/gate.h"

#include "kernels/gate/gate_checks.h"
#include "kernels/gate/gate_cpu.h"

namespace gsa {

void gate(const GateArgs& args, const Parallel& parallel) {
  if (check_gate(args)) gate_cpu(args, parallel);
}

void gate_backward(const GateBackwardArgs& args, const Parallel& parallel) {
  if (check_gate_backward(args)) gate_backward_cpu(args, parallel);
}

}  // namespace gsa
