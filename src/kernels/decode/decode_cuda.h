// decode on CUDA devices: bfloat16 and float16. Every pointer of the arguments is device memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/decode/decode.h"

namespace gsa::cuda {

// What a call took, for tests: time says nothing about a distribution of scores that the next model has.
struct DecodeWork {
  unsigned long long searched = 0;  // rows whose k-th score was searched for among all, the slow way
};

// work: device memory that is added to; may be null.
void decode(const DecodeArgs& args, const Context& context, DecodeWork* work = nullptr);

}  // namespace gsa::cuda
