// The CPU backend of rotary; arguments are checked by the caller.
#pragma once

#include "kernels/rotary/rotary.h"

namespace gsa {

void rotary_cpu(const RotaryArgs& args, const Parallel& parallel);
void rotary_backward_cpu(const RotaryBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
