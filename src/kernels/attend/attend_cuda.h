// attend on CUDA devices: bfloat16 and float16. Pointers of the arguments are device memory, the tables of
// Sequences host memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/attend/attend.h"

namespace gsa::cuda {

// How sums over queries (dk, dv) are accumulated: deterministic, in a fixed order, or atomic (faster,
// non-deterministic).
enum class Accumulation { ordered, atomic };

void attend(const AttendArgs& args, const Context& context);
void attend_backward(const AttendBackwardArgs& args, Accumulation accumulation, const Context& context);

}  // namespace gsa::cuda
