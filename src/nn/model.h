// A decoder-only language model in the shape of Llama (RMSNorm, grouped-query attention with RoPE, SwiGLU),
// whose attention is any of the four systems or their ablations.
//
//   Model model(ModelConfig::preset("tiny"));
//   auto [sum, count, kl, stats, kept] = model->loss(tokens, targets, {.want_kl = true});
//   (sum / count + total(kl)).backward();
//
// Parameters carry the names that Hugging Face gives to Llama's: model.embed_tokens.weight,
// model.layers.N.{input_layernorm,post_attention_layernorm}.weight, model.layers.N.self_attn.*,
// model.layers.N.mlp.{gate,up,down}_proj.weight, model.norm.weight, lm_head.weight (untied only).
//
// Tokens are int64 [B, L], or packed [T] with options.cu_seqlens. Hidden states and logits are [B, L, .] or
// [T, .] accordingly.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "nn/attention.h"
#include "nn/cross_entropy.h"
#include "nn/rms_norm.h"
#include "nn/torch.h"
#include "torch/ops.h"

namespace gsa::nn {

struct ModelForwardOptions {
  // Packed input: int64 [sequences + 1] on the CPU, cumulative, from 0 to the number of tokens.
  std::optional<at::Tensor> cu_seqlens = std::nullopt;
  // For RoPE: integers as tokens. Absent: 0, 1, 2, ... in each sequence.
  std::optional<at::Tensor> positions = std::nullopt;
  // Absent: sparse where the configuration is, else dense.
  std::optional<Phase> phase = std::nullopt;
  bool want_kl = false;     // needs an indexer, and phase warmup or sparse
  bool want_stats = false;  // costs a second pass of attention where there is an indexer at work
  // Of the indexer's loss, as in ForwardOptions. From the seed each layer derives its own.
  KlSupport kl_support = KlSupport::selected;
  std::optional<KlSample> kl_sample = std::nullopt;
  bool deterministic = true;  // gradients are the same bits every time; false is faster on a GPU
  // Keep only the input of each block and compute the block again in the backward pass. Results, gradients
  // and the running mean of the variance are the same to the bit.
  bool checkpoint_activations = false;
  // Called with the residual stream [tokens, d_model] (detached): index 0 before the first block, n after n
  // blocks. For statistics; a backward pass does not call it again.
  std::function<void(std::int64_t index, const at::Tensor& residual)> observe = nullptr;
  // Called with what each layer's attention worked on, layer after layer; likewise not in a backward pass.
  std::function<void(std::int64_t layer, const AttentionView& view)> observe_attention = nullptr;
};

struct ModelResult {
  at::Tensor hidden;  // after the last norm
  // One an indexer, 0-dim; empty unless wanted. Where layers share its selection, the mean over them and its
  // own layer: the same gradient as of the KL against the mean of their attention.
  std::vector<at::Tensor> kl;
  std::vector<AttentionStats> stats;  // one a layer; empty unless wanted
  std::vector<at::Tensor> kept;       // one a layer, 0-dim, where ForwardResult has it; else empty
};

struct ModelLoss {
  at::Tensor sum;    // 0-dim float32 (float64 for float64 models): cross-entropy in nats, added up
  at::Tensor count;  // 0-dim int64, on the device of the tokens: how many targets counted
  std::vector<at::Tensor> kl;
  std::vector<AttentionStats> stats;
  std::vector<at::Tensor> kept;
};

class SwiGluImpl : public torch::nn::Module {
 public:
  explicit SwiGluImpl(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& x);  // down(silu(gate(x)) * up(x))
  torch::nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
};
TORCH_MODULE(SwiGlu);

// x + attention(norm(x)), then x + mlp(norm(x)).
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(const ModelConfig& config, std::int64_t layer);
  ForwardResult forward(const at::Tensor& x, const ForwardOptions& options, const SequencePlan& plan);

  RmsNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
  GatedSparseAttention self_attn{nullptr};
  SwiGlu mlp{nullptr};
};
TORCH_MODULE(Block);

// Embedding, blocks and the last norm: what Hugging Face names "model".
class DecoderImpl : public torch::nn::Module {
 public:
  explicit DecoderImpl(const ModelConfig& config);
  ModelResult forward(const at::Tensor& tokens, const ModelForwardOptions& options);

  torch::nn::Embedding embed_tokens{nullptr};
  std::vector<Block> layers;
  RmsNorm norm{nullptr};

 private:
  at::Tensor embed(const at::Tensor& tokens, const ModelForwardOptions& options);

  std::int64_t vocab_size_;
  std::vector<std::int64_t> followers_;  // of each layer: how many share its selection
};
TORCH_MODULE(Decoder);

enum class ParameterKind { base, indexer, gate };

const char* name_of(ParameterKind kind);
ParameterKind kind_of_parameter(const std::string& name);

// Parameters that are trained alike. Weights (two dimensions or more) decay; biases and norms do not.
struct ParameterGroup {
  ParameterKind kind = ParameterKind::base;
  bool decay = false;
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
};

class ModelImpl : public torch::nn::Module {
 public:
  // Weights are drawn from torch's default generator (torch::manual_seed).
  explicit ModelImpl(const ModelConfig& config);

  ModelResult forward(const at::Tensor& tokens, const ModelForwardOptions& options = {});

  // hidden [..., d_model] -> [..., vocab_size], in the type of the weights.
  at::Tensor logits(const at::Tensor& hidden);

  // Cross-entropy of predicting targets (as tokens; kIgnoredTarget: none) at each position. Logits exist for
  // a chunk of tokens at a time only, forward and backward.
  ModelLoss loss(const at::Tensor& tokens, const at::Tensor& targets,
                 const ModelForwardOptions& options = {});

  // Weight of the output projection: lm_head's, or the embedding's where they are tied.
  at::Tensor output_weight() const;

  // Every parameter once, in at most six groups (kind, decay), in the order of named_parameters. Empty groups
  // are left out.
  std::vector<ParameterGroup> parameter_groups() const;

  // Puts weights that share an input side by side in memory, so that their products run as one without a copy
  // (nn/joint_linear.h). A change of type or device parts them again: results stay the same, only slower.
  void lay_out_weights();

  // Which parameters take part in learning: requires_grad of every parameter of this kind.
  void set_learning(ParameterKind kind, bool learns);

  const ModelConfig& config() const { return config_; }

  Decoder model{nullptr};
  torch::nn::Linear lm_head{nullptr};  // null where embeddings are tied

 private:
  ModelConfig config_;
};
TORCH_MODULE(Model);

// Sum of per-layer terms; 0 for none.
at::Tensor total(const std::vector<at::Tensor>& terms);

}  // namespace gsa::nn
