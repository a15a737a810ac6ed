#include "nn/attention.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gsa/error.h"

namespace gsa::nn {
namespace {

using at::Tensor;

constexpr const char* kOp = "nn::GatedSparseAttention";

AttentionConfig validated(const AttentionConfig& config) {
  config.validate();
  return config;
}

std::string shape_of(const Tensor& x) { return concat(x.scalar_type(), " ", x.sizes()); }

Tensor cpu_tensor(const std::vector<std::int64_t>& values) {
  return torch::tensor(at::ArrayRef<std::int64_t>(values), torch::kInt64);
}

// Everything inside the layer is packed; a batch is the case of equal lengths. Checks h and cu_seqlens.
std::vector<std::int64_t> sequence_starts(const Tensor& h, const std::optional<Tensor>& cu_seqlens,
                                          std::int64_t d_model) {
  const std::int64_t dims = cu_seqlens ? 2 : 3;
  if (h.dim() != dims || h.size(-1) != d_model || !h.is_floating_point()) {
    bad_argument(kOp, "h",
                 concat("floating point [", cu_seqlens ? "T" : "B, L", ", ", d_model, "]",
                        cu_seqlens ? " with" : " without", " cu_seqlens"),
                 shape_of(h));
  }
  std::vector<std::int64_t> starts;
  if (!cu_seqlens) {
    for (std::int64_t n = 0; n <= h.size(0); ++n) starts.push_back(n * h.size(1));
    return starts;
  }
  if (cu_seqlens->dim() != 1 || cu_seqlens->numel() == 0 || cu_seqlens->scalar_type() != torch::kInt64 ||
      !cu_seqlens->device().is_cpu()) {
    bad_argument(kOp, "cu_seqlens", "int64 [sequences + 1] on the CPU",
                 concat(shape_of(*cu_seqlens), " on ", cu_seqlens->device()));
  }
  const auto values = cu_seqlens->accessor<std::int64_t, 1>();
  for (std::int64_t n = 0; n < values.size(0); ++n) {
    if (values[n] < (n == 0 ? 0 : starts.back())) {
      bad_argument(kOp, "cu_seqlens", "numbers that start at 0 and never fall", concat(values[n], " at ", n));
    }
    starts.push_back(values[n]);
  }
  if (starts.front() != 0 || starts.back() != h.size(0)) {
    bad_argument(kOp, "cu_seqlens", concat("a range from 0 to the number of tokens (", h.size(0), ")"),
                 concat(starts.front(), " to ", starts.back()));
  }
  return starts;
}

// 0, 1, 2, ... from the start of each sequence, [T].
Tensor index_in_sequence(const std::vector<std::int64_t>& starts, const torch::Device& device) {
  const Tensor bounds = cpu_tensor(starts);
  const std::int64_t count = bounds.numel() - 1;
  const Tensor begin = bounds.narrow(0, 0, count);
  const Tensor lengths = bounds.narrow(0, 1, count) - begin;
  return (torch::arange(starts.back(), torch::kInt64) - torch::repeat_interleave(begin, lengths)).to(device);
}

Tensor checked_positions(const Tensor& positions, const Tensor& h) {
  const auto expected = h.sizes().slice(0, static_cast<std::size_t>(h.dim() - 1));
  if (!at::isIntegralType(positions.scalar_type(), /*includeBool=*/false) || positions.sizes() != expected) {
    bad_argument(kOp, "positions", concat("integers ", expected), shape_of(positions));
  }
  return positions.reshape({-1}).to(h.device());
}

// Sequences that are attended to in the same way, and the rows of the packed input that they occupy.
struct Group {
  bool sparse = false;
  std::vector<std::int64_t> starts;
  Tensor rows;  // int64, undefined: all of them

  Tensor take(const Tensor& x) const { return rows.defined() ? x.index_select(0, rows) : x; }

