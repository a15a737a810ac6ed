#include "infer/weights.h"

#include <algorithm>
#include <string>

#include "core/crc32c.h"
#include "model/config_json.h"

namespace gsa::infer {
namespace {

using at::Tensor;

constexpr std::int64_t kAlignment = 8;  // elements: 16 bytes of a two-byte type

class Taker {
 public:
  explicit Taker(const WeightOptions& options) : options_(options) {}

  // One parameter in the engine's type and place.
  Tensor one(const Tensor& parameter) const {
    const Tensor copy =
        parameter.detach().to(options_.device, options_.dtype, /*non_blocking=*/false, !options_.take_over);
    release(parameter);
    return copy.contiguous();
  }

  // Rows of several parameters one below the other, in `rows` rows; zeros where there are no more.
  Tensor stacked(const std::vector<Tensor>& parameters, std::int64_t rows) const {
    std::vector<std::int64_t> shape = parameters.front().sizes().vec();
    shape[0] = rows;
    const Tensor all = torch::empty(shape, torch::dtype(options_.dtype).device(options_.device));
    std::int64_t begin = 0;
    for (const Tensor& parameter : parameters) {
      all.narrow(0, begin, parameter.size(0)).copy_(parameter.detach());
      begin += parameter.size(0);
      release(parameter);
    }
    all.narrow(0, begin, rows - begin).zero_();
    return all;
  }

 private:
  void release(Tensor parameter) const {
    if (options_.take_over) parameter.set_data(torch::empty({0}, parameter.options()));
  }

  const WeightOptions& options_;
};

LayerWeights take_layer(const nn::Block& block, const nn::AttentionConfig& config,
                        const WeightOptions& options) {
  const Taker take(options);
  const nn::GatedSparseAttention& attention = block->self_attn;
  const bool has_indexer = options.selects && config.has_indexer();
  LayerWeights layer;
  layer.columns = input_columns(config, options.selects);
  const InputColumns& columns = layer.columns;
  std::vector<Tensor> input = {attention->q_proj->weight, attention->k_proj->weight,
                               attention->v_proj->weight};
  const auto none = [&](std::int64_t rows) {
    return torch::zeros({rows}, torch::dtype(options.dtype).device(options.device));
  };
  std::vector<Tensor> bias;
  if (attention->config().qkv_bias) {
    bias = {attention->q_proj->bias, attention->k_proj->bias, attention->v_proj->bias,
            none(columns.index_q + columns.index_k)};
  } else {
    bias = {none(columns.q + columns.k + columns.v + columns.index_q + columns.index_k)};
  }
  if (has_indexer) {
    input.push_back(attention->indexer->wq->weight);
    input.push_back(attention->indexer->wk->weight);
  }
  for (const torch::nn::Linear& gate : {attention->value_gate, attention->output_gate}) {
    if (!gate) continue;
    input.push_back(gate->weight);
    bias.push_back(gate->bias);
  }
  if (has_indexer) input.push_back(attention->indexer->weights_proj->weight);
  if (bias.size() > 1) layer.input_bias = take.stacked(bias, columns.total);
  layer.input = take.stacked(input, columns.total);
  layer.output = take.one(attention->o_proj->weight);
  layer.gate_up = take.stacked({block->mlp->gate_proj->weight, block->mlp->up_proj->weight},
                               2 * block->mlp->up_proj->weight.size(0));
  layer.down = take.one(block->mlp->down_proj->weight);
  layer.input_norm = take.one(block->input_layernorm->weight);
  layer.post_norm = take.one(block->post_attention_layernorm->weight);
  if (attention->config().qk_norm) {
    layer.q_norm = take.one(attention->q_norm->weight);
    layer.k_norm = take.one(attention->k_norm->weight);
  }
  if (has_indexer) {
    if (attention->indexer->bias.defined()) layer.index_bias = take.one(attention->indexer->bias);
    layer.mean_variance = attention->indexer->mean_variance.detach().to(options.device).clone();
  }
  return layer;
}

// A few hundred numbers of each tensor: other weights differ everywhere, so that reading all would show no
// more.
void add_sample(const Tensor& tensor, std::uint32_t& sum) {
  if (!tensor.defined()) return;
  constexpr std::int64_t kSample = 256;
  const Tensor flat = tensor.flatten();
  const std::int64_t step = std::max<std::int64_t>(flat.size(0) / kSample, 1);
  const Tensor sample = flat.slice(0, 0, flat.size(0), step).contiguous().cpu();
  sum = crc32c({static_cast<const std::byte*>(sample.const_data_ptr()), sample.nbytes()}, sum);
}

template <typename Visit>
void for_each_tensor(const Weights& weights, const Visit& visit) {
  visit(weights.embedding);
  visit(weights.norm);
  if (!weights.config.tie_embeddings) visit(weights.output);
  for (const LayerWeights& layer : weights.layers) {
    for (const Tensor& tensor :
         {layer.input_norm, layer.post_norm, layer.input, layer.input_bias, layer.output, layer.gate_up,
          layer.down, layer.index_bias, layer.mean_variance, layer.q_norm, layer.k_norm}) {
      visit(tensor);
    }
  }
}

}  // namespace

InputColumns input_columns(const nn::AttentionConfig& config, bool selects) {
  const auto gate = [&](nn::GateKind kind, std::int64_t heads) {
    return kind == nn::GateKind::none ? 0 : kind == nn::GateKind::headwise ? heads : heads * config.head_size;
  };
  InputColumns columns;
  columns.q = config.heads * config.head_size;
  columns.k = columns.v = config.kv_heads * config.head_size;
  columns.value_gate = gate(config.value_gate, config.kv_heads);
  columns.output_gate = gate(config.output_gate, config.heads);
  if (selects && config.has_indexer()) {
    columns.index_q = config.indexer.heads * config.indexer.head_size;
    columns.index_k = config.indexer.head_size;
    columns.index_w = config.indexer.heads;
  }
  const std::int64_t used = columns.q + columns.k + columns.v + columns.index_q + columns.index_k +
                            columns.value_gate + columns.output_gate + columns.index_w;
  columns.total = (used + kAlignment - 1) / kAlignment * kAlignment;
  return columns;
}

Weights make_weights(const nn::Model& model, const WeightOptions& options) {
  const torch::NoGradGuard no_grad;
  Weights weights;
  weights.config = model->config();
  weights.selects = options.selects;
  const Taker take(options);
  weights.norm = take.one(model->model->norm->weight);
  weights.embedding = take.one(model->model->embed_tokens->weight);
  weights.output = weights.config.tie_embeddings ? weights.embedding : take.one(model->lm_head->weight);
  for (const nn::Block& block : model->model->layers) {
    const auto n = static_cast<std::int64_t>(weights.layers.size());
    weights.layers.push_back(take_layer(block, weights.config.attention_of(n), options));
  }
  return weights;
}

std::int64_t Weights::bytes() const {
  std::int64_t total = 0;
  for_each_tensor(*this, [&](const Tensor& tensor) {
    if (tensor.defined()) total += static_cast<std::int64_t>(tensor.nbytes());
  });
  return total;
}

std::uint32_t Weights::fingerprint() const {
  const std::string text = nn::config_to_json({config, std::nullopt});
  std::uint32_t sum = crc32c(std::as_bytes(std::span(text)));
  for_each_tensor(*this, [&](const Tensor& tensor) { add_sample(tensor, sum); });
  return sum;
}

}  // namespace gsa::infer
