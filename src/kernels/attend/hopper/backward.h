// Backward of attend on Hopper: 16-bit types, head sizes 64 and 128, groups of 1, 2, 4, 8 or 16 heads, rows
// aligned to 16 bytes. Arguments are checked by the caller.
#pragma once

#include "kernels/attend/attend_backward_plan.h"

namespace gsa::cuda {

void attend_backward_hopper(const AttendBackwardArgs& args, const AttendBackwardConfig& config,
                            Accumulation accumulation, const Context& context);

}  // namespace gsa::cuda
