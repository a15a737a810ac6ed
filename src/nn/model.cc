#include "nn/model.h"

#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/philox.h"
#include "gsa/error.h"
#include "nn/joint_linear.h"
#include "nn/new_layers.h"
#include "nn/recompute.h"
#include "nn/shape_of.h"

namespace gsa::nn {
namespace {

using at::Tensor;

constexpr const char* kOp = "nn::Model";

ModelConfig validated_model(const ModelConfig& config) {
  config.validate();
  return config;
}

double residual_std(const ModelConfig& config) {
  const double std = config.attention.init_std;
  return config.scale_residual_init ? std / std::sqrt(2.0 * static_cast<double>(config.layers)) : std;
}

ForwardOptions layer_options(const ModelForwardOptions& options) {
  return {.cu_seqlens = options.cu_seqlens,
          .positions = options.positions,
          .phase = options.phase,
          .want_kl = options.want_kl,
          .want_stats = options.want_stats,
          .kl_support = options.kl_support,
          .kl_sample = options.kl_sample,
          .deterministic = options.deterministic,
          .mean_variance = std::nullopt,
          .shared = nullptr,
          .followers = 0,
          .observe = nullptr};
}

// The same, with `tensors` in the places of its own.
std::shared_ptr<const SharedSelection> with_tensors(SharedSelection shared, at::TensorList tensors) {
  std::size_t next = 0;
  shared.visit([&](Tensor& tensor) { tensor = tensors[next++]; });
  return std::make_shared<const SharedSelection>(std::move(shared));
}

// What the backward pass of a layer that selects has to hear of from its followers: the indexer's inputs.
std::vector<Tensor> indexer_tensors(const ForwardResult& result) {
  const ops::IndexerInputs& inputs = result.shared->inputs;
  return {inputs.q, inputs.k, inputs.w};
}

// One block whose activations are computed again in the backward pass.
ForwardResult run_checkpointed(Block& block, const Tensor& x, const ForwardOptions& options,
                               const SequencePlan& plan) {
  ForwardOptions again_options = options;
  again_options.want_stats = false;
  again_options.observe = nullptr;
  Indexer& indexer = block->self_attn->indexer;
  if (indexer && plan.phase != Phase::dense) {
    // The first pass selects with this and then moves it.
    again_options.mean_variance = indexer->mean_variance.clone();
  }
  // A shared selection is an input as x is. The graph keeps its tensors until the backward pass has used them,
  // the function that is run again only their places.
  std::vector<Tensor> inputs = {x};
  std::optional<SharedSelection> places;
  if (options.shared) {
    places = *options.shared;
    places->visit([&](Tensor& tensor) {
      inputs.push_back(tensor);
      tensor = torch::empty({0});
    });
    again_options.shared = nullptr;
  }
  const bool followers_learn = options.want_kl && options.followers > 0;
  const auto tensors = [followers_learn](const ForwardResult& r) {
    std::vector<Tensor> list = {r.out};
    if (r.kl) list.push_back(*r.kl);
    if (followers_learn) {
      for (Tensor& tensor : indexer_tensors(r)) list.push_back(std::move(tensor));
    }
    return list;
  };
  ForwardResult result;
  const Recomputable first = [&](const std::vector<Tensor>&) {
    result = block->forward(x, options, plan);
    return tensors(result);
  };
  const Recomputable again = [block, again_options, plan, places,
                              tensors](const std::vector<Tensor>& given) mutable {
    ForwardOptions now = again_options;
    if (places) now.shared = with_tensors(*places, at::TensorList(given).slice(1));
    return tensors(block->forward(given[0], now, plan));
  };
  std::vector<Tensor> parameters;
  for (const Tensor& parameter : block->parameters()) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  const std::vector<Tensor> outputs = recompute(inputs, parameters, first, again);
  result.out = outputs[0];
  if (result.kl) result.kl = outputs[1];
  if (followers_learn) {
    SharedSelection shared = *result.shared;
    shared.inputs.q = outputs[2];
    shared.inputs.k = outputs[3];
    shared.inputs.w = outputs[4];
    shared.inputs.bias = indexer->bias_as(shared.inputs.w.scalar_type());  // with a graph
    result.shared = std::make_shared<const SharedSelection>(std::move(shared));
  }
  return result;
}

}  // namespace

SwiGluImpl::SwiGluImpl(const ModelConfig& config) {
  const std::int64_t d = config.attention.d_model;
  const double std = config.attention.init_std;
  gate_proj = register_module("gate_proj", new_linear(d, config.intermediate, false, std));
  up_proj = register_module("up_proj", new_linear(d, config.intermediate, false, std));
  down_proj = register_module("down_proj", new_linear(config.intermediate, d, false, residual_std(config)));
}

Tensor SwiGluImpl::forward(const Tensor& x) {
  const Tensor rows = x.reshape({-1, x.size(-1)});
  const Tensor y = down_proj(ops::swiglu(joint_linear(rows, {gate_proj->weight, up_proj->weight})));
  return y.view(x.sizes());
}

BlockImpl::BlockImpl(const ModelConfig& config, std::int64_t layer) {
  const std::int64_t d = config.attention.d_model;
  input_layernorm = register_module("input_layernorm", RmsNorm(d, config.rms_eps));
  self_attn = register_module("self_attn", GatedSparseAttention(config.attention_of(layer), config.rms_eps));
  post_attention_layernorm = register_module("post_attention_layernorm", RmsNorm(d, config.rms_eps));
  mlp = register_module("mlp", SwiGlu(config));
  if (config.scale_residual_init) {
    torch::nn::init::normal_(self_attn->o_proj->weight, 0.0, residual_std(config));
  }
}

ForwardResult BlockImpl::forward(const Tensor& x, const ForwardOptions& options, const SequencePlan& plan) {
  // The stream goes through the norms: each adds the gradient of what comes after to its own.
  const ops::Normed before = input_layernorm->take_in(x, std::nullopt);
  ForwardResult result = self_attn->forward(before.y, options, plan);
  const ops::Normed middle = post_attention_layernorm->take_in(before.sum, result.out);
  result.out = middle.sum + mlp(middle.y);
  return result;
}

DecoderImpl::DecoderImpl(const ModelConfig& config) : vocab_size_(config.vocab_size) {
  const std::int64_t d = config.attention.d_model;
  embed_tokens =
      register_module("embed_tokens", new_embedding(config.vocab_size, d, config.attention.init_std));
  torch::nn::ModuleList list;
  for (std::int64_t n = 0; n < config.layers; ++n) {
    layers.emplace_back(config, n);
    followers_.push_back(0);
    if (config.leader_of(n) != n) ++followers_[static_cast<std::size_t>(config.leader_of(n))];
    list->push_back(layers.back());
  }
  register_module("layers", list);
  norm = register_module("norm", RmsNorm(d, config.rms_eps));
}

Tensor DecoderImpl::embed(const Tensor& tokens, const ModelForwardOptions& options) {
  const std::int64_t dims = options.cu_seqlens ? 1 : 2;
  if (tokens.dim() != dims || tokens.scalar_type() != at::kLong) {
    bad_argument(kOp, "tokens",
                 concat("int64 ", options.cu_seqlens ? "[T] with" : "[B, L] without", " cu_seqlens"),
                 shape_of(tokens));
  }
  const Tensor& weight = embed_tokens->weight;
  if (tokens.device() != weight.device()) {
    bad_argument(kOp, "tokens", concat("a tensor on ", weight.device(), ", where the weights are"),
                 concat(tokens.device()));
  }
  // On a GPU a look at the values would be a wait; torch's own kernel stops there on an index out of range.
  if (tokens.device().is_cpu() && tokens.numel() > 0) {
    const std::int64_t low = tokens.min().item<std::int64_t>(), high = tokens.max().item<std::int64_t>();
    if (low < 0 || high >= vocab_size_) {
      bad_argument(kOp, "tokens", concat("numbers in 0 .. ", vocab_size_ - 1), concat(low < 0 ? low : high));
    }
  }
  return torch::embedding(weight, tokens);
}

ModelResult DecoderImpl::forward(const Tensor& tokens, const ModelForwardOptions& options) {
  ForwardOptions for_layers = layer_options(options);
  Tensor x = embed(tokens, options);
  const SequencePlan plan =
      layers[0]->self_attn->plan(tokens.sizes(), x.scalar_type(), x.device(), for_layers);
  const auto observe = [&](std::int64_t index) {
    if (options.observe) options.observe(index, x.detach().reshape({plan.tokens, x.size(-1)}));
  };

  ModelResult result;
  double group = 1;  // layers that go by the selection at hand
  observe(0);
  for (std::size_t n = 0; n < layers.size(); ++n) {
    if (options.observe_attention) {
      for_layers.observe = [&options, n](const AttentionView& view) {
        options.observe_attention(static_cast<std::int64_t>(n), view);
      };
    }
    if (options.kl_sample) {
      for_layers.kl_sample->seed = philox_bits(options.kl_sample->seed, 0, static_cast<std::uint64_t>(n));
    }
    const bool again = options.checkpoint_activations && torch::GradMode::is_enabled();
    const bool follows = layers[n]->self_attn->config().shares_selection;
    if (!follows) {
      for_layers.shared = nullptr;
      group = static_cast<double>(1 + followers_[n]);
    }
    for_layers.followers = followers_[n];
    ForwardResult layer =
        again ? run_checkpointed(layers[n], x, for_layers, plan) : layers[n]->forward(x, for_layers, plan);
    x = std::move(layer.out);
    if (!follows) for_layers.shared = std::move(layer.shared);
    if (layer.kl) {
      // An indexer's loss: the mean over the layers that go by its selection.
      const Tensor kl = group == 1 ? *layer.kl : *layer.kl / group;
      if (follows) {
        result.kl.back() = result.kl.back() + kl;
      } else {
        result.kl.push_back(kl);
      }
    }
    if (layer.stats) result.stats.push_back(std::move(*layer.stats));
    if (layer.kept) result.kept.push_back(std::move(*layer.kept));
    observe(static_cast<std::int64_t>(n) + 1);
  }
  result.hidden = norm(x);
  return result;
}

const char* name_of(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::base:
      return "base";
    case ParameterKind::indexer:
      return "indexer";
    case ParameterKind::gate:
      return "gate";
  }
  bad_argument(kOp, "kind", "base, indexer or gate", concat(static_cast<int>(kind)));
}

