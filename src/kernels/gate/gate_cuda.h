// gate on CUDA devices: bfloat16, float16 and float32. Pointers of the arguments are device memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/gate/gate.h"

namespace gsa::cuda {

void gate(const GateArgs& args, const Context& context);
void gate_backward(const GateBackwardArgs& args, const Context& context);

}  // namespace gsa::cuda
