// decode on CUDA devices: bfloat16 and float16. Every pointer of the arguments is device memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/decode/decode.h"

namespace gsa::cuda {

void decode(const DecodeArgs& args, const Context& context);

}  // namespace gsa::cuda
