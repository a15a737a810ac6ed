// One pass of the network over new tokens: their keys and values go into the cache, and every new token
// attends to what the cache then holds of its sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "infer/cache.h"
#include "infer/core/look.h"
#include "infer/weights.h"
#include "nn/indexer.h"
#include "nn/rope.h"
#include "nn/sequence_plan.h"
#include "nn/torch.h"

namespace gsa::infer {

// Sequences with equally many new tokens, whose attention reads the pages as they lie.
struct PagedPart {
  std::int64_t sequences = 0, queries = 0;  // sequences * queries rows of the pass
  at::Tensor block_table, lengths;          // int32 [sequences, blocks], [sequences]
  std::int64_t max_length = 0;
};

// New tokens of some sequences, one sequence after another. Tensors lie on the engine's device.
struct Pass {
  at::Tensor tokens, positions, slots;  // int64 [T]
  bool sparse = false;                  // false: every visible key

  std::vector<PagedPart> parts;  // in the order of the rows. Empty: keys are copied out of their pages first,
  at::Tensor key_slots;          // int64 [keys]: those of all sequences, packed
  at::Tensor starts_q, starts_k;  // int64 [sequences + 1], on the CPU
  nn::SequenceGroup whole;        // the sequences, for where no token of them was there before
};

class Network {
 public:
  explicit Network(Weights weights);

  const Weights& weights() const { return weights_; }

  // The residual stream behind the last block, [T, d_model]. key_sum: 0-dim int64, to which every k_t of
  // every layer is added. Nothing in here waits for a GPU, so that a pass over pages can be captured; but for looks,
  // which get where each layer looked: of a pass over pages of one token, with its sequence's key_slots.
  at::Tensor forward(const Pass& pass, Cache& cache, const std::optional<at::Tensor>& key_sum,
                     std::vector<LayerLook>* looks = nullptr) const;

  // float32 (float64 for float64 weights) [rows, vocab_size]; residual [rows, d_model].
  at::Tensor logits(const at::Tensor& residual) const;

 private:
  struct Tables {
    nn::RopeTables rope, indexer_rope;
  };
  struct Inputs;
  Tables tables(const at::Tensor& positions) const;
  bool skinny_linear_serves(std::int64_t tokens) const;
  // product: of the layer's normed input with LayerWeights::input.
  Inputs project(std::int64_t n, const at::Tensor& product, const Tables& tables, const Pass& pass,
                 const Cache& cache) const;
  struct Attended;
  // What a layer with an indexer selected, for the layers behind it that have none. keep: whether a layer hands on
  // what it selects; one without an indexer takes what there is.
  struct Selection;
  Attended attend_pages(std::int64_t n, const Inputs& inputs, const Pass& pass, const Cache& cache, bool keep,
                        Selection& selection) const;
  Attended attend_rows(std::int64_t n, const Inputs& inputs, const Pass& pass, const Cache& cache, bool keep,
                       Selection& selection) const;
  LayerLook look(std::int64_t n, const Inputs& inputs, const Pass& pass, const Cache& cache,
                 const Selection& selection) const;

  Weights weights_;
  nn::Rope rope_;
  std::optional<nn::Rope> indexer_rope_;
  at::Tensor frequencies_, indexer_frequencies_;  // float64, on the device
};

}  // namespace gsa::infer
