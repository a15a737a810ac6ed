// The path of attend that needs no more than sm_80: every head size and group size, any strides. Arguments
// are checked by the caller.
#pragma once

#include "kernels/attend/attend_backward_plan.h"

namespace gsa::cuda {

void attend_generic(const AttendArgs& args, const Context& context);
void attend_backward_generic(const AttendBackwardArgs& args, const AttendBackwardConfig& config,
                             Accumulation accumulation, const Context& context);
// Bytes of shared memory that a block of it takes with 8 warps.
std::size_t attend_backward_generic_shared(std::int64_t head_size);

}  // namespace gsa::cuda