  ops::Layout layout() const {
    const Tensor bounds = cpu_tensor(starts);
    return {bounds, bounds, std::nullopt};
  }
};

// One group, unless dense_below parts short sequences from long ones.
std::vector<Group> make_groups(const std::vector<std::int64_t>& starts, Phase phase, std::int64_t dense_below,
                               const torch::Device& device) {
  Group sparse{.sparse = true, .starts = {0}, .rows = {}}, dense{.sparse = false, .starts = {0}, .rows = {}};
  std::vector<Tensor> sparse_rows, dense_rows;
  for (std::size_t n = 0; n + 1 < starts.size(); ++n) {
    const std::int64_t length = starts[n + 1] - starts[n];
    const bool is_sparse = phase == Phase::sparse && length >= dense_below;
    Group& group = is_sparse ? sparse : dense;
    group.starts.push_back(group.starts.back() + length);
    (is_sparse ? sparse_rows : dense_rows).push_back(torch::arange(starts[n], starts[n + 1], torch::kInt64));
  }
  if (dense_rows.empty() && phase == Phase::sparse) return {sparse};
  if (sparse_rows.empty()) return {dense};
  sparse.rows = torch::cat(sparse_rows).to(device);
  dense.rows = torch::cat(dense_rows).to(device);
  return {sparse, dense};
}

// What attention over one group gives; all [rows of the group, ...].
struct GroupResult {
  Tensor out;       // [., heads, head_size]
  Tensor kl;        // [.], where wanted
  Tensor variance;  // [.], where a selection was made
  Tensor k_t;       // int32 [.], where statistics are wanted, like the next
  Tensor kept;      // [.], share of the dense attention mass, mean over heads
};

// The rows of all groups, back in the order of the input.
template <typename Member>
Tensor gather(const std::vector<Group>& groups, const std::vector<GroupResult>& results, Member member) {
  if (groups.size() == 1) return results[0].*member;
  std::vector<Tensor> rows, parts;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    rows.push_back(groups[g].rows);
    parts.push_back(results[g].*member);
  }
  return torch::cat(parts).index_select(0, torch::argsort(torch::cat(rows)));
}

struct GroupInputs {
  Tensor q, k, v;                             // packed, rotated, gated
  Tensor visible;                             // int64 [T], how many keys a query sees
  std::optional<ops::IndexerInputs> indexer;  // absent where the indexer rests
};

ops::IndexerInputs take(const Group& group, ops::IndexerInputs inputs) {
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

Support support_of(const Group& group, const ops::IndexerInputs& inputs, const Tensor& threshold,
                   const Tensor& tie_cut, bool has_temperature, const ops::Layout& layout) {
  if (!group.sparse) return {};
  if (!has_temperature) return {{}, threshold, tie_cut};
  // A threshold speaks of the scores that were selected by, and the loss sees others: their mask then.
  return {ops::select_mask(without_gradient(inputs), threshold, tie_cut, layout), {}, {}};
}

GroupResult attend_group(const Group& group, const GroupInputs& all, const Indexer& indexer, Phase phase,
                         const ForwardOptions& options) {
  const Tensor q = group.take(all.q), k = group.take(all.k), v = group.take(all.v);
  const ops::Layout layout = group.layout();
  std::optional<ops::IndexerInputs> inputs;
  if (all.indexer) inputs = take(group, *all.indexer);

  GroupResult result;
  Tensor lse, threshold, tie_cut;
  if (group.sparse) {
    auto [attention, selection] =
        ops::sparse_attend(q, k, v, without_gradient(*inputs), indexer->budget(), {}, layout);
    result = {
        .out = attention.out, .kl = {}, .variance = selection.variance, .k_t = selection.k_t, .kept = {}};
    lse = attention.lse;
    threshold = selection.threshold;
    tie_cut = selection.tie_cut;
  } else {
    auto attention = ops::attend(q, k, v, {}, {}, layout);
    result.out = attention.out;
    lse = attention.lse;
  }

  if (options.want_kl) {
    const Support support =
        support_of(group, *inputs, threshold, tie_cut, indexer->has_temperature(), layout);
    // The target is a constant: neither q nor k learns from it.
    result.kl = ops::indexer_kl(q.detach(), k.detach(), lse, indexer->at_temperature(*inputs), support.mask,
                                support.threshold, support.tie_cut, {}, layout)
                    .loss;
  }

  if (options.want_stats) {
    torch::NoGradGuard no_grad;
    if (group.sparse) {
      const Tensor dense_lse = ops::attend(q, k, v, {}, {}, layout).lse;
      result.kept = (lse - dense_lse).exp().mean(-1);
    } else if (phase == Phase::warmup) {
      auto [attention, selection] = ops::sparse_attend(q, k, v, *inputs, indexer->budget(), {}, layout);
      result.kept = (attention.lse - lse).exp().mean(-1);
      result.variance = selection.variance;
      result.k_t = selection.k_t;
    } else {
      result.k_t = group.take(all.visible).to(torch::kInt32);
      result.kept = torch::ones_like(lse.select(-1, 0));
    }
  }
  return result;
}

// y gated by a projection of x, and the gate's mean where it is wanted. No gate: y itself.
Tensor apply_gate(torch::nn::Linear& gate, GateKind kind, const Tensor& x, const Tensor& y, bool want_mean,
                  std::optional<double>& mean) {
  if (kind == GateKind::none) return y;
  Tensor z = gate(x);
  if (kind == GateKind::elementwise) z = z.view(y.sizes());
  if (want_mean && z.numel() > 0) mean = z.detach().to(torch::kFloat32).sigmoid().mean().item<double>();
  return ops::gate(y, z);
}

}  // namespace

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::dense:
      return "dense";
    case Phase::warmup:
      return "warmup";
    case Phase::sparse:
      return "sparse";
  }
  bad_argument(kOp, "phase", "dense, warmup or sparse", concat(static_cast<int>(phase)));
}

