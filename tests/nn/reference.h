// The whole layer once more, in elementary torch operations on L x L matrices: nothing here is shared with
// the module but the configuration and the parameters. Autograd of these operations gives reference
// gradients.
#pragma once

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "nn/attention.h"
#include "nn/torch.h"

namespace gsa::nn::testing {

using at::Tensor;

struct Reference {
  Tensor out;       // [B, L, d_model]
  Tensor kl;        // [B, L]
  Tensor k_t;       // int64 [B, L]
  Tensor variance;  // [B, L]
  Tensor kept;      // [B, L], mean over heads
};

using Parameters = std::map<std::string, Tensor>;

inline Parameters parameters_of(torch::nn::Module& layer) {
  Parameters result;
  for (const auto& item : layer.named_parameters()) result[item.key()] = item.value();
  return result;
}

// Pairs (i, i + size / 2) of the first `size` dimensions rotate by the angle t theta^(-2i / size). x [L,
// heads, d].
inline Tensor reference_rope(const Tensor& x, std::int64_t size, double theta) {
  if (size == 0) return x;
  std::vector<Tensor> columns;
  const Tensor t = torch::arange(x.size(0), torch::kFloat64).unsqueeze(1);
  for (std::int64_t i = 0; i < x.size(2); ++i) {
    if (i >= size) {
      columns.push_back(x.select(2, i));
      continue;
    }
    const std::int64_t pair = i % (size / 2);
    const Tensor angle = t * std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(size));
    const Tensor a = x.select(2, pair), b = x.select(2, pair + size / 2);
    columns.push_back(i < size / 2 ? a * angle.cos() - b * angle.sin() : a * angle.sin() + b * angle.cos());
  }
  return torch::stack(columns, 2);
}

inline Tensor reference_gate(const Tensor& y, const Parameters& p, const std::string& name, GateKind kind,
                             const Tensor& x) {
  if (kind == GateKind::none) return y;
  const Tensor g = torch::sigmoid(x.matmul(p.at(name + ".weight").t()) + p.at(name + ".bias"));
  return kind == GateKind::headwise ? y * g.unsqueeze(2) : y * g.view(y.sizes());
}

inline std::int64_t reference_budget(const BudgetConfig& budget, double variance, double mean_variance) {
  double k = static_cast<double>(budget.base);
  if (mean_variance >= 0 && budget.mode == BudgetMode::inverse) {
    k = variance == 0 ? static_cast<double>(budget.max) : std::floor(k * (mean_variance / variance));
  } else if (mean_variance >= 0 && budget.mode == BudgetMode::proportional) {
    k = variance == 0 ? static_cast<double>(budget.min) : std::floor(k * (variance / mean_variance));
  }
  if (k < static_cast<double>(budget.min)) return budget.min;
  if (k > static_cast<double>(budget.max)) return budget.max;
  return static_cast<std::int64_t>(k);
}

