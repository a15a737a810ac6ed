// skinny_linear on CUDA devices of compute capability 9.0. Pointers of the arguments are device memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/skinny_linear/skinny_linear.h"

namespace gsa::cuda {

void skinny_linear(const SkinnyLinearArgs& args, const Context& context);

}  // namespace gsa::cuda
