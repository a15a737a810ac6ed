// rotary on CUDA devices: bfloat16, float16 and float32. Pointers of the arguments are device memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/rotary/rotary.h"

namespace gsa::cuda {

void rotary(const RotaryArgs& args, const Context& context);
void rotary_backward(const RotaryBackwardArgs& args, const Context& context);

}  // namespace gsa::cuda
