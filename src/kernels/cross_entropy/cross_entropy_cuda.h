// cross_entropy on CUDA devices: bfloat16, float16 and float32. Pointers of the arguments are device memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace gsa::cuda {

void cross_entropy(const CrossEntropyArgs& args, const Context& context);

}  // namespace gsa::cuda
