// Which instruction set the kernels run on. Chosen at run time: the best that the processor has.
#pragma once

#include <string>
#include <vector>

namespace gsa {

// Instruction sets that this build and this processor have in common, best first: "AVX3_BF16", "AVX3", "AVX2",
// "SSE4", "NEON".
std::vector<std::string> simd_available();

// The one in use.
std::string simd_in_use();

// Uses this one from now on, for every operator of the process: to test and to compare. Not while kernels
// run.
void use_simd(const std::string& name);

// Whether "AVX3_BF16" is in use: products of bfloat16 are taken by the processor's own instruction (AVX512-BF16), two
// to a sum in float, where else they are taken in float. Everything else is as with "AVX3".
bool bf16_products();

}  // namespace gsa
