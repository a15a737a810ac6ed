// append on CUDA devices: bfloat16, float16 and float32. Pointers of the arguments are device memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/append/append.h"

namespace gsa::cuda {

void append(const AppendArgs& args, const Context& context);

}  // namespace gsa::cuda
