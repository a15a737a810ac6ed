// Inference: a model, its cache, prefill and decode.
//
//   infer::Engine engine(nn::load_model("folder").model, {.dtype = torch::kBFloat16});
//   infer::Sequence text = engine.start();
//   at::Tensor logits = engine.prefill({{&text, prompt}}).logits;             // [1, vocab_size]
//   while (...) logits = engine.decode({{&text, pick(logits)}});
//
// Logits are those of one forward pass of nn::Model over the same tokens, up to the rounding of matrix
// products of other shapes: docs/inference.md states the bounds that the tests hold. However a prompt is cut
// into chunks and whatever else is in the batch, attention gives the same bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "infer/cache.h"
#include "infer/core/look.h"
#include "infer/weights.h"
#include "nn/model.h"
#include "nn/torch.h"

namespace gsa::infer {

struct EngineOptions {
  // Of weights, activations and cache. Absent: that of the model's weights. On a GPU bfloat16 or float16.
  std::optional<at::ScalarType> dtype = std::nullopt;
  at::Device device = at::kCPU;
  // dense: every visible key, as in the dense phase of training. Absent: as the model is configured.
  std::optional<nn::Phase> phase = std::nullopt;

  std::int64_t page_size = 64;                             // positions a page: a power of two, 8 .. 1024
  bool index_int8 = false;                                 // indexer keys in 8 bits: docs/inference.md
  std::optional<std::int64_t> cache_bytes = std::nullopt;  // absent: nine tenths of what is free

  // Tokens a pass of prefill, over all sequences. Absent: 1024 on the CPU, 16384 on a GPU. Where layers share a
  // selection there may be fewer in a pass over very long sequences: docs/inference.md.
  std::optional<std::int64_t> chunk = std::nullopt;
  bool cuda_graphs = true;  // a decode step on a GPU is captured once and replayed
  bool count_keys = false;  // keep k_t for keys_per_query()
};

struct Prompt {
  Sequence* sequence = nullptr;
  std::span<const std::int64_t> tokens;  // at least one
  // Where a prompt is read in several calls: the length of its sequence behind the last one, by which it is decided for
  // all of them alike whether they run dense (dense_below, or a budget for every key). 0: these tokens are all.
  std::int64_t whole_length = 0;
};

struct PrefillOptions {
  bool all_logits = false;  // of every token, not of each prompt's last one
  bool log_probs = false;   // of each prompt's own tokens; logits exist for a chunk of tokens at a time
  // Called after each pass with tokens done and tokens in all; false stops there.
  std::function<bool(std::int64_t done, std::int64_t total)> progress = nullptr;
};

struct PrefillResult {
  // float32 [prompts, vocab_size] for the token after each prompt; with all_logits [tokens, vocab_size], the
  // prompts one after another. Undefined where progress stopped it.
  at::Tensor logits;
  // float32 [tokens - 1] for each prompt: log p(token i | those before it), i = 1, 2, ...
  std::vector<at::Tensor> log_probs;
  bool complete = true;  // false: progress stopped it; sequences hold what was done
};

struct Step {
  Sequence* sequence = nullptr;
  std::int64_t token = 0;
};

class Engine {
 public:
  // A copy of the weights, fused where one input meets several matrices. The second form takes them over: the
  // model's parameters are emptied one by one, so that there is never much more than one copy in memory.
  explicit Engine(const nn::Model& model, const EngineOptions& options = {});
  explicit Engine(nn::Model&& model, const EngineOptions& options = {});
  // Weights as they are; they decide type, device and phase.
  explicit Engine(Weights weights, const EngineOptions& options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const nn::ModelConfig& config() const;
  const EngineOptions& options() const;  // with nothing absent
  std::int64_t weight_bytes() const;

  Sequence start() const;
  // Pages for prompts and for `new_tokens` more of each: refused here, with the numbers, before any work.
  // prefill() and decode() reserve what they need themselves.
  void reserve(std::span<const Prompt> prompts, std::int64_t new_tokens);

  // Every prompt's tokens behind what its sequence already holds. A sequence may come once only. Where it
  // throws, sequences hold the chunks that were done.
  PrefillResult prefill(std::span<const Prompt> prompts, const PrefillOptions& options = {});
  PrefillResult prefill(std::initializer_list<Prompt> prompts, const PrefillOptions& options = {});

  // One token more for each sequence: float32 [steps, vocab_size] for the token after it, on the engine's
  // device, valid until the next call.
  at::Tensor decode(std::span<const Step> steps);
  at::Tensor decode(std::initializer_list<Step> steps);

  // Reads the token behind what the sequence holds as decode() does (it becomes part of the sequence; k_t counts), and
  // tells where each layer looked. Costs a pass over all cached keys, and on a GPU a wait for each layer.
  Look look(Sequence& sequence, std::int64_t token);

  // A sequence as a file, and back. Files of other weights, types or settings are refused.
  void save(const Sequence& sequence, const std::filesystem::path& path) const;
  Sequence load(const std::filesystem::path& path);

  Cache& cache();  // for those who fill or read pages themselves
  CacheUse cache_use() const;
  // Mean k_t over all queries and layers so far, with count_keys; 0 before the first.
  double keys_per_query() const;
  void reset_counts();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Of the keys that full indexer keys select, the share that 8-bit ones select as well, over all queries of
// tokens that do not simply take every key; mean over layers with an indexer and the lowest of them. No indexer: 1.
struct SelectionAgreement {
  double mean = 1, lowest = 1;
  std::int64_t queries = 0;  // of one layer, that chose
};
SelectionAgreement index_int8_agreement(nn::Model& model, std::span<const std::int64_t> tokens);

}  // namespace gsa::infer
