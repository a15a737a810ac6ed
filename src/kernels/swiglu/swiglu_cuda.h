// swiglu on CUDA devices: bfloat16, float16 and float32. Pointers of the arguments are device memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/swiglu/swiglu.h"

namespace gsa::cuda {

void swiglu(const SwigluArgs& args, const Context& context);
void swiglu_backward(const SwigluBackwardArgs& args, const Context& context);

}  // namespace gsa::cuda
