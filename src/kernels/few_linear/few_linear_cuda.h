// few_linear on CUDA devices of compute capability 9.0. Pointers of the arguments are device memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/few_linear/few_linear.h"

namespace gsa::cuda {

void few_linear(const FewLinearArgs& args, const Context& context);

}  // namespace gsa::cuda
