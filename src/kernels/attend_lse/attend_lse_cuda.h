// attend_lse on CUDA: bfloat16 and float16. Only enqueues work.
#pragma once

#include "core/cuda_context.h"
#include "kernels/attend_lse/attend_lse.h"

namespace gsa::cuda {

void attend_lse(const AttendLseArgs& args, const Context& context);

}  // namespace gsa::cuda
