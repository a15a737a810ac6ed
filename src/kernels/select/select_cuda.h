// select on CUDA devices: bfloat16 and float16 inputs, scores in float32 as kernels/common/index_score.cuh
// defines them. Pointers of the arguments are device memory, the tables of Sequences host memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/select/select.h"

namespace gsa::cuda {

void select(const SelectArgs& args, const Context& context);
void select_mask(const SelectMaskArgs& args, const Context& context);
void index_scores(const IndexScoresArgs& args, const Context& context);

}  // namespace gsa::cuda
