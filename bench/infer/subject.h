// What is measured: the paper's 1.7B, or some layers of it, with random weights, its cache filled with random
// rows. Attention can be run by itself on that cache, as the engine runs it and as torch does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "infer/engine.h"
#include "infer/weights.h"
#include "model/model_config.h"
#include "nn/torch.h"

namespace gsa::bench {

struct SubjectOptions {
  nn::System system = nn::System::gsa;
  at::ScalarType type = at::kFloat;
  at::Device device = at::kCPU;
  std::int64_t layers = 1;
  std::int64_t index_every = 1;   // every so many layers have an indexer, where the system has one
  std::int64_t vocabulary = 512;  // small: what is measured then is the layers
  std::int64_t dense_below = 0;   // shorter sequences run dense; 0: sparse attention at any length
  std::optional<std::int64_t> chunk = std::nullopt;  // of prefill; absent: the engine's own
};

class Subject {
 public:
  explicit Subject(const SubjectOptions& options);

  infer::Engine& engine() { return *engine_; }
  const nn::ModelConfig& config() const { return config_; }
  bool sparse() const { return config_.attention.sparse; }

  // A sequence whose keys, values and indexer keys are random, of the size that projections of random weights
  // give.
  infer::Sequence filled(std::int64_t length);

  // A chunk of queries at the end of each sequence, all of one length: what a layer's attention reads.
  struct Stage {
    ops::PagedCache pages;
    at::Tensor q;  // [sequences, queries, heads, head_size]
    std::optional<ops::IndexerInputs> indexer;
    ops::BudgetOptions budget;
    ops::OptTensor gate;
    std::optional<ops::SelectedPositions> selection;  // that run() of the layer with an indexer left
  };
  Stage stage(const std::vector<const infer::Sequence*>& sequences, std::int64_t queries);
  // Score, select, attend and gate of one layer, with the pages of layer n; where layers share a selection, in their
  // order.
  at::Tensor run(Stage& stage, std::int64_t n);

  // The keys and values of layer 0 of sequences of one length, as torch likes them:
  // [sequences, kv_heads, length, head_size].
  struct Dense {
    at::Tensor k, v;
  };
  Dense dense(const std::vector<const infer::Sequence*>& sequences);

 private:
  nn::ModelConfig config_;
  SubjectOptions options_;
  std::unique_ptr<infer::Engine> engine_;
};

// torch's dense attention. q [sequences, heads, queries, head_size], behind the last position of which k
// ends. Several ways to ask; each gives the same numbers.
struct TorchWay {
  std::string name;
  std::function<at::Tensor()> run;
};
std::vector<TorchWay> torch_decode(const at::Tensor& q, const Subject::Dense& cache);

// A chunk of queries that begins at position `before`: torch's CPU kernels know causal squares only, so the
// keys before the chunk and those of the chunk are two calls, whose results are not even merged.
at::Tensor torch_chunk(const at::Tensor& q, const Subject::Dense& cache, std::int64_t before);

}  // namespace gsa::bench
