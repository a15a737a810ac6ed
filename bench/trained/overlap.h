// How much the selections of neighbouring queries agree, for benchmarks: sparse attention reads the keys that
// a tile of queries selects together, so its time depends on it.
#pragma once

#include <optional>

#include "nn/attention.h"

namespace gsa::bench {

// union/k of one layer: keys that 16 neighbouring queries select together over what one of them selects, from
// 1,024 queries in the middle of the first sequence, as selected_overlap() of bench/gpu_inputs.py counts it.
// The view is of a sparse pass. Absent where half of the sequence has no 16 queries.
std::optional<double> union_over_k(const nn::AttentionView& view);

}  // namespace gsa::bench
