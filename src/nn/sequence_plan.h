// What a forward pass knows of its sequences before it has read a number: where they begin, the positions of
// tokens, the tables of RoPE, and which sequences run sparse. It is the same for every layer of a model, so a
// model makes it once (on a GPU each copy of such a list to the device would be a wait).
#pragma once

#include <optional>
#include <vector>

#include "model/config.h"
#include "model/phase.h"
#include "nn/rope.h"
#include "nn/torch.h"
#include "torch/ops.h"

namespace gsa::nn {

// Sequences that are attended to in the same way, and the rows of the packed input that they occupy.
struct SequenceGroup {
  bool sparse = false;
  at::Tensor starts;  // int64 [sequences + 1] on the CPU, cumulative, counted within the group
  at::Tensor rows;    // int64, undefined: all of them
  // Of every sequence of the group, where all are equally long; else 0.
  std::int64_t common_length = 0;
  std::int64_t longest = 0;  // of its sequences

  at::Tensor take(const at::Tensor& x) const { return rows.defined() ? x.index_select(0, rows) : x; }
  ops::Layout layout() const { return {starts, starts, std::nullopt}; }
};

struct SequencePlan {
  Phase phase = Phase::dense;
  std::int64_t tokens = 0;
  at::Tensor starts;   // int64 [sequences + 1] on the CPU, cumulative
  at::Tensor visible;  // int64 [tokens]: how many keys a query sees
  RopeTables rope;
  RopeTables indexer_rope;            // undefined where the indexer is frozen
  std::vector<SequenceGroup> groups;  // one, unless dense_below parts short sequences from long ones
};

struct SequencePlanInputs {
  at::IntArrayRef leading;                      // of the tokens: [B, L], packed [T]
  const std::optional<at::Tensor>& cu_seqlens;  // int64 [sequences + 1] on the CPU
  const std::optional<at::Tensor>& positions;   // integers as leading; absent: 0, 1, 2, ... in each sequence
  Phase phase;
  at::ScalarType type;  // of the hidden states
  at::Device device;
};

// Throws gsa::Error where cu_seqlens or positions do not fit.
SequencePlan make_sequence_plan(const AttentionConfig& config, const Rope& rope,
                                const std::optional<Rope>& indexer_rope, const SequencePlanInputs& inputs);

}  // namespace gsa::nn
