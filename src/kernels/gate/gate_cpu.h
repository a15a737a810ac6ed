// The CPU backend of gate; arguments are checked by the caller.
#pragma once

#include "kernels/gate/gate.h"

namespace gsa {

void gate_cpu(const GateArgs& args, const Parallel& parallel);
void gate_backward_cpu(const GateBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
