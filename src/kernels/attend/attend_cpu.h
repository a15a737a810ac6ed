// The CPU backend of attend; arguments are checked by the caller.
#pragma once

#include "kernels/attend/attend.h"

namespace gsa {

void attend_cpu(const AttendArgs& args, const Parallel& parallel);
void attend_backward_cpu(const AttendBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