// One sequence, x [L, d_model] in float64.
inline Reference reference_sequence(const AttentionConfig& c, const Parameters& p, const Tensor& x,
                                    double mean_variance, Phase phase) {
  const std::int64_t length = x.size(0), size = c.head_size, group = c.heads / c.kv_heads;
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor causal = torch::ones({length, length}, torch::kBool).tril();
  // norm: of which weight, over the dimensions of each head; eps as a layer alone has it.
  const auto project = [&](const std::string& name, std::int64_t heads, const std::string& norm) {
    Tensor y = x.matmul(p.at(name + ".weight").t());
    if (c.qkv_bias) y = y + p.at(name + ".bias");
    y = y.view({length, heads, -1});
    if (!c.qk_norm || norm.empty()) return y;
    return y / (y.square().mean(-1, true) + 1e-5).sqrt() * p.at(norm);
  };
  const Tensor q = reference_rope(project("q_proj", c.heads, "q_norm.weight"), size, c.rope.theta);
  const Tensor k = reference_rope(project("k_proj", c.kv_heads, "k_norm.weight"), size, c.rope.theta)
                       .repeat_interleave(group, 1);
  const Tensor v = reference_gate(project("v_proj", c.kv_heads, ""), p, "value_gate", c.value_gate, x)
                       .repeat_interleave(group, 1);

  Reference r;
  Tensor support = causal, scores;
  r.k_t = torch::arange(1, length + 1, torch::kInt64);
  if (c.sparse) {
    const Tensor input = x.detach();
    const std::int64_t rotated = c.indexer_rope_size(), index_heads = c.indexer.heads;
    const Tensor qi = reference_rope(
        input.matmul(p.at("indexer.wq.weight").t()).view({length, index_heads, -1}), rotated, c.rope.theta);
    const Tensor ki =
        reference_rope(input.matmul(p.at("indexer.wk.weight").t()).unsqueeze(1), rotated, c.rope.theta)
            .squeeze(1);
    Tensor w = input.matmul(p.at("indexer.weights_proj.weight").t());
    Tensor act = torch::einsum("tjd,sd->tsj", {qi, ki}) / std::sqrt(static_cast<double>(c.indexer.head_size));
    if (c.indexer.form == ScoreForm::sigmoid) {
      w = torch::sigmoid(w);
      act = torch::sigmoid(act + p.at("indexer.bias"));
    } else {
      w = w / std::sqrt(static_cast<double>(index_heads));
      act = torch::relu(act);
    }
    scores = (act * w.unsqueeze(1)).sum(-1);  // [t, s]

    r.variance = torch::zeros({length}, torch::kFloat64);
    Tensor selected = torch::zeros_like(causal);
    for (std::int64_t t = 0; t < length; ++t) {
      const Tensor row = scores.detach()[t].slice(0, 0, t + 1);
      const double variance = (row - row.mean()).square().mean().item<double>();
      const std::int64_t k_t = std::min(reference_budget(c.budget, variance, mean_variance), t + 1);
      const Tensor order = std::get<1>(torch::sort(row, /*stable=*/true, 0, /*descending=*/true));
      r.variance[t] = variance;
      r.k_t[t] = k_t;
      selected[t].index_fill_(0, order.slice(0, 0, k_t), true);
    }
    if (phase == Phase::sparse) support = selected;
    const Tensor dense =
        (torch::einsum("thd,shd->hts", {q, k}) / std::sqrt(static_cast<double>(size))).detach();
    r.kept = (dense.masked_fill(~causal, -inf).softmax(-1) * selected).sum(-1).mean(0);
  }

  const Tensor logits = torch::einsum("thd,shd->hts", {q, k}) / std::sqrt(static_cast<double>(size));
  const Tensor attention = logits.masked_fill(~support, -inf).softmax(-1);  // [h, t, s]
  Tensor o = torch::einsum("hts,shd->thd", {attention, v});
  o = reference_gate(o, p, "output_gate", c.output_gate, x);
  r.out = o.reshape({length, c.heads * size}).matmul(p.at("o_proj.weight").t());

  if (c.sparse) {
    Tensor temperature = torch::tensor(c.indexer.temperature.value, torch::kFloat64);
    if (c.indexer.temperature.learned) temperature = p.at("indexer.log_temperature").exp();
    const Tensor target = attention.detach().mean(0);
    const Tensor guess = (scores / temperature).masked_fill(~support, -inf).log_softmax(-1);
    const Tensor terms = target * ((target + (~support)).log() - guess.masked_fill(~support, 0));
    r.kl = terms.sum(-1);
  }
  return r;
}

// h [B, L, d_model].
inline Reference reference_layer(const AttentionConfig& c, const Parameters& parameters, const Tensor& h,
                                 double mean_variance, Phase phase) {
  std::vector<Reference> rows;
  for (std::int64_t b = 0; b < h.size(0); ++b) {
    rows.push_back(reference_sequence(c, parameters, h[b], mean_variance, phase));
  }
  const auto stack = [&](auto member) {
    std::vector<Tensor> parts;
    for (const Reference& row : rows) {
      if ((row.*member).defined()) parts.push_back(row.*member);
    }
    return parts.empty() ? Tensor() : torch::stack(parts);
  };
  return {stack(&Reference::out), stack(&Reference::kl), stack(&Reference::k_t), stack(&Reference::variance),
          stack(&Reference::kept)};
}

}  // namespace gsa::nn::testing
