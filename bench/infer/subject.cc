#include "subject.h"

#include <algorithm>
#include <cmath>

namespace gsa::bench {

using at::Tensor;

namespace {

// Standard deviation of a projection of a normed row by weights as new models have them: 0.02 sqrt(2048).
constexpr double kSpread = 0.9;
constexpr std::int64_t kRowsAtOnce = 16384;

nn::ModelConfig config_of(const SubjectOptions& options) {
  nn::ModelConfig config = nn::ModelConfig::preset("paper-1.7b");
  apply(config, options.system);
  config.attention.dense_below = options.dense_below;
  config.layers = options.layers;
  if (config.attention.sparse) config.index_layers = nn::every_nth_layer(options.layers, options.index_every);
  config.vocab_size = options.vocabulary;
  return config;
}

// Weights as new models have them, made on the device at once.
infer::Weights random_weights(const nn::ModelConfig& config, const SubjectOptions& subject) {
  const nn::AttentionConfig& a = config.attention;
  const auto options = torch::dtype(subject.type).device(subject.device);
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
    return torch::randn({rows, columns}, options).mul_(a.init_std);
  };
  infer::Weights weights;
  weights.config = config;
  weights.selects = a.sparse;
  weights.embedding = matrix(config.vocab_size, a.d_model);
  weights.output = matrix(config.vocab_size, a.d_model);
  weights.norm = torch::ones({a.d_model}, options);
  for (std::int64_t n = 0; n < config.layers; ++n) {
    infer::LayerWeights layer;
    layer.columns = infer::input_columns(config.attention_of(n), a.sparse);
    layer.input_norm = layer.post_norm = weights.norm;
    layer.input = matrix(layer.columns.total, a.d_model);
    if (layer.columns.value_gate + layer.columns.output_gate > 0) {
      layer.input_bias = torch::zeros({layer.columns.total}, options);
    }
    layer.output = matrix(a.d_model, a.heads * a.head_size);
    layer.gate_up = matrix(2 * config.intermediate, a.d_model);
    layer.down = matrix(a.d_model, config.intermediate);
    if (config.has_indexer(n)) {
      layer.index_bias = torch::zeros({a.indexer.heads}, options);
      // Not known yet: k_t is k.
      layer.mean_variance = torch::full({1}, -1, torch::dtype(at::kDouble).device(subject.device));
    }
    weights.layers.push_back(layer);
  }
  return weights;
}

}  // namespace

Subject::Subject(const SubjectOptions& options) : config_(config_of(options)), options_(options) {
  torch::manual_seed(1);
  engine_ =
      std::make_unique<infer::Engine>(random_weights(config_, options),
                                      infer::EngineOptions{.device = options.device, .chunk = options.chunk});
}

infer::Sequence Subject::filled(std::int64_t length) {
  const at::NoGradGuard no_grad;
  infer::Cache& cache = engine_->cache();
  infer::Sequence sequence = engine_->start();
  const infer::Cache::Growth growth[] = {{&sequence, length}};
  cache.reserve(growth);
  const nn::AttentionConfig& a = config_.attention;
  const auto options = torch::dtype(options_.type).device(options_.device);
  for (std::int64_t begin = 0; begin < length; begin += kRowsAtOnce) {
    const std::int64_t count = std::min(kRowsAtOnce, length - begin);
    std::vector<std::int64_t> places;
    cache.slots(sequence, begin, count, places);
    const Tensor slots = torch::tensor(places, at::kLong).to(options_.device);
    const auto rows = [&](at::IntArrayRef shape) { return torch::randn(shape, options).mul_(kSpread); };
    for (std::int64_t n = 0; n < config_.layers; ++n) {
      ops::OptTensor index_k;
      if (config_.has_indexer(n)) index_k = rows({count, a.indexer.head_size});
      cache.write(n, slots, rows({count, a.kv_heads, a.head_size}), rows({count, a.kv_heads, a.head_size}),
                  index_k);
    }
    cache.append(sequence, std::vector<std::int64_t>(static_cast<std::size_t>(count), 0));
  }
  return sequence;
}

