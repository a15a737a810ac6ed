#include "nn/attention.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/philox.h"
#include "gsa/error.h"
#include "gsa/tensor_view.h"
#include "kernels/attention/kept_mask.h"
#include "nn/dense_attention.h"
#include "nn/joint_linear.h"
#include "nn/new_layers.h"
#include "nn/shape_of.h"
#include "torch/ops.h"

namespace gsa::nn {
namespace {

using at::Tensor;

constexpr const char* kAttentionOp = "nn::GatedSparseAttention";

AttentionConfig validated_layer(const AttentionConfig& config) {
  config.validate();
  return config;
}

// What attention over one group gives; all [rows of the group, ...].
struct GroupResult {
  Tensor out;                 // [., heads, head_size]
  Tensor kl;                  // [.], where wanted; 0 outside the sample
  Tensor lost;                // 0-dim, with a loss over all keys of a sparse group: see lost_mass()
  Tensor lse;                 // [., heads]
  Tensor variance;            // [.], where a selection was made
  Tensor threshold, tie_cut;  // [.], where the group is sparse
  Tensor k_t;                 // int32 [.], where the group is sparse or statistics are wanted
  Tensor kept;  // [.], where statistics are wanted: share of the dense attention mass, mean over heads
  ops::Selection selection;  // where the group is sparse
};

// The rows of all groups, back in the order of the input.
template <typename Member>
Tensor gather(const std::vector<SequenceGroup>& groups, const std::vector<GroupResult>& results,
              Member member) {
  if (groups.size() == 1) return results[0].*member;
  std::vector<Tensor> rows, parts;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    rows.push_back(groups[g].rows);
    parts.push_back(results[g].*member);
  }
  return torch::cat(parts).index_select(0, torch::argsort(torch::cat(rows)));
}

// The indexer that is asked: the layer's own, or the one whose selection it shares.
struct Asked {
  ops::IndexerInputs inputs;
  Temperature temperature;
  ops::BudgetOptions budget;
  const SharedSelection* shared = nullptr;  // null: the layer selects by itself
};

// What a layer's losses (one a group) give to a tensor is summed up before it joins what other layers give:
// the order of these sums is then the same with recomputed activations, where layers are functions apart.
Tensor summed_by_layer(const Tensor& x) { return x.requires_grad() ? x.alias() : x; }

Asked summed_by_layer(Asked asked) {
  ops::IndexerInputs& inputs = asked.inputs;
  if (asked.shared != nullptr) {
    inputs.q = summed_by_layer(inputs.q);
    inputs.k = summed_by_layer(inputs.k);
    inputs.w = summed_by_layer(inputs.w);
  }
  if (inputs.bias) inputs.bias = summed_by_layer(*inputs.bias);
  if (asked.temperature.log) asked.temperature.log = summed_by_layer(*asked.temperature.log);
  return asked;
}

struct GroupInputs {
  Tensor q, k, v;              // packed, rotated, gated
  std::optional<Asked> asked;  // absent where the indexer is frozen
};

ops::IndexerInputs take(const SequenceGroup& group, ops::IndexerInputs inputs) {
  inputs.q = group.take(inputs.q);
  inputs.k = group.take(inputs.k);
  inputs.w = group.take(inputs.w);
  return inputs;
}

ops::IndexerInputs without_gradient(ops::IndexerInputs inputs) {
  inputs.q = inputs.q.detach();
  inputs.k = inputs.k.detach();
  inputs.w = inputs.w.detach();
  if (inputs.bias) inputs.bias = inputs.bias->detach();
  return inputs;
}

// Over which keys the indexer's loss runs; all absent: every visible one.
struct Support {
  ops::OptTensor mask, threshold, tie_cut;
};

// What was selected.
Support support_of(const ops::IndexerInputs& inputs, const ops::Selection& selection, bool has_temperature,
                   const ops::Layout& layout) {
  if (selection.mask.defined()) return {selection.mask, {}, {}};
  if (!has_temperature) return {{}, selection.threshold, selection.tie_cut};
  // A threshold speaks of the scores that were selected by, and the loss sees others: their mask then.
  return {ops::select_mask(without_gradient(inputs), selection.threshold, selection.tie_cut, layout), {}, {}};
}

// One part of how many, of the queries, the loss is taken of.
std::int64_t sample_parts(const ForwardOptions& options) {
  if (!options.kl_sample) return 1;
  const std::optional<std::int64_t> parts = parts_of_share(options.kl_sample->share);
  if (!parts) bad_argument(kAttentionOp, "kl_sample.share", kShareExpected, concat(options.kl_sample->share));
  return *parts;
}

// The sampled tiles of a group, each group with draws of its own; absent: every query.
ops::OptTensor draw_tiles(const SequenceGroup& group, const ForwardOptions& options) {
  const std::int64_t parts = sample_parts(options);
  if (parts == 1) return {};
  const std::span<const std::int64_t> starts(group.starts.const_data_ptr<std::int64_t>(),
                                             static_cast<std::size_t>(group.starts.numel()));
  const std::uint64_t seed = philox_bits(options.kl_sample->seed, 1, group.sparse ? 1 : 0);
  const std::vector<std::int64_t> tiles = sample_query_tiles(starts, parts, seed);
  return torch::tensor(at::ArrayRef<std::int64_t>(tiles), torch::kInt64);
}

// Dense attention's mass beside the selected keys, mean over heads, added up over the sampled queries. Others
// have a dense lse of 0 (so may one of a sampled query, by chance: it goes uncounted).
Tensor lost_mass(const Tensor& sparse_lse, const Tensor& dense_lse) {
  const Tensor lost = 1 - (sparse_lse - dense_lse).exp();
  return torch::where(dense_lse == 0, 0.0, lost).mean(-1).sum();
}

// Whether somebody wants the mask once more, and it is worth its memory. The mask of several layers may take
// that of each.
bool keeps_mask(const SequenceGroup& group, const Tensor& q, const Tensor& k, const Tensor& v,
                const ForwardOptions& options) {
  const bool backward =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  const bool loss = options.want_kl && options.kl_support == KlSupport::selected;
  const std::int64_t query_bytes = q.size(1) * q.size(2) * static_cast<std::int64_t>(q.element_size());
  return (backward || loss || options.followers > 0) &&
         mask_is_affordable(mask_words(group.longest), query_bytes * (1 + options.followers));
}

// Attention of a sparse group, and what it went by.
ops::SparseAttention attend_sparsely(const SequenceGroup& group, const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Asked& asked, const ops::IndexerInputs& inputs,
                                     const ops::Selection* shared, const ForwardOptions& options) {
  const ops::Layout layout = group.layout();
  const std::string accumulation = options.deterministic ? "ordered" : "atomic";
  if (shared != nullptr && shared->mask.defined()) {
    return {ops::attend(q, k, v, shared->mask, {}, layout, accumulation), *shared};
  }
  const bool with_mask = shared == nullptr && keeps_mask(group, q, k, v, options);
  const auto attend = with_mask ? ops::sparse_attend_with_mask : ops::sparse_attend;
  return attend(q, k, v, without_gradient(inputs), asked.budget, {}, layout, accumulation);
}

GroupResult attend_group(const SequenceGroup& group, const ops::Selection* shared, const GroupInputs& all,
                         const SequencePlan& plan, const ForwardOptions& options) {
  const Tensor q = group.take(all.q), k = group.take(all.k), v = group.take(all.v);
  const ops::Layout layout = group.layout();
  std::optional<ops::IndexerInputs> inputs;
  if (all.asked) inputs = take(group, all.asked->inputs);

  GroupResult result;
  ops::Selection& selection = result.selection;
  const bool over_all = !group.sparse || options.kl_support == KlSupport::all;  // the indexer's loss
  if (group.sparse) {
    const ops::SparseAttention sparse = attend_sparsely(group, q, k, v, *all.asked, *inputs, shared, options);
    selection = sparse.selection;
    result.out = sparse.attention.out;
    result.lse = sparse.attention.lse;
    if (shared == nullptr) result.variance = selection.variance;
    result.threshold = selection.threshold;
    result.tie_cut = selection.tie_cut;
    result.k_t = selection.k_t;
  } else {
    auto attention = dense_attend(q, k, v, group, options.deterministic);
    result.out = attention.out;
    result.lse = attention.lse;
    if (options.observe && plan.phase == Phase::sparse) {
      result.k_t = group.take(plan.visible).to(torch::kInt32);
      result.threshold = torch::full_like(result.lse.select(-1, 0), -std::numeric_limits<double>::infinity());
      result.tie_cut = result.k_t - 1;
    }
  }

  if (options.want_kl) {
    Support support;
    ops::OptTensor tiles;
    Tensor lse = result.lse;
    if (over_all) {
      tiles = draw_tiles(group, options);
    } else {
      support = support_of(*inputs, selection, all.asked->temperature.present(), layout);
    }
    if (over_all && group.sparse) {
      lse = ops::attend_lse(q.detach(), k.detach(), tiles, {}, layout);
      result.lost = lost_mass(result.lse, lse);
    }
    // The target is a constant: neither q nor k learns from it.
    result.kl = ops::indexer_kl(q.detach(), k.detach(), lse, all.asked->temperature.apply(*inputs),
                                support.mask, support.threshold, support.tie_cut, {}, layout, tiles)
                    .loss;
  }

  if (options.want_stats) {
    torch::NoGradGuard no_grad;
    if (group.sparse) {
      // A loss over all keys has brought the kept mass of the whole batch along.
      if (!result.lost.defined()) {
        result.kept = (result.lse - ops::attend_lse(q, k, {}, {}, layout)).exp().mean(-1);
      }
    } else if (plan.phase == Phase::warmup) {
      const ops::SparseAttention sparse = ops::sparse_attend(q, k, v, *inputs, all.asked->budget, {}, layout);
      result.kept = (sparse.attention.lse - result.lse).exp().mean(-1);
      if (all.asked->shared == nullptr) result.variance = sparse.selection.variance;
      result.k_t = sparse.selection.k_t;
    } else {
      result.k_t = group.take(plan.visible).to(torch::kInt32);
      result.kept = torch::ones_like(result.lse.select(-1, 0));
    }
  }
  return result;
}

// y gated by a projection z of x, and the gate's mean where it is wanted. No gate: y itself, z undefined.
Tensor apply_gate(torch::nn::Linear& gate, GateKind kind, const Tensor& x, const Tensor& y, bool want_mean,
                  Tensor& z, std::optional<double>& mean) {
  if (kind == GateKind::none) return y;
  z = gate(x);
  if (kind == GateKind::elementwise) z = z.view(y.sizes());
  if (want_mean && z.numel() > 0) mean = z.detach().to(torch::kFloat32).sigmoid().mean().item<double>();
  return ops::gate(y, z);
}

}  // namespace

