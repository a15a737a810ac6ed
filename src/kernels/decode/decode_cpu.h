// The CPU backend of decode; arguments are checked by the caller.
#pragma once

#include "kernels/decode/decode.h"

namespace gsa {

void decode_cpu(const DecodeArgs& args, const Parallel& parallel);

}  // namespace gsa
