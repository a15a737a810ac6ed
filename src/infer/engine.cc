#include "infer/engine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/file.h"
#include "gsa/error.h"
#include "infer/core/pass_size.h"
#include "infer/network.h"
#include "infer/step_graph.h"
#include "torch/tensor_checks.h"

namespace gsa::infer {
namespace {

using at::Tensor;

constexpr const char* kOp = "infer::Engine";
constexpr std::int64_t kChunkCpu = 1024, kChunkGpu = 16384;
constexpr std::int64_t kQueriesGpu = 16;  // that gsa::decode takes on a GPU
// Logits of a prompt's own tokens exist for so many numbers at a time.
constexpr std::int64_t kLogitsAtOnce = 16 << 20;

at::Device with_index(const at::Device& device) {
  return device.is_cuda() && !device.has_index() ? at::Device(at::kCUDA, 0) : device;
}

WeightOptions weight_options(const EngineOptions& options, const nn::Model& model, bool take_over) {
  const bool sparse = model->config().attention.sparse;
  const nn::Phase phase = options.phase.value_or(sparse ? nn::Phase::sparse : nn::Phase::dense);
  if (phase == nn::Phase::sparse && !sparse) {
    bad_argument(kOp, "phase", "dense for a model without an indexer", nn::name_of(phase));
  }
  const at::ScalarType type = options.dtype.value_or(model->model->embed_tokens->weight.scalar_type());
  const bool half = type == at::kBFloat16 || type == at::kHalf;
  const bool cpu = options.device.is_cpu();
  if (!half && !(cpu && (type == at::kFloat || type == at::kDouble))) {
    bad_argument(kOp, "dtype",
                 cpu ? "float32, bfloat16, float16 or float64 on a CPU" : "bfloat16 or float16 on a GPU",
                 concat(type));
  }
  return {.dtype = type,
          .device = with_index(options.device),
          .selects = phase == nn::Phase::sparse,
          .take_over = take_over};
}

// Type, device and phase are the weights'.
EngineOptions resolved(EngineOptions options, const Weights& weights) {
  options.device = weights.embedding.device();
  options.dtype = weights.embedding.scalar_type();
  options.phase = weights.selects ? nn::Phase::sparse : nn::Phase::dense;
  if (!options.chunk) options.chunk = options.device.is_cpu() ? kChunkCpu : kChunkGpu;
  if (*options.chunk < 1) bad_argument(kOp, "chunk", "at least 1 token", concat(*options.chunk));
  return options;
}

// Not before some layer has a mean of the variance: training sets it, and gsa convert leaves it unset.
bool budgets_adapt(const Weights& weights) {
  if (weights.config.attention.budget.mode == BudgetMode::fixed) return false;
  return std::ranges::any_of(weights.layers, [](const LayerWeights& layer) {
    return layer.mean_variance.defined() && !(layer.mean_variance.item<double>() < 0);
  });
}

DType dtype_of(at::ScalarType type) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    if (binding::scalar_type(dtype) == type) return dtype;
  }
  bad_argument(kOp, "dtype", "float32, float64, bfloat16 or float16", concat(type));
}

Tensor to_device(const std::vector<std::int64_t>& values, const at::Device& device) {
  return torch::tensor(at::ArrayRef<std::int64_t>(values), at::kLong).to(device);
}

// log p(targets[i]) by logits [rows, vocab_size], float32 [rows].
Tensor log_probs_of(const Tensor& logits, const Tensor& targets) {
  return at::log_softmax(logits, -1).gather(1, targets.unsqueeze(1)).squeeze(1).to(at::kFloat);
}

// Part of a prompt in a pass.
struct PromptChunk {
  std::size_t prompt = 0;
  std::int64_t offset = 0, count = 0;  // in the prompt's tokens
};

// The prompts, cut into passes of at most `chunk` tokens.
std::vector<std::vector<PromptChunk>> cut(std::span<const Prompt> prompts,
                                          const std::vector<std::size_t>& chosen, std::int64_t chunk) {
  std::vector<std::vector<PromptChunk>> passes;
  std::int64_t room = 0;
  for (const std::size_t i : chosen) {
    const auto size = static_cast<std::int64_t>(prompts[i].tokens.size());
    for (std::int64_t offset = 0; offset < size;) {
      if (room == 0) {
        passes.emplace_back();
        room = chunk;
      }
      const std::int64_t count = std::min(room, size - offset);
      passes.back().push_back({i, offset, count});
      offset += count;
      room -= count;
    }
  }
  return passes;
}

}  // namespace

