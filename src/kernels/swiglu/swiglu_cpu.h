// The CPU backend of swiglu; arguments are checked by the caller.
#pragma once

#include "kernels/swiglu/swiglu.h"

namespace gsa {

void swiglu_cpu(const SwigluArgs& args, const Parallel& parallel);
void swiglu_backward_cpu(const SwigluBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
