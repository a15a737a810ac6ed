// The CPU backend of attend_lse; arguments are checked by the caller.
#pragma once

#include "kernels/attend_lse/attend_lse.h"

namespace gsa {

void attend_lse_cpu(const AttendLseArgs& args, const Parallel& parallel);

}  // namespace gsa
