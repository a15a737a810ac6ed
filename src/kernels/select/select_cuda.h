// select on CUDA devices: bfloat16 and float16 inputs, scores in float32 as kernels/scores/index_score.cuh
// defines them. Pointers of the arguments are device memory, the tables of Sequences host memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/select/select.h"

namespace gsa::cuda {

// What a selection took, for tests: time says nothing about a distribution of scores that the next model has.
struct SelectWork {
  unsigned long long rows = 0;           // of stored scores
  unsigned long long histograms = 0;     // of stored scores, all rows together
  unsigned long long entries = 0;        // collected in one pass
  unsigned long long refined = 0;        // of these rows, how many needed more than one histogram
  unsigned long long fallback_rows = 0;  // rows whose bound was too high or whose lists overflowed
};

// work: device memory that is added to; may be null.
void select(const SelectArgs& args, const Context& context, SelectWork* work = nullptr);
void select_mask(const SelectMaskArgs& args, const Context& context);
void index_scores(const IndexScoresArgs& args, const Context& context);

}  // namespace gsa::cuda
