// The CPU backend of rms_norm; arguments are checked by the caller.
#pragma once

#include "kernels/rms_norm/rms_norm.h"

namespace gsa {

void rms_norm_cpu(const RmsNormArgs& args, const Parallel& parallel);
void rms_norm_backward_cpu(const RmsNormBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
