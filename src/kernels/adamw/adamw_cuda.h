// adamw on CUDA devices. Pointers of the arguments are device memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/adamw/adamw.h"

namespace gsa::cuda {

void adamw(const AdamWArgs& args, const Context& context);

}  // namespace gsa::cuda
