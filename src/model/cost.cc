#include "model/cost.h"

#include <algorithm>
#include <vector>

#include "gsa/error.h"
#include "gsa/tensor_view.h"
#include "kernels/attention/kept_mask.h"

namespace gsa::nn {
namespace {

double as_real(std::int64_t value) { return static_cast<double>(value); }

std::int64_t gate_weights(GateKind kind, std::int64_t d_model, std::int64_t heads, std::int64_t head_size) {
  const std::int64_t width = kind == GateKind::none       ? 0
                             : kind == GateKind::headwise ? heads
                                                          : heads * head_size;
  return width * (d_model + 1);  // with a bias
}

std::int64_t qkv_biases(const AttentionConfig& a) {
  return a.qkv_bias ? (a.heads + 2 * a.kv_heads) * a.head_size : 0;
}

// Multiplications of one score: H_I products of d_I, and H_I weights.
double score_operations(const IndexerConfig& indexer) {
  return as_real(indexer.heads) * (2 * as_real(indexer.head_size) + 2);
}

// Weights of one indexer that a token is multiplied with.
double indexer_matrix_weights(const AttentionConfig& a) {
  return as_real(a.d_model * (a.indexer.heads * a.indexer.head_size + a.indexer.head_size + a.indexer.heads));
}

// Weights that a token is multiplied with in all layers (biases and norms are not).
double matrix_weights(const ModelConfig& config) {
  const AttentionConfig& a = config.attention;
  const ParameterCount layer = count_layer(config);
  const auto without_bias = [](std::int64_t weights, std::int64_t d) {
    return as_real(weights / (d + 1) * d);
  };
  const double each = as_real(layer.attention - qkv_biases(a) + layer.mlp) +
                      without_bias(layer.value_gate, a.d_model) + without_bias(layer.output_gate, a.d_model);
  return each * as_real(config.layers) + indexer_matrix_weights(a) * as_real(config.indexers());
}

CacheBytes cache_bytes(const ModelConfig& config, double rows, double index_rows, DType dtype) {
  const AttentionConfig& a = config.attention;
  const double element = static_cast<double>(size_of(dtype));
  CacheBytes bytes;
  bytes.keys = bytes.values = rows * as_real(a.kv_heads * a.head_size) * element * as_real(config.layers);
  bytes.index_keys = index_rows * as_real(a.indexer.head_size) * element * as_real(config.indexers());
  return bytes;
}

// What a token needs of an indexer.
std::int64_t indexer_numbers(const AttentionConfig& a) {
  return a.indexer.heads * (a.indexer.head_size + 1) + a.indexer.head_size;
}

// How many layers go by each selection.
std::vector<std::int64_t> selection_groups(const ModelConfig& config) {
  std::vector<std::int64_t> groups;
  for (std::int64_t n = 0; config.attention.sparse && n < config.layers; ++n) {
    if (config.has_indexer(n)) groups.push_back(0);
    ++groups.back();
  }
  return groups;
}

// Of the mask that a layer keeps for a token, its own and that of the layers that share it. There is none where
// sequences run dense.
std::int64_t mask_bytes(const ModelConfig& config, std::int64_t group, std::int64_t length, DType dtype) {
  const AttentionConfig& a = config.attention;
  if (length < a.dense_below) return 0;
  const std::int64_t words = mask_words(length);
  const std::int64_t query_bytes = a.heads * a.head_size * static_cast<std::int64_t>(size_of(dtype));
  return mask_is_affordable(words, query_bytes * group) ? 4 * words : 0;
}

// selects: what the sparse phase does, which sequences below dense_below do not.
Operations training_operations(const ModelConfig& config, const Operations& forward,
                               const CostOptions& options, bool selects, double pairs) {
  const Phase phase = options.phase;
  const std::int64_t length = options.length;
  const AttentionConfig& a = config.attention;
  const double layers = as_real(config.layers), indexers = as_real(config.indexers()),
               score = score_operations(a.indexer);
  const double all_output = 2 * as_real(length) * as_real(config.vocab_size) * as_real(a.d_model);
  const double dense = 4 * as_real(a.heads * a.head_size) * visible_pairs(length) * layers;
  const double sampled = visible_pairs(length) * options.kl_share;  // pairs of a loss over all keys
  const bool over_all = options.kl_support == KlSupport::all;
  Operations training;
  switch (phase) {
    case Phase::dense:
      training = {3 * forward.projections, 3 * dense, 0, 3 * all_output};
      break;
    case Phase::warmup:
      // The base model runs forward only, and no logits are needed; the indexer learns over all visible keys.
      training = {forward.projections, dense, 3 * score * sampled * layers, 0};
      break;
    case Phase::sparse:
      // Below dense_below the model learns as in the dense phase, the indexer beside it as in the warm-up.
      if (!selects) {
        training = {3 * forward.projections, 3 * dense, 3 * score * sampled * layers, 3 * all_output};
        break;
      }
      // Scores over all visible keys, once an indexer; their gradient over the support of the loss, which every
      // layer has; over all keys, its target is q k^T once more.
      training = {3 * forward.projections, 3 * forward.attention,
                  (visible_pairs(length) * indexers + 2 * (over_all ? sampled : pairs) * layers) * score,
                  3 * all_output};
      if (over_all) training.attention += 2 * as_real(a.heads * a.head_size) * sampled * layers;
      break;
  }
  if (a.sparse && phase != Phase::sparse) {
    // The indexer's own projections rest in the dense phase, and are the only ones that learn in the warm-up.
    const double once = 2 * as_real(length) * indexer_matrix_weights(a) * indexers;
    training.projections += phase == Phase::dense ? -3 * once : once;
  }
  if (a.sparse && phase == Phase::sparse) {
    // Their input is detached: a gradient of the weights, none of the input.
    training.projections -= 2 * as_real(length) * indexer_matrix_weights(a) * indexers;
  }
  return training;
}

}  // namespace

ParameterCount count_layer(const ModelConfig& config) {
  const AttentionConfig& a = config.attention;
  const std::int64_t d = a.d_model;
  ParameterCount count;
  count.attention = d * a.head_size * 2 * (a.heads + a.kv_heads) + qkv_biases(a);
  count.mlp = 3 * d * config.intermediate;
  count.norms = 2 * d + (a.qk_norm ? 2 * a.head_size : 0);
  count.value_gate = gate_weights(a.value_gate, d, a.kv_heads, a.head_size);
  count.output_gate = gate_weights(a.output_gate, d, a.heads, a.head_size);
  if (a.sparse) {
    const IndexerConfig& i = a.indexer;
    count.indexer = d * (i.heads * i.head_size + i.head_size + i.heads);
    if (i.form == ScoreForm::sigmoid) count.indexer += i.heads;  // biases
    if (i.temperature.learned) count.indexer += 1;
  }
  return count;
}

ParameterCount count_model(const ModelConfig& config) {
  const std::int64_t d = config.attention.d_model, n = config.layers;
  ParameterCount count = count_layer(config);
  count.attention *= n;
  count.mlp *= n;
  count.norms = count.norms * n + d;
  count.value_gate *= n;
  count.output_gate *= n;
  count.indexer *= config.indexers();
  count.embedding = config.vocab_size * d;
  if (!config.tie_embeddings) count.output = config.vocab_size * d;
  return count;
}

double visible_pairs(std::int64_t length) { return 0.5 * as_real(length) * (as_real(length) + 1); }

double selected_pairs(std::int64_t length, std::int64_t k) {
  if (length <= k) return visible_pairs(length);
  return visible_pairs(k) + as_real(length - k) * as_real(k);
}

Cost estimate_cost(const ModelConfig& config, const CostOptions& options) {
  config.validate();
  const AttentionConfig& a = config.attention;
  const std::int64_t length = options.length;
  if (length < 1 || length > INT32_MAX) {
    bad_argument("nn::estimate_cost", "length", concat("a number in 1 .. ", INT32_MAX), concat(length));
  }
  if (options.phase != Phase::dense && !a.sparse) {
    bad_argument("nn::estimate_cost", "phase", "dense for a model without an indexer",
                 name_of(options.phase));
  }
  const bool selects = a.sparse && length >= a.dense_below;
  const double layers = as_real(config.layers), indexers = as_real(config.indexers()),
               width = as_real(a.heads * a.head_size);
  const double pairs = selects ? selected_pairs(length, a.budget.base) : visible_pairs(length);
  const double last_keys = selects ? as_real(std::min(length, a.budget.base)) : as_real(length);
  const double score = score_operations(a.indexer);
  const double matrices = matrix_weights(config);
  const double output = 2 * as_real(config.vocab_size) * as_real(a.d_model);
  const double element = static_cast<double>(size_of(options.dtype));
  const double parameters = as_real(count_model(config).total());

  Cost cost;
  cost.keys_per_query = pairs / as_real(length);
  cost.prefill = {.projections = 2 * as_real(length) * matrices,
                  .attention = 4 * width * pairs * layers,
                  .indexer = selects ? score * visible_pairs(length) * indexers : 0,
                  .output = output};
  if (selects && a.indexer.form == ScoreForm::sigmoid) {
    cost.sigmoids = as_real(a.indexer.heads) * visible_pairs(length) * indexers;
  }
  cost.decode.operations = {.projections = 2 * matrices,
                            .attention = 4 * width * last_keys * layers,
                            .indexer = selects ? score * as_real(length) * indexers : 0,
                            .output = output};
  cost.decode.weight_bytes =
      (parameters - as_real(config.tie_embeddings ? 0 : config.vocab_size * a.d_model)) * element;
  cost.decode.read = cache_bytes(config, last_keys, selects ? as_real(length) : 0, options.dtype);
  cost.cache = cache_bytes(config, as_real(length), as_real(length), options.dtype);
  cost.training = training_operations(config, cost.prefill, options, selects, pairs);
  cost.weight_bytes = parameters * element;
  // Weights and gradients in dtype; the master copy (where dtype is narrower) and two moments in fp32.
  const double fp32_copies = options.dtype == DType::f32 || options.dtype == DType::f64 ? 2 : 3;
  cost.training_bytes = parameters * (2 * element + 4 * fp32_copies);
  return cost;
}

std::int64_t layer_numbers(const ModelConfig& config) {
  const AttentionConfig& a = config.attention;
  const std::int64_t q = a.heads * a.head_size, k = a.kv_heads * a.head_size;
  const auto gate = [&](GateKind kind, std::int64_t heads) {
    return kind == GateKind::none
               ? 0
               : heads * a.head_size + (kind == GateKind::headwise ? heads : heads * a.head_size);
  };
  std::int64_t count = 4 * a.d_model + 2 * q + 2 * k + 3 * config.intermediate;
  count += gate(a.value_gate, a.kv_heads) + gate(a.output_gate, a.heads);  // projection and product
  if (a.qk_norm) count += q + k;                                           // before the norm
  if (a.sparse) count += indexer_numbers(a);
  return count;
}

MemoryNeed training_memory(const ModelConfig& config, const TrainingMemoryOptions& options) {
  const double parameters = as_real(count_model(config).total()),
               size = static_cast<double>(size_of(options.dtype));
  const bool half = size < 4;
  const AttentionConfig& a = config.attention;
  const double layer = as_real(layer_numbers(config)), layers = as_real(config.layers),
               d = as_real(a.d_model), indexer = a.sparse ? as_real(indexer_numbers(a)) : 0;
  // In fp32 the weights are their own masters.
  const double each = 2 * size + 8 + (half ? 4 : 0) + (half && options.several_batches ? 4 : 0);
  // Beside what is kept, the gradients of the block that is at work.
  double kept = layers * d + layer, masks = 0;
  if (!options.checkpoint_activations) {
    kept = layers * layer - as_real(a.sparse ? config.layers - config.indexers() : 0) * indexer;
  }
  bool alone = false;  // whether there is a layer that selects for itself alone
  for (const std::int64_t group : selection_groups(config)) {
    const double mask = as_real(mask_bytes(config, group, options.length, options.dtype));
    // What followers need lasts until the backward pass has reached them, recomputed activations or not.
    if (!options.checkpoint_activations || group > 1 || !alone) masks += mask;
    if (options.checkpoint_activations && group > 1) kept += indexer;
    alone = alone || group == 1;
  }
  return {.state = parameters * each,
          .activations = as_real(options.tokens) * (size * (kept + layer + 2 * d) + masks)};
}

MemoryNeed forward_memory(const ModelConfig& config, std::int64_t tokens, std::int64_t length, DType dtype,
                          Phase phase) {
  const double size = static_cast<double>(size_of(dtype));
  std::int64_t mask = 0;  // that a layer keeps for its followers
  for (const std::int64_t group : selection_groups(config)) {
    if (group > 1 && phase == Phase::sparse) mask = std::max(mask, mask_bytes(config, group, length, dtype));
  }
  const double numbers = as_real(layer_numbers(config) + config.attention.d_model);
  return {.state = as_real(count_model(config).total()) * size,
          .activations = as_real(tokens) * (size * numbers + as_real(mask))};
}

}  // namespace gsa::nn
