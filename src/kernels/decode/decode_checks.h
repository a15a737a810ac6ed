// Validation of decode's arguments, shared by its backends.
#pragma once

#include "kernels/decode/decode.h"

namespace gsa {

// Throws gsa::Error where shapes, ranges or pointers cannot be. What lies in device memory (lengths, block
// tables) is not looked at. max_queries: of a sequence, that the backend takes.
void check_decode(const DecodeArgs& args, std::int64_t max_queries);

// Queries of a sequence that the kernels on CUDA take; the CPU takes up to kMaxDecodeLength.
constexpr std::int64_t kMaxCudaQueries = 16;

}  // namespace gsa
