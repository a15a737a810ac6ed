// Which kernel ran, for who wants to see it: with GSA_PRINT_PLANS=1 every new plan is printed to stderr, one
// line each: operator, shape, what was chosen and why.
#pragma once

#include <string>

#include "gsa/tensor_view.h"

namespace gsa {

// Whether GSA_PRINT_PLANS asks for it; read once.
bool prints_plans();

// A line, unless it has been printed before.
void print_plan(const char* op, const std::string& shape, const std::string& plan);

// The same for an operator on the CPU, whose choice is the instruction set. bf16: its products are of bfloat16
// (simd.h).
void print_cpu_plan(const char* op, const std::string& shape, bool bf16 = false);

// Such as "2 sequences, 300 queries, up to 4096 keys".
std::string describe(const Sequences& sequences);

}  // namespace gsa
