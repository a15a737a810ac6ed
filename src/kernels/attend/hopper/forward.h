// attend forward on Hopper: wgmma over tiles of 64 or 128 rows (queries x heads of a group).
#pragma once

#include "core/cuda_context.h"
#include "kernels/attend/attend.h"
#include "kernels/attend/attend_plan.h"

namespace gsa::cuda {

// config names a Hopper kernel, as choose_attend() does where device, shape and alignment allow it.
void attend_forward_hopper(const AttendArgs& args, const AttendConfig& config, const Context& context);

}  // namespace gsa::cuda