Subject::Stage Subject::stage(const std::vector<const infer::Sequence*>& sequences, std::int64_t queries) {
  const nn::AttentionConfig& a = config_.attention;
  const auto options = torch::dtype(options_.type).device(options_.device);
  const auto count = static_cast<std::int64_t>(sequences.size()), length = sequences.front()->length();
  const std::int64_t blocks = engine_->cache().shape().pages_for(length);
  Stage stage;
  const Tensor table = torch::empty({count, blocks}, at::kInt);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& pages = sequences[static_cast<std::size_t>(i)]->pages();
    std::copy_n(pages.begin(), blocks, table.mutable_data_ptr<std::int32_t>() + i * blocks);
  }
  stage.pages.block_table = table.to(options_.device);
  stage.pages.lengths = torch::full({count}, length, at::kInt).to(options_.device);
  stage.pages.max_length = length;
  stage.q = torch::randn({count, queries, a.heads, a.head_size}, options);
  if (sparse()) {
    stage.indexer = ops::IndexerInputs{
        .q = torch::randn({count, queries, a.indexer.heads, a.indexer.head_size}, options).mul_(kSpread),
        .k = {},
        .w = torch::rand({count, queries, a.indexer.heads}, options),
        .bias = torch::zeros({a.indexer.heads}, options),
        .scale = 1 / std::sqrt(static_cast<double>(a.indexer.head_size))};
    stage.budget.mode = "fixed";
    stage.budget.base = a.budget.base;
    stage.budget.min = a.budget.min;
    stage.budget.max = a.budget.max;
  }
  if (a.output_gate != nn::GateKind::none) stage.gate = torch::randn_like(stage.q);
  return stage;
}

Tensor Subject::run(Stage& stage, std::int64_t n) {
  ops::PagedCache pages = engine_->cache().pages(n);
  pages.block_table = stage.pages.block_table;
  pages.lengths = stage.pages.lengths;
  pages.max_length = stage.pages.max_length;
  if (sparse() && !config_.has_indexer(n)) {
    return ops::decode_selected(stage.q, pages, *stage.selection, stage.gate).out;
  }
  if (!config_.index_layers.empty()) {
    const ops::DecodedSelection both =
        ops::decode_with_selection(stage.q, pages, *stage.indexer, stage.budget, stage.gate);
    stage.selection = both.selection;
    return both.decoded.out;
  }
  return ops::decode(stage.q, pages, stage.indexer, stage.budget, stage.gate).out;
}

Subject::Dense Subject::dense(const std::vector<const infer::Sequence*>& sequences) {
  const infer::Cache& cache = engine_->cache();
  std::vector<Tensor> k, v;
  for (const infer::Sequence* sequence : sequences) {
    std::vector<std::int64_t> places;
    cache.slots(*sequence, 0, sequence->length(), places);
    const auto rows = cache.read(0, torch::tensor(places, at::kLong).to(options_.device));
    k.push_back(rows.k.transpose(0, 1));
    v.push_back(rows.v.transpose(0, 1));
  }
  return {at::stack(k), at::stack(v)};
}

std::vector<TorchWay> torch_decode(const Tensor& q, const Subject::Dense& cache) {
  const auto by_itself = [=] {
    return at::scaled_dot_product_attention(q, cache.k, cache.v, {}, 0, false, {}, /*enable_gqa=*/true);
  };
  const auto together = [=] {
    const Tensor rows = q.view({q.size(0), cache.k.size(1), -1, q.size(3)});
    return at::scaled_dot_product_attention(rows, cache.k, cache.v).view(q.sizes());
  };
  return {{"by itself", by_itself}, {"heads of a group together", together}};
}

Tensor torch_chunk(const Tensor& q, const Subject::Dense& cache, std::int64_t before) {
  const std::int64_t queries = q.size(2);
  const auto attend = [&](std::int64_t begin, std::int64_t count, bool causal) {
    return at::scaled_dot_product_attention(q, cache.k.narrow(2, begin, count),
                                            cache.v.narrow(2, begin, count), {}, 0, causal, {},
                                            /*enable_gqa=*/true);
  };
  if (before > 0) attend(0, before, false);
  return attend(before, queries, true);
}

}  // namespace gsa::bench