ParameterKind kind_of_parameter(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has(".indexer.")) return ParameterKind::indexer;
  if (has(".value_gate.") || has(".output_gate.")) return ParameterKind::gate;
  return ParameterKind::base;
}

ModelImpl::ModelImpl(const ModelConfig& config) : config_(validated_model(config)) {
  model = register_module("model", Decoder(config_));
  if (!config_.tie_embeddings) {
    const AttentionConfig& a = config_.attention;
    lm_head = register_module("lm_head", new_linear(a.d_model, config_.vocab_size, false, a.init_std));
  }
}

ModelResult ModelImpl::forward(const Tensor& tokens, const ModelForwardOptions& options) {
  return model->forward(tokens, options);
}

Tensor ModelImpl::output_weight() const {
  return config_.tie_embeddings ? model->embed_tokens->weight : lm_head->weight;
}

Tensor ModelImpl::logits(const Tensor& hidden) { return torch::linear(hidden, output_weight()); }

ModelLoss ModelImpl::loss(const Tensor& tokens, const Tensor& targets, const ModelForwardOptions& options) {
  if (targets.sizes() != tokens.sizes() || targets.scalar_type() != at::kLong) {
    bad_argument(kOp, "targets", concat("int64 ", tokens.sizes(), ", as tokens"), shape_of(targets));
  }
  ModelResult result = forward(tokens, options);
  const Tensor flat = targets.reshape({-1});
  ModelLoss loss;
  loss.sum = cross_entropy_sum(result.hidden.reshape({flat.size(0), config_.attention.d_model}),
                               output_weight(), flat);
  loss.count = (flat != kIgnoredTarget).sum();
  loss.kl = std::move(result.kl);
  loss.stats = std::move(result.stats);
  loss.kept = std::move(result.kept);
  return loss;
}