GatedSparseAttentionImpl::GatedSparseAttentionImpl(const AttentionConfig& config, double norm_eps)
    : config_(validated_layer(config)),
      rope_(config_.head_size, config_.rope, /*with_attention_factor=*/true) {
  auto linear = [&](const char* name, std::int64_t from, std::int64_t to, double std, bool with_bias) {
    return register_module(name, new_linear(from, to, with_bias, std));
  };
  const std::int64_t d = config.d_model, size = config.head_size;
  q_proj = linear("q_proj", d, config.heads * size, config.init_std, config.qkv_bias);
  k_proj = linear("k_proj", d, config.kv_heads * size, config.init_std, config.qkv_bias);
  v_proj = linear("v_proj", d, config.kv_heads * size, config.init_std, config.qkv_bias);
  o_proj = linear("o_proj", config.heads * size, d, config.init_std, false);
  if (config.qk_norm) {
    q_norm = register_module("q_norm", RmsNorm(size, norm_eps));
    k_norm = register_module("k_norm", RmsNorm(size, norm_eps));
  }
  auto gate = [&](const char* name, GateKind kind, std::int64_t heads) {
    const std::int64_t width = kind == GateKind::elementwise ? heads * size : heads;
    torch::nn::Linear made = linear(name, d, width, config.gate_init_std, true);
    torch::nn::init::constant_(made->bias, gate_init_bias(config));
    return made;
  };
  if (config.value_gate != GateKind::none)
    value_gate = gate("value_gate", config.value_gate, config.kv_heads);
  if (config.output_gate != GateKind::none)
    output_gate = gate("output_gate", config.output_gate, config.heads);
  if (config.has_indexer()) {
    indexer = register_module("indexer", Indexer(config));
    indexer_rope_.emplace(config.indexer_rope_size(), config.rope, /*with_attention_factor=*/false);
  }
}

