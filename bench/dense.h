// torch's own dense attention, the baseline, with its tensors as torch likes them: [1, heads, tokens, size],
// contiguous.
#pragma once

#include "inputs.h"

namespace gsa::bench {

struct DenseInputs {
  at::Tensor q;     // [1, kHeads, queries, kHeadSize]
  at::Tensor k, v;  // [1, kKvHeads, keys, kHeadSize]
};

DenseInputs dense_inputs(const Inputs& inputs);

// A whole sequence, causal.
at::Tensor dense_causal(const DenseInputs& inputs);

// One query that sees every key: as torch does grouped heads by itself...
at::Tensor dense_decode(const DenseInputs& inputs);
// ...and with the heads of a group as rows of one block of queries, so that keys are read once a group.
at::Tensor dense_decode_grouped(const DenseInputs& inputs);

}  // namespace gsa::bench
