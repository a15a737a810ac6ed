// Gated sparse attention as one module. The four systems of the paper (standard, sparse-only, gated-only,
// gsa) and their ablations are configurations of this one forward pass; docs/specification.md defines it.
//
//   layer = gsa::nn::GatedSparseAttention(config);
//   ForwardResult result = layer->forward(h, {.want_kl = true});   // result.out, *result.kl
//
// Parameters carry the names that a checkpoint gives them: q_proj.weight, k_proj.weight, v_proj.weight,
// o_proj.weight, indexer.{wq,wk,weights_proj}.weight, indexer.bias, {value_gate,output_gate}.{weight,bias};
// with qkv_bias {q,k,v}_proj.bias, with qk_norm {q,k}_norm.weight.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "model/config.h"
#include "model/indexer_kl_sample.h"
#include "nn/indexer.h"
#include "nn/rms_norm.h"
#include "nn/rope.h"
#include "nn/sequence_plan.h"
#include "nn/shared_selection.h"
#include "nn/torch.h"

namespace gsa::nn {

// What one layer's attention worked on, for statistics; all detached, rows packed in the order of the input.
struct AttentionView {
  at::Tensor starts;  // int64 [sequences + 1] on the CPU, cumulative
  at::Tensor q;       // [T, heads, head_size], rotated
  at::Tensor k, v;    // [T, kv_heads, head_size]; k rotated, v gated
  at::Tensor lse;     // Real [T, heads]: log-sum-exp over the keys that were attended to
  // Arguments of the gates' sigmoids: as v and as q, head-wise gates without head_size; undefined where there
  // is no such gate.
  at::Tensor value_gate, output_gate;
  // Of an indexer at work (phase warmup or sparse), else absent; of a layer that shares a selection, those of
  // the layer that selects.
  std::optional<ops::IndexerInputs> indexer = std::nullopt;
  std::optional<ops::BudgetOptions> budget = std::nullopt;
  // What was selected, [T] each; undefined unless the phase is sparse. Sequences that dense_below sends the
  // dense way have selected all they see.
  at::Tensor k_t = {}, threshold = {}, tie_cut = {};
};

struct ForwardOptions {
  // Packed input: int64 [sequences + 1] on the CPU, cumulative, from 0 to the number of tokens.
  std::optional<at::Tensor> cu_seqlens = std::nullopt;
  // For RoPE: integers [B, L], packed [T]. Absent: 0, 1, 2, ... in each sequence.
  std::optional<at::Tensor> positions = std::nullopt;
  // Absent: sparse where the configuration is, else dense.
  std::optional<Phase> phase = std::nullopt;
  bool want_kl = false;     // needs an indexer, and phase warmup or sparse
  bool want_stats = false;  // costs a second pass of attention where there is an indexer at work
  // Of the loss, where it is wanted. Absent sample: every query. A sample needs every visible key for a
  // support: warm-up, or kl_support all.
  KlSupport kl_support = KlSupport::selected;
  std::optional<KlSample> kl_sample = std::nullopt;
  // Gradients are the same bits every time. False is faster on a GPU (nn/dense_attention.h, atomic
  // additions).
  bool deterministic = true;
  // A forward pass that is run again (activation checkpointing): the running mean of the variance that the
  // first one selected with. Absent: the layer's own, which a training pass then moves.
  std::optional<at::Tensor> mean_variance = std::nullopt;
  // For a layer that shares a selection, in the sparse phase and wherever its indexer would have been asked:
  // what the layer that selects returned for the same tokens.
  std::shared_ptr<const SharedSelection> shared = nullptr;
  // How many layers will share this one's selection; ForwardResult::shared is for them.
  std::int64_t followers = 0;
  // Called at the end of the pass. Keeps q, k and v alive until then.
  std::function<void(const AttentionView&)> observe = nullptr;
};

// In warm-up the selection is the one that the indexer would make.
struct AttentionStats {
  at::Tensor k_t;  // int32 [B, L], packed [T]: how many keys each query attends to
  double k_mean = 0;
  std::int64_t k_min = 0, k_max = 0;
  // Share of dense attention's mass on the selected keys, mean over heads and queries. Where the loss over
  // all keys came with an estimate (ForwardResult::kept), it is that, and costs nothing.
  double kept_mass = 1;
  // Mean of Var_t over the queries that count for the running mean; absent where there are none, and in layers
  // that share a selection.
  std::optional<double> variance_mean;
  std::optional<double> value_gate_mean, output_gate_mean;  // absent where there is no such gate
};

struct ForwardResult {
  at::Tensor out;  // as h
  // 0-dim: the indexer's loss, mean over queries; of a sample, an unbiased estimate of that mean. Of a layer
  // that shares a selection: its part of the loss of the indexer it follows.
  std::optional<at::Tensor> kl;
  std::optional<AttentionStats> stats;
  // 0-dim, of a loss over all keys in the sparse phase: the share of dense attention's mass on the selected
  // keys, mean over heads and queries; of a sample, an unbiased estimate (1 less the mass that was lost by
  // the sampled queries, which varies less than what was kept).
  std::optional<at::Tensor> kept;
  std::shared_ptr<const SharedSelection> shared;  // where there are followers and the indexer was at work
};

class GatedSparseAttentionImpl : public torch::nn::Module {
 public:
  // norm_eps: of the norms of q and k, in a model that of all its norms.
  explicit GatedSparseAttentionImpl(const AttentionConfig& config, double norm_eps = 1e-5);

  // h: [B, L, d_model], or [T, d_model] with options.cu_seqlens. In training mode the sparse phase moves the
  // running mean of the variance, after this batch has used it.
  ForwardResult forward(const at::Tensor& h, const ForwardOptions& options = {});

  // The same in two steps, for a model whose layers share one plan. leading: h's shape but for d_model.
  SequencePlan plan(at::IntArrayRef leading, at::ScalarType type, at::Device device,
                    const ForwardOptions& options) const;
  ForwardResult forward(const at::Tensor& h, const ForwardOptions& options, const SequencePlan& plan);

  const AttentionConfig& config() const { return config_; }

  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  RmsNorm q_norm{nullptr}, k_norm{nullptr};                     // null without qk_norm
  torch::nn::Linear value_gate{nullptr}, output_gate{nullptr};  // null where the configuration has none
  Indexer indexer{nullptr};  // null where it is not sparse, or shares a selection

 private:
  Phase checked_phase(const ForwardOptions& options) const;
  void check_options(const ForwardOptions& options, Phase phase) const;
  void check_shared(const SharedSelection& shared, const SequencePlan& plan) const;
  void check_input(const at::Tensor& h, bool packed) const;
  // x [T, d_model] -> queries, keys and values before RoPE, side by side.
  at::Tensor project(const at::Tensor& x);

  AttentionConfig config_;
  Rope rope_;
  std::optional<Rope> indexer_rope_;
};

TORCH_MODULE(GatedSparseAttention);

}  // namespace gsa::nn