Phase GatedSparseAttentionImpl::checked_phase(const ForwardOptions& options) const {
  const Phase phase = options.phase.value_or(config_.sparse ? Phase::sparse : Phase::dense);
  name_of(phase);  // refuses what is no phase
  check_options(options, phase);
  return phase;
}

void GatedSparseAttentionImpl::check_options(const ForwardOptions& options, Phase phase) const {
  if (phase != Phase::dense && !config_.sparse) {
    bad_argument(kAttentionOp, "phase", "dense for a layer without an indexer", name_of(phase));
  }
  if (options.shared && !config_.shares_selection) {
    bad_argument(kAttentionOp, "shared", "none for a layer that does not share a selection", "one");
  }
  if (options.followers > 0 && !indexer) {
    bad_argument(kAttentionOp, "followers", "0 for a layer without an indexer", concat(options.followers));
  }
  if (options.want_kl && phase == Phase::dense) {
    bad_argument(kAttentionOp, "want_kl", "false in the dense phase, where the indexer is frozen", "true");
  }
  name_of(options.kl_support);
  if (options.want_kl && sample_parts(options) > 1 && phase == Phase::sparse &&
      options.kl_support == KlSupport::selected) {
    bad_argument(kAttentionOp, "kl_sample", "none beside kl_support selected, whose loss is of every query",
                 concat("a share of ", options.kl_sample->share));
  }
}