class Engine::Impl {
 public:
  Impl(const nn::Model& model, const EngineOptions& options, bool take_over)
      : Impl(make_weights(model, weight_options(options, model, take_over)), options) {}

  Impl(Weights weights, const EngineOptions& options)
      : options_(resolved(options, weights)),
        network_(std::move(weights)),
        cache_(cache_shape(network_.weights().config, {.dtype = dtype_of(*options_.dtype),
                                                       .selects = network_.weights().selects,
                                                       .index_int8 = options_.index_int8,
                                                       .page_size = options_.page_size}),
               options_.device, options_.cache_bytes) {
    options_.cache_bytes = cache_.use().budget;
    adapts_ = budgets_adapt(network_.weights());
    if (options_.count_keys) {
      key_sum_ = torch::zeros({}, torch::dtype(at::kLong).device(options_.device));
    }
    if (options_.device.is_cuda() && options_.cuda_graphs) graphs_.emplace(network_, cache_, key_sum_);
  }

  PrefillResult prefill(std::span<const Prompt> prompts, const PrefillOptions& options);
  Tensor decode(std::span<const Step> steps);
  Look look(Sequence& sequence, std::int64_t token);
  void reserve(std::span<const Prompt> prompts, std::int64_t new_tokens);

  std::uint32_t fingerprint() {
    if (!fingerprint_) fingerprint_ = network_.weights().fingerprint();
    return *fingerprint_;
  }

  EngineOptions options_;
  Network network_;
  Cache cache_;
  std::optional<Tensor> key_sum_;  // with count_keys: of k_t, over layers and queries
  std::int64_t queries_ = 0;       // that key_sum_ counts, once for each layer

 private:
  void check(std::span<const Prompt> prompts) const;
  void check_token(std::int64_t token) const;
  bool runs_sparse(std::int64_t length) const {
    const nn::ModelConfig& config = network_.weights().config;
    return network_.weights().selects && length >= config.attention.dense_below;
  }
  // Whether the budget is enough for all that a query of a sequence of this length sees, whatever the scores: dense
  // kernels then give the same result and do not score. Of prefill: a step of decoding is one batch, and what it does
  // with a text may not depend on the others.
  bool takes_every_key(std::int64_t length) const {
    const nn::BudgetConfig& budget = network_.weights().config.attention.budget;
    return length <= (adapts_ ? budget.min : budget.base);
  }
  Pass make_pass(const std::vector<PromptChunk>& chunks, std::span<const Prompt> prompts, bool sparse) const;
  PagedPart make_part(const std::vector<std::pair<const Sequence*, std::int64_t>>& ends,
                      std::int64_t queries) const;
  Tensor run(const Pass& pass);
  void add_log_probs(const Tensor& residual, const std::vector<PromptChunk>& chunks,
                     std::span<const Prompt> prompts, std::vector<std::vector<Tensor>>& parts) const;
  Tensor decode_alike(std::span<const Step> steps, const std::vector<std::size_t>& chosen, bool sparse);

  bool adapts_ = false;  // whether k_t may be another than the budget's base
  std::optional<StepGraphs> graphs_;
  std::optional<std::uint32_t> fingerprint_;
};

void Engine::Impl::check_token(std::int64_t token) const {
  const std::int64_t size = network_.weights().config.vocab_size;
  if (token < 0 || token >= size) {
    bad_argument(kOp, "tokens", concat("numbers in 0 .. ", size - 1), concat(token));
  }
}

void Engine::Impl::check(std::span<const Prompt> prompts) const {
  std::set<const Sequence*> seen;
  for (const Prompt& prompt : prompts) {
    if (prompt.sequence == nullptr) bad_argument(kOp, "sequence", "a sequence of start()", "null");
    if (!seen.insert(prompt.sequence).second) {
      bad_argument(kOp, "prompts", "every sequence once", "one twice");
    }
    if (prompt.tokens.empty()) bad_argument(kOp, "tokens", "at least one token a prompt", "none");
    for (const std::int64_t token : prompt.tokens) check_token(token);
  }
}

void Engine::Impl::reserve(std::span<const Prompt> prompts, std::int64_t new_tokens) {
  check(prompts);
  if (new_tokens < 0) bad_argument(kOp, "new_tokens", "0 or more", concat(new_tokens));
  std::vector<Cache::Growth> growth;
  for (const Prompt& prompt : prompts) {
    growth.push_back({prompt.sequence, static_cast<std::int64_t>(prompt.tokens.size()) + new_tokens});
  }
  cache_.reserve(growth);
}