GatedSparseAttentionImpl::GatedSparseAttentionImpl(const AttentionConfig& config)
    : config_(validated(config)), rope_(config_.head_size, config_.rope, /*with_attention_factor=*/true) {
  auto linear = [&](const char* name, std::int64_t from, std::int64_t to, double std, bool with_bias) {
    auto module =
        register_module(name, torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(with_bias)));
    torch::nn::init::normal_(module->weight, 0.0, std);
    if (with_bias) torch::nn::init::zeros_(module->bias);
    return module;
  };
  const std::int64_t d = config.d_model, size = config.head_size;
  q_proj = linear("q_proj", d, config.heads * size, config.init_std, false);
  k_proj = linear("k_proj", d, config.kv_heads * size, config.init_std, false);
  v_proj = linear("v_proj", d, config.kv_heads * size, config.init_std, false);
  o_proj = linear("o_proj", config.heads * size, d, config.init_std, false);
  auto gate = [&](const char* name, GateKind kind, std::int64_t heads) {
    const std::int64_t width = kind == GateKind::elementwise ? heads * size : heads;
    return linear(name, d, width, config.gate_init_std, true);
  };
  if (config.value_gate != GateKind::none)
    value_gate = gate("value_gate", config.value_gate, config.kv_heads);
  if (config.output_gate != GateKind::none)
    output_gate = gate("output_gate", config.output_gate, config.heads);
  if (config.sparse) indexer = register_module("indexer", Indexer(config));
}

Phase GatedSparseAttentionImpl::checked_phase(const ForwardOptions& options) const {
  const Phase phase = options.phase.value_or(config_.sparse ? Phase::sparse : Phase::dense);
  name_of(phase);  // refuses what is no phase
  if (phase != Phase::dense && !config_.sparse) {
    bad_argument(kOp, "phase", "dense for a layer without an indexer", name_of(phase));
  }
  if (options.want_kl && phase == Phase::dense) {
    bad_argument(kOp, "want_kl", "false in the dense phase, where the indexer rests", "true");
  }
  return phase;
}