void GatedSparseAttentionImpl::check_shared(const SharedSelection& shared, const SequencePlan& plan) const {
  const auto tokens = shared.inputs.q.size(0);
  const bool same_sequences = shared.starts.equal(plan.starts);
  bool fits = same_sequences && tokens == plan.tokens && shared.groups.size() == plan.groups.size();
  for (std::size_t g = 0; fits && g < plan.groups.size(); ++g) {
    fits = shared.groups[g].k_t.defined() == plan.groups[g].sparse;
  }
  if (!fits) {
    bad_argument(kAttentionOp, "shared",
                 concat("a selection for these sequences, of ", plan.tokens, " tokens, in this phase"),
                 concat("one of ", tokens, " tokens in ", shared.groups.size(), " groups",
                        same_sequences ? "" : ", of other sequences"));
  }
}

void GatedSparseAttentionImpl::check_input(const Tensor& h, bool packed) const {
  if (h.dim() != (packed ? 2 : 3) || h.size(-1) != config_.d_model || !h.is_floating_point()) {
    bad_argument(kAttentionOp, "h",
                 concat("floating point [", packed ? "T" : "B, L", ", ", config_.d_model, "]",
                        packed ? " with" : " without", " cu_seqlens"),
                 shape_of(h));
  }
  const at::ScalarType type = q_proj->weight.scalar_type();
  if (h.scalar_type() != type && !at::autocast::is_autocast_enabled(h.device().type())) {
    bad_argument(kAttentionOp, "h", concat(type, ", the type of the weights"), shape_of(h));
  }
}

