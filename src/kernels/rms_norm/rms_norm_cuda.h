// rms_norm on CUDA devices: bfloat16, float16 and float32. Pointers of the arguments are device memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/rms_norm/rms_norm.h"

namespace gsa::cuda {

void rms_norm(const RmsNormArgs& args, const Context& context);
void rms_norm_backward(const RmsNormBackwardArgs& args, const Context& context);

}  // namespace gsa::cuda