PagedPart Engine::Impl::make_part(const std::vector<std::pair<const Sequence*, std::int64_t>>& ends,
                                  std::int64_t queries) const {
  PagedPart part;
  part.sequences = static_cast<std::int64_t>(ends.size());
  part.queries = queries;
  for (const auto& [sequence, length] : ends) part.max_length = std::max(part.max_length, length);
  const std::int64_t blocks = cache_.shape().pages_for(part.max_length);
  part.block_table = torch::zeros({part.sequences, blocks}, at::kInt);
  part.lengths = torch::empty({part.sequences}, at::kInt);
  for (std::int64_t i = 0; i < part.sequences; ++i) {
    const auto& [sequence, length] = ends[static_cast<std::size_t>(i)];
    part.lengths.mutable_data_ptr<std::int32_t>()[i] = static_cast<std::int32_t>(length);
    std::copy_n(sequence->pages().begin(), cache_.shape().pages_for(length),
                part.block_table.mutable_data_ptr<std::int32_t>() + i * blocks);
  }
  part.block_table = part.block_table.to(options_.device);
  part.lengths = part.lengths.to(options_.device);
  return part;
}

Pass Engine::Impl::make_pass(const std::vector<PromptChunk>& chunks, std::span<const Prompt> prompts,
                             bool sparse) const {
  std::vector<std::int64_t> tokens, positions, slots, key_slots, starts_q = {0}, starts_k = {0};
  std::vector<std::pair<const Sequence*, std::int64_t>> ends;  // sequence, keys after the pass
  bool alike = true;
  for (const PromptChunk& chunk : chunks) {
    const Prompt& prompt = prompts[chunk.prompt];
    const std::int64_t begin = prompt.sequence->length();
    const auto part =
        prompt.tokens.subspan(static_cast<std::size_t>(chunk.offset), static_cast<std::size_t>(chunk.count));
    tokens.insert(tokens.end(), part.begin(), part.end());
    for (std::int64_t i = 0; i < chunk.count; ++i) positions.push_back(begin + i);
    cache_.slots(*prompt.sequence, begin, chunk.count, slots);
    ends.emplace_back(prompt.sequence, begin + chunk.count);
    starts_q.push_back(starts_q.back() + chunk.count);
    starts_k.push_back(starts_k.back() + ends.back().second);
    alike = alike && chunk.count == chunks.front().count;
  }
  Pass pass;
  pass.sparse = sparse;
  pass.tokens = to_device(tokens, options_.device);
  pass.positions = to_device(positions, options_.device);
  pass.slots = to_device(slots, options_.device);
  if (alike && (options_.device.is_cpu() || chunks.front().count <= kQueriesGpu)) {
    pass.parts = {make_part(ends, chunks.front().count)};
  } else if (options_.device.is_cpu()) {
    for (std::size_t i = 0; i < chunks.size(); ++i)
      pass.parts.push_back(make_part({ends[i]}, chunks[i].count));
  } else {
    for (const auto& [sequence, length] : ends) cache_.slots(*sequence, 0, length, key_slots);
    pass.key_slots = to_device(key_slots, options_.device);
    pass.starts_q = to_device(starts_q, at::kCPU);
    pass.starts_k = to_device(starts_k, at::kCPU);
    pass.whole.starts = pass.starts_q;
    pass.whole.common_length = alike ? chunks.front().count : 0;
  }
  return pass;
}

Tensor Engine::Impl::run(const Pass& pass) {
  queries_ += pass.tokens.size(0);
  return network_.forward(pass, cache_, key_sum_);
}

// Logits of row i speak of token i + 1 of the prompt.
void Engine::Impl::add_log_probs(const Tensor& residual, const std::vector<PromptChunk>& chunks,
                                 std::span<const Prompt> prompts,
                                 std::vector<std::vector<Tensor>>& parts) const {
  const std::int64_t step = std::max<std::int64_t>(kLogitsAtOnce / network_.weights().config.vocab_size, 1);
  std::int64_t row = 0;
  for (const PromptChunk& chunk : chunks) {
    const auto tokens = prompts[chunk.prompt].tokens;
    const std::int64_t last = static_cast<std::int64_t>(tokens.size()) - 1;
    const std::int64_t end = std::min(chunk.offset + chunk.count, last);
    for (std::int64_t at = chunk.offset; at < end; at += step) {
      const std::int64_t count = std::min(step, end - at);
      const auto next = tokens.subspan(static_cast<std::size_t>(at + 1), static_cast<std::size_t>(count));
      const Tensor logits = network_.logits(residual.narrow(0, row + at - chunk.offset, count));
      parts[chunk.prompt].push_back(
          log_probs_of(logits, to_device({next.begin(), next.end()}, options_.device)));
    }
    row += chunk.count;
  }
}