Tensor GatedSparseAttentionImpl::project(const Tensor& x) {
  std::vector<Tensor> biases;
  if (config_.qkv_bias) biases = {q_proj->bias, k_proj->bias, v_proj->bias};
  const Tensor all = joint_linear(x, {q_proj->weight, k_proj->weight, v_proj->weight}, biases);
  if (!config_.qk_norm) return all;
  const std::int64_t q = config_.heads * config_.head_size, k = config_.kv_heads * config_.head_size;
  const auto normed = [&](RmsNorm& norm, std::int64_t begin, std::int64_t width) {
    return norm(all.narrow(1, begin, width).reshape({-1, config_.head_size})).view({x.size(0), width});
  };
  return torch::cat({normed(q_norm, 0, q), normed(k_norm, q, k), all.narrow(1, q + k, k)}, 1);
}

SequencePlan GatedSparseAttentionImpl::plan(at::IntArrayRef leading, at::ScalarType type, at::Device device,
                                            const ForwardOptions& options) const {
  return make_sequence_plan(
      config_, rope_, indexer_rope_,
      {leading, options.cu_seqlens, options.positions, checked_phase(options), type, device});
}

ForwardResult GatedSparseAttentionImpl::forward(const Tensor& h, const ForwardOptions& options) {
  checked_phase(options);
  check_input(h, options.cu_seqlens.has_value());
  const auto leading = h.sizes().slice(0, static_cast<std::size_t>(h.dim() - 1));
  return forward(h, options, plan(leading, h.scalar_type(), h.device(), options));
}

