// What a model costs, counted by hand: parameters by component, floating-point operations, bytes. No torch
// header; nothing is allocated or run. docs/model.md derives the formulas.
//
// One multiplication with its addition counts as two operations. Counted are matrix products, attention and
// the indexer's scores; norms, rotations, activations and softmax are left out, as is usual (a few
// thousandths). A sparse query is taken to attend to k_base keys (or to all it sees, where that is fewer):
// adaptive budgets move around it. Where layers share a selection, indexers are counted where they are; the
// indexer's loss is taken in every layer.
#pragma once

#include <cstdint>

#include "gsa/dtype.h"
#include "model/indexer_kl_sample.h"
#include "model/model_config.h"
#include "model/phase.h"

namespace gsa::nn {

// Of one layer (with an indexer, in a sparse model), or of a whole model (embedding and output are 0 in a
// layer).
struct ParameterCount {
  std::int64_t embedding = 0;
  std::int64_t output = 0;     // lm_head; 0 where it is the embedding
  std::int64_t attention = 0;  // q, k, v and output projections, biases included
  std::int64_t mlp = 0;
  std::int64_t norms = 0;
  std::int64_t value_gate = 0, output_gate = 0;
  std::int64_t indexer = 0;

  std::int64_t base() const { return embedding + output + attention + mlp + norms; }
  std::int64_t added() const { return value_gate + output_gate + indexer; }
  std::int64_t total() const { return base() + added(); }
};

ParameterCount count_layer(const ModelConfig& config);
ParameterCount count_model(const ModelConfig& config);

struct Operations {
  // Attention's and the block's matrices, gates and the indexer's projections included.
  double projections = 0;
  double attention = 0;  // q k and p v over the keys that are read
  double indexer = 0;    // scores, and their gradient
  double output = 0;     // the projection onto the vocabulary
  double total() const { return projections + attention + indexer + output; }
};

struct CacheBytes {
  double keys = 0, values = 0, index_keys = 0;  // of all layers
  double total() const { return keys + values + index_keys; }
};

// One token that sees `length` tokens, itself included; one sequence.
struct DecodeCost {
  Operations operations;
  double weight_bytes = 0;  // every matrix once; of the embedding one row
  CacheBytes read;          // what of the cache is read: all index keys, k rows of keys and values
};

struct Cost {
  double keys_per_query = 0;  // mean over the queries of a sequence
  Operations prefill;         // one sequence of `length` tokens; logits of the last token only
  DecodeCost decode;
  CacheBytes cache;     // of one sequence of `length` tokens
  Operations training;  // one sequence: forward and backward, without what is computed a second time
  double sigmoids = 0;  // of a prefill's scores: a floor of its own on most machines (0 for ReLU)
  double weight_bytes = 0;
  double training_bytes = 0;  // weights, gradients, fp32 master weights and AdamW's two moments
};

struct CostOptions {
  std::int64_t length = 4096;
  DType dtype = DType::bf16;    // of weights, activations and cache
  Phase phase = Phase::sparse;  // of training; dense for a model without an indexer
  // Of the indexer's loss: its keys in the sparse phase, and the share of queries of a loss over all keys.
  KlSupport kl_support = KlSupport::selected;
  double kl_share = 1;
};

Cost estimate_cost(const ModelConfig& config, const CostOptions& options);

// Memory of work before it begins: what must be there at the same time, counted by tensors of the sizes
// below. What passes (a chunk of logits, blocks of scores) is left out, so a little more is needed.
//
// Numbers that a token needs in one layer, all of them kept for a backward pass: residual stream and norms,
// queries, keys, values, gates, attention's output, the block's three widths, the indexer's projections.
std::int64_t layer_numbers(const ModelConfig& config);

struct MemoryNeed {
  double state = 0;        // weights; for training also gradients, masters and AdamW's moments
  double activations = 0;  // of the tokens that are at work together
  double total() const { return state + activations; }
};

struct TrainingMemoryOptions {
  std::int64_t tokens = 0;  // of a micro-batch
  std::int64_t length = 0;  // of its sequences: what a layer's mask follows
  DType dtype = DType::f32;
  bool several_batches = false;         // gradients of 16 bits are then added up in fp32
  bool checkpoint_activations = false;  // blocks keep their input only, but for the one that is recomputed
};
MemoryNeed training_memory(const ModelConfig& config, const TrainingMemoryOptions& options);

// A forward pass without gradients over sequences of `length`, `tokens` of them together; weights of `dtype`
// included. Where layers share a selection, its mask is there until the last of them has read it (in the sparse
// phase, from dense_below on).
MemoryNeed forward_memory(const ModelConfig& config, std::int64_t tokens, std::int64_t length, DType dtype,
                          Phase phase = Phase::sparse);

// Pairs of a query and a key it reads, in a sequence of `length`: all visible ones, or at most k for each
// query.
double visible_pairs(std::int64_t length);
double selected_pairs(std::int64_t length, std::int64_t k);

}  // namespace gsa::nn