PrefillResult Engine::Impl::prefill(std::span<const Prompt> prompts, const PrefillOptions& options) {
  const torch::NoGradGuard no_grad;
  reserve(prompts, 0);
  std::int64_t total = 0, done = 0, longest = 1;
  std::vector<std::size_t> kinds[2];  // dense, sparse
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto size = static_cast<std::int64_t>(prompts[i].tokens.size());
    total += size;
    const std::int64_t length = std::max(prompts[i].sequence->length() + size, prompts[i].whole_length);
    kinds[runs_sparse(length) && !takes_every_key(length) ? 1 : 0].push_back(i);
    longest = std::max(longest, prompts[i].sequence->length() + size);
  }
  const std::int64_t at_once =
      tokens_of_a_pass(network_.weights().config, {.chunk = *options_.chunk,
                                                   .longest = longest,
                                                   .selects = network_.weights().selects,
                                                   .gpu = options_.device.is_cuda()});
  std::vector<std::vector<Tensor>> rows(prompts.size());  // of the residual stream, or of logits
  std::vector<std::vector<Tensor>> log_probs(prompts.size());
  PrefillResult result;
  for (const bool sparse : {false, true}) {
    for (const std::vector<PromptChunk>& chunks : cut(prompts, kinds[sparse ? 1 : 0], at_once)) {
      const Tensor residual = run(make_pass(chunks, prompts, sparse));
      if (options.log_probs) add_log_probs(residual, chunks, prompts, log_probs);
      std::int64_t row = 0;
      for (const PromptChunk& chunk : chunks) {
        const Prompt& prompt = prompts[chunk.prompt];
        if (options.all_logits) {
          rows[chunk.prompt].push_back(network_.logits(residual.narrow(0, row, chunk.count)));
        } else if (chunk.offset + chunk.count == static_cast<std::int64_t>(prompt.tokens.size())) {
          rows[chunk.prompt].push_back(residual.narrow(0, row + chunk.count - 1, 1).clone());
        }
        cache_.append(*prompt.sequence, prompt.tokens.subspan(static_cast<std::size_t>(chunk.offset),
                                                              static_cast<std::size_t>(chunk.count)));
        row += chunk.count;
      }
      done += row;
      if (options.progress && !options.progress(done, total) && done < total) {
        result.complete = false;
        return result;
      }
    }
  }
  std::vector<Tensor> all;
  for (const auto& parts : rows) all.insert(all.end(), parts.begin(), parts.end());
  const std::int64_t vocab = network_.weights().config.vocab_size;
  if (all.empty()) {
    result.logits = torch::empty({0, vocab}, torch::dtype(at::kFloat).device(options_.device));
  } else {
    result.logits = options.all_logits ? at::cat(all) : network_.logits(at::cat(all));
  }
  if (options.log_probs) {
    for (const auto& parts : log_probs) {
      result.log_probs.push_back(parts.empty()
                                     ? torch::empty({0}, torch::dtype(at::kFloat).device(options_.device))
                                     : at::cat(parts));
    }
  }
  return result;
}

Tensor Engine::Impl::decode_alike(std::span<const Step> steps, const std::vector<std::size_t>& chosen,
                                  bool sparse) {
  if (graphs_) {
    std::vector<StepRow> rows;
    for (const std::size_t i : chosen) rows.push_back({steps[i].sequence, steps[i].token});
    queries_ += static_cast<std::int64_t>(rows.size());
    return graphs_->run(rows, sparse);
  }
  std::vector<Prompt> prompts;
  std::vector<PromptChunk> chunks;
  for (std::size_t n = 0; n < chosen.size(); ++n) {
    const Step& step = steps[chosen[n]];
    prompts.push_back({step.sequence, {&step.token, 1}});
    chunks.push_back({n, 0, 1});
  }
  return network_.logits(run(make_pass(chunks, prompts, sparse)));
}