std::vector<ParameterGroup> ModelImpl::parameter_groups() const {
  std::vector<ParameterGroup> groups;
  for (const ParameterKind kind : {ParameterKind::base, ParameterKind::indexer, ParameterKind::gate}) {
    for (const bool decay : {true, false}) {
      ParameterGroup group{.kind = kind, .decay = decay, .names = {}, .parameters = {}};
      for (const auto& item : named_parameters()) {
        if (kind_of_parameter(item.key()) != kind || (item.value().dim() >= 2) != decay) continue;
        group.names.push_back(item.key());
        group.parameters.push_back(item.value());
      }
      if (!group.names.empty()) groups.push_back(std::move(group));
    }
  }
  return groups;
}

void ModelImpl::lay_out_weights() {
  for (const Block& block : model->layers) {
    const GatedSparseAttention& attention = block->self_attn;
    lay_side_by_side({attention->q_proj->weight, attention->k_proj->weight, attention->v_proj->weight});
    lay_side_by_side({block->mlp->gate_proj->weight, block->mlp->up_proj->weight});
  }
}

void ModelImpl::set_learning(ParameterKind kind, bool learns) {
  for (auto& item : named_parameters()) {
    if (kind_of_parameter(item.key()) == kind) item.value().requires_grad_(learns);
  }
}

Tensor total(const std::vector<Tensor>& terms) {
  if (terms.empty()) return torch::zeros({});
  return torch::stack(terms).sum();
}

}  // namespace gsa::nn
