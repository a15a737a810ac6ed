// The CPU backend of select; arguments are checked by the caller.
#pragma once

#include "kernels/select/select.h"

namespace gsa {

// k_t for a query with this variance of scores and this many visible keys.
std::int64_t budget_for(const Budget& budget, double variance, std::int64_t visible);

void select_cpu(const SelectArgs& args, const Parallel& parallel);
void select_mask_cpu(const SelectMaskArgs& args, const Parallel& parallel);
void index_scores_cpu(const IndexScoresArgs& args, const Parallel& parallel);

}  // namespace gsa