Tensor Engine::Impl::decode(std::span<const Step> steps) {
  const torch::NoGradGuard no_grad;
  std::vector<Prompt> prompts;
  for (const Step& step : steps) prompts.push_back({step.sequence, {&step.token, 1}});
  reserve(prompts, 0);
  std::vector<std::size_t> kinds[2];  // dense, sparse
  for (std::size_t i = 0; i < steps.size(); ++i) {
    kinds[runs_sparse(steps[i].sequence->length() + 1) ? 1 : 0].push_back(i);
  }
  Tensor logits;
  if (kinds[0].empty() || kinds[1].empty()) {
    const bool sparse = kinds[0].empty();
    const std::int64_t vocab = network_.weights().config.vocab_size;
    logits = steps.empty() ? torch::empty({0, vocab}, torch::dtype(at::kFloat).device(options_.device))
                           : decode_alike(steps, kinds[sparse ? 1 : 0], sparse);
  } else {
    // dense_below parts the batch: two steps, and the rows back in their places.
    const Tensor dense = decode_alike(steps, kinds[0], false).clone();
    const Tensor both = at::cat({dense, decode_alike(steps, kinds[1], true)});
    std::vector<std::int64_t> order(steps.size());
    std::int64_t row = 0;
    for (const auto& kind : kinds) {
      for (const std::size_t i : kind) order[i] = row++;
    }
    logits = both.index_select(0, to_device(order, options_.device));
  }
  for (const Step& step : steps) cache_.append(*step.sequence, {&step.token, 1});
  return logits;
}

Look Engine::Impl::look(Sequence& sequence, std::int64_t token) {
  const torch::NoGradGuard no_grad;
  const Prompt prompt{&sequence, {&token, 1}};
  reserve({&prompt, 1}, 0);
  Look look{.position = sequence.length(), .sparse = runs_sparse(sequence.length() + 1), .layers = {}};
  Pass pass = make_pass({{0, 0, 1}}, {&prompt, 1}, look.sparse);
  std::vector<std::int64_t> key_slots;
  cache_.slots(sequence, 0, sequence.length() + 1, key_slots);
  pass.key_slots = to_device(key_slots, options_.device);
  ++queries_;
  network_.forward(pass, cache_, key_sum_, &look.layers);
  cache_.append(sequence, {&token, 1});
  return look;
}

Engine::Engine(Weights weights, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(weights), options)) {}
Engine::Engine(const nn::Model& model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, options, /*take_over=*/false)) {}
Engine::Engine(nn::Model&& model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, options, /*take_over=*/true)) {}
Engine::~Engine() = default;

const nn::ModelConfig& Engine::config() const { return impl_->network_.weights().config; }
const EngineOptions& Engine::options() const { return impl_->options_; }
std::int64_t Engine::weight_bytes() const { return impl_->network_.weights().bytes(); }

Cache& Engine::cache() { return impl_->cache_; }
Sequence Engine::start() const { return impl_->cache_.start(); }
void Engine::reserve(std::span<const Prompt> prompts, std::int64_t new_tokens) {
  impl_->reserve(prompts, new_tokens);
}

PrefillResult Engine::prefill(std::span<const Prompt> prompts, const PrefillOptions& options) {
  return impl_->prefill(prompts, options);
}
PrefillResult Engine::prefill(std::initializer_list<Prompt> prompts, const PrefillOptions& options) {
  return impl_->prefill({prompts.begin(), prompts.size()}, options);
}
Tensor Engine::decode(std::span<const Step> steps) { return impl_->decode(steps); }
Tensor Engine::decode(std::initializer_list<Step> steps) {
  return impl_->decode({steps.begin(), steps.size()});
}
Look Engine::look(Sequence& sequence, std::int64_t token) { return impl_->look(sequence, token); }

void Engine::save(const Sequence& sequence, const std::filesystem::path& path) const {
  impl_->cache_.save(sequence, path, impl_->fingerprint());
}

Sequence Engine::load(const std::filesystem::path& path) {
  Sequence sequence = impl_->cache_.load(path, impl_->fingerprint());
  for (const std::int64_t token : sequence.tokens()) {
    if (token < 0 || token >= config().vocab_size) {
      bad_file(path.string(), concat("tokens in 0 .. ", config().vocab_size - 1), concat(token));
    }
  }
  return sequence;
}

CacheUse Engine::cache_use() const { return impl_->cache_.use(); }

double Engine::keys_per_query() const {
  if (!impl_->key_sum_) {
    bad_argument(kOp, "count_keys", "true, for keys_per_query()", "false");
  }
  const std::int64_t counted = impl_->queries_ * config().layers;
  return counted == 0 ? 0 : impl_->key_sum_->item<double>() / static_cast<double>(counted);
}

void Engine::reset_counts() {
  impl_->queries_ = 0;
  if (impl_->key_sum_) impl_->key_sum_->zero_();
}

}  // namespace gsa::infer