ForwardResult GatedSparseAttentionImpl::forward(const Tensor& h, const ForwardOptions& options,
                                                const SequencePlan& plan) {
  check_input(h, options.cu_seqlens.has_value());
  const Phase phase = plan.phase;
  check_options(options, phase);
  const std::int64_t tokens = plan.tokens, size = config_.head_size;
  AttentionStats stats;

  const Tensor x = h.reshape({tokens, config_.d_model});
  GroupInputs inputs;
  Tensor value_gate_z, output_gate_z;
  const auto [q, k, v] = ops::rotary(project(x), plan.rope.cos, plan.rope.sin, config_.heads,
                                     config_.kv_heads, config_.kv_heads);
  inputs.q = q;
  inputs.k = k;
  inputs.v = apply_gate(value_gate, config_.value_gate, x, v, options.want_stats, value_gate_z,
                        stats.value_gate_mean);
  const bool looked_at = options.want_kl || options.want_stats || options.observe;
  std::shared_ptr<SharedSelection> for_followers;
  if (phase == Phase::sparse || (phase == Phase::warmup && looked_at)) {
    if (config_.shares_selection) {
      if (!options.shared) {
        bad_argument(kAttentionOp, "shared", "the selection that this layer shares, as it has no indexer",
                     "none");
      }
      check_shared(*options.shared, plan);
    }
    const SharedSelection* const shared = options.shared.get();
    Asked asked = shared != nullptr ? Asked{shared->inputs, shared->temperature, shared->budget, shared}
                                    : Asked{indexer->project(x, plan.indexer_rope), indexer->temperature(),
                                            indexer->budget(options.mean_variance)};
    if (options.followers > 0) {
      for_followers = std::make_shared<SharedSelection>(
          SharedSelection{asked.inputs, asked.temperature, asked.budget, {}, plan.starts});
      for_followers->inputs.bias = indexer->bias_as(asked.inputs.w.scalar_type());
    }
    inputs.asked = summed_by_layer(std::move(asked));
  }

  std::vector<GroupResult> results;
  Tensor variance_totals;  // of the group that selected, if one did
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const SequenceGroup& group = plan.groups[g];
    const bool shares = inputs.asked && inputs.asked->shared != nullptr;
    results.push_back(
        attend_group(group, shares ? &inputs.asked->shared->groups[g] : nullptr, inputs, plan, options));
    const Tensor& variance = results.back().variance;
    if (variance.defined()) variance_totals = indexer->variance_totals(variance, group.take(plan.visible));
    if (for_followers) {
      for_followers->groups.push_back(results.back().selection);
      for_followers->groups.back().variance = Tensor();  // the running mean is this layer's affair
    }
    results.back().selection = {};  // its mask is large
  }

  // With long sequences they are too large to keep for nothing.
  if (!options.observe) inputs.q = inputs.k = inputs.v = value_gate_z = Tensor();
  const Tensor attended = gather(plan.groups, results, &GroupResult::out);
  const Tensor gated = apply_gate(output_gate, config_.output_gate, x, attended, options.want_stats,
                                  output_gate_z, stats.output_gate_mean);
  ForwardResult result;
  result.shared = std::move(for_followers);
  result.out = o_proj(gated.reshape({tokens, config_.heads * size})).view(h.sizes());
  // The mean over no query at all is 0, not NaN: an empty batch teaches nothing.
  const auto mean = [tokens](const Tensor& rows) {
    return rows.sum() / static_cast<double>(std::max<std::int64_t>(tokens, 1));
  };
  if (options.want_kl) {
    const double parts = static_cast<double>(sample_parts(options));
    result.kl = mean(gather(plan.groups, results, &GroupResult::kl)) * parts;
    if (phase == Phase::sparse && options.kl_support == KlSupport::all) {
      Tensor lost = torch::zeros({1}, result.kl->options().requires_grad(false));
      for (const GroupResult& group : results) {
        if (group.lost.defined()) lost = lost + group.lost;
      }
      result.kept = 1 - mean(lost) * parts;
    }
  }

  if (options.want_stats) {
    const auto leading = h.sizes().slice(0, static_cast<std::size_t>(h.dim() - 1));
    stats.k_t = gather(plan.groups, results, &GroupResult::k_t).view(leading);
    if (tokens > 0) {
      stats.k_mean = stats.k_t.to(torch::kFloat64).mean().item<double>();
      stats.k_min = stats.k_t.min().item<std::int64_t>();
      stats.k_max = stats.k_t.max().item<std::int64_t>();
      stats.kept_mass = (result.kept ? *result.kept : mean(gather(plan.groups, results, &GroupResult::kept)))
                            .item<double>();
    }
    if (variance_totals.defined() && variance_totals[1].item<double>() > 0) {
      stats.variance_mean = (variance_totals[0] / variance_totals[1]).item<double>();
    }
    result.stats = std::move(stats);
  }

  if (options.observe) {
    const auto detached = [](const Tensor& t) { return t.defined() ? t.detach() : t; };
    AttentionView view{.starts = plan.starts,
                       .q = inputs.q.detach(),
                       .k = inputs.k.detach(),
                       .v = inputs.v.detach(),
                       .lse = gather(plan.groups, results, &GroupResult::lse).detach(),
                       .value_gate = detached(value_gate_z),
                       .output_gate = detached(output_gate_z)};
    if (inputs.asked) {
      view.indexer = without_gradient(inputs.asked->inputs);
      view.budget = inputs.asked->budget;
    }
    if (phase == Phase::sparse) {
      view.k_t = gather(plan.groups, results, &GroupResult::k_t);
      view.threshold = gather(plan.groups, results, &GroupResult::threshold);
      view.tie_cut = gather(plan.groups, results, &GroupResult::tie_cut);
    }
    options.observe(view);
  }

  if (phase == Phase::sparse && indexer && is_training() && !options.mean_variance) {
    // Dense sequences select nothing, yet every rank has to take part in the sum.
    if (!variance_totals.defined()) variance_totals = torch::zeros({2}, h.options().dtype(torch::kFloat64));
    indexer->update_mean_variance(variance_totals);
  }
  return result;
}

}  // namespace gsa::nn
