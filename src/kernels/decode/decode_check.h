// Validation of decode's arguments, shared by its backends.
#pragma once

#include "kernels/decode/decode.h"

namespace gsa {

// Throws gsa::Error where shapes, ranges or pointers cannot be. What lies in device memory (lengths, block
// tables) is not looked at.
void check_decode(const DecodeArgs& args);

}  // namespace gsa
