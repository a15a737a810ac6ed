// The phases of training, as one layer sees them. No torch header.
#pragma once

#include <string_view>

namespace gsa::nn {

// dense    every query attends to all it sees, the indexer is frozen
// warmup   the same attention; the indexer learns to predict it, over all visible keys
// sparse   the indexer selects; its loss runs over what it selected, or over all visible keys
enum class Phase { dense, warmup, sparse };

const char* name_of(Phase phase);
Phase phase_by_name(std::string_view name);  // throws with a suggestion

}  // namespace gsa::nn