ForwardResult GatedSparseAttentionImpl::forward(const Tensor& h, const ForwardOptions& options) {
  const Phase phase = checked_phase(options);
  const std::vector<std::int64_t> starts = sequence_starts(h, options.cu_seqlens, config_.d_model);
  const at::ScalarType type = q_proj->weight.scalar_type();
  if (h.scalar_type() != type && !at::autocast::is_autocast_enabled(h.device().type())) {
    bad_argument(kOp, "h", concat(type, ", the type of the weights"), shape_of(h));
  }
  const std::int64_t tokens = starts.back(), size = config_.head_size;
  const Tensor index = index_in_sequence(starts, h.device());
  const Tensor positions = options.positions ? checked_positions(*options.positions, h) : index;
  AttentionStats stats;

  const Tensor x = h.reshape({tokens, config_.d_model});
  const RopeTables tables = rope_.tables(positions, x.scalar_type());
  GroupInputs inputs;
  inputs.visible = index + 1;
  inputs.q = rotate(q_proj(x).view({tokens, config_.heads, size}), tables);
  inputs.k = rotate(k_proj(x).view({tokens, config_.kv_heads, size}), tables);
  inputs.v = apply_gate(value_gate, config_.value_gate, x, v_proj(x).view({tokens, config_.kv_heads, size}),
                        options.want_stats, stats.value_gate_mean);
  if (phase == Phase::sparse || (phase == Phase::warmup && (options.want_kl || options.want_stats))) {
    inputs.indexer = indexer->project(x, positions);
  }

  const std::vector<Group> groups = make_groups(starts, phase, config_.dense_below, h.device());
  std::vector<GroupResult> results;
  Tensor variance_totals;  // of the group that selected, if one did
  for (const Group& group : groups) {
    results.push_back(attend_group(group, inputs, indexer, phase, options));
    const Tensor& variance = results.back().variance;
    if (variance.defined()) variance_totals = indexer->variance_totals(variance, group.take(inputs.visible));
  }

  inputs.q = inputs.k = inputs.v = Tensor();  // with long sequences they are too large to keep for nothing
  const Tensor attended = gather(groups, results, &GroupResult::out);
  const Tensor gated =
      apply_gate(output_gate, config_.output_gate, x, attended, options.want_stats, stats.output_gate_mean);
  ForwardResult result;
  result.out = o_proj(gated.reshape({tokens, config_.heads * size})).view(h.sizes());
  // The mean over no query at all is 0, not NaN: an empty batch teaches nothing.
  const auto mean = [tokens](const Tensor& rows) {
    return rows.sum() / static_cast<double>(std::max<std::int64_t>(tokens, 1));
  };
  if (options.want_kl) result.kl = mean(gather(groups, results, &GroupResult::kl));

  if (options.want_stats) {
    const auto leading = h.sizes().slice(0, static_cast<std::size_t>(h.dim() - 1));
    stats.k_t = gather(groups, results, &GroupResult::k_t).view(leading);
    if (tokens > 0) {
      stats.k_mean = stats.k_t.to(torch::kFloat64).mean().item<double>();
      stats.k_min = stats.k_t.min().item<std::int64_t>();
      stats.k_max = stats.k_t.max().item<std::int64_t>();
      stats.kept_mass = mean(gather(groups, results, &GroupResult::kept)).item<double>();
    }
    if (variance_totals.defined() && variance_totals[1].item<double>() > 0) {
      stats.variance_mean = (variance_totals[0] / variance_totals[1]).item<double>();
    }
    result.stats = std::move(stats);
  }

  if (phase == Phase::sparse && is_training()) {
    // Dense sequences select nothing, yet every rank has to take part in the sum.
    if (!variance_totals.defined()) variance_totals = torch::zeros({2}, h.options().dtype(torch::kFloat64));
    indexer->update_mean_variance(variance_totals);
  }
  return result;
}

}  // namespace gsa::nn
