// Small layers for tests: every system and ablation by name, with weights large enough to tell keys apart.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "nn/attention.h"
#include "nn/torch.h"

namespace gsa::nn::testing {

using at::Tensor;

struct NamedConfig {
  std::string name;
  AttentionConfig config;
};

inline std::ostream& operator<<(std::ostream& out, const NamedConfig& c) { return out << c.name; }

inline AttentionConfig small(AttentionConfig c) {
  c.d_model = 24;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_size = 8;
  c.indexer.heads = 3;
  c.indexer.head_size = 8;
  c.budget.base = 12;
  c.budget.min = 4;
  c.budget.max = 20;
  c.init_std = 0.3;
  c.gate_init_std = 0.2;
  return c;
}

inline std::vector<NamedConfig> four_systems() {
  return {{"standard", small(AttentionConfig::standard())},
          {"sparse_only", small(AttentionConfig::sparse_only())},
          {"gated_only", small(AttentionConfig::gated_only())},
          {"gsa", small(AttentionConfig::gsa())}};
}

// The four systems, then each switch alone.
inline std::vector<NamedConfig> all_variants() {
  std::vector<NamedConfig> variants = four_systems();
  const auto add = [&](const char* name, const std::function<void(AttentionConfig&)>& change) {
    AttentionConfig config = small(AttentionConfig::gsa());
    change(config);
    variants.push_back({name, config});
  };
  add("output_gate_only", [](auto& c) { c.value_gate = GateKind::none; });
  add("value_gate_only", [](auto& c) { c.output_gate = GateKind::none; });
  add("no_gate", [](auto& c) { c.value_gate = c.output_gate = GateKind::none; });
  add("headwise_gates", [](auto& c) { c.value_gate = c.output_gate = GateKind::headwise; });
  add("headwise_output_gate", [](auto& c) { c.output_gate = GateKind::headwise; });
  add("relu_adaptive", [](auto& c) { c.indexer.form = ScoreForm::relu; });
  add("budget_proportional", [](auto& c) { c.budget.mode = BudgetMode::proportional; });
  add("budget_fixed", [](auto& c) { c.budget.mode = BudgetMode::fixed; });
  add("k_small", [](auto& c) { c.budget.base = 5; });
  add("k_beyond_length", [](auto& c) { c.budget = {BudgetMode::fixed, 1000, 1, 1000}; });
  add("indexer_without_rope", [](auto& c) { c.indexer.rope_fraction = 0; });
  add("indexer_half_rope", [](auto& c) { c.indexer.rope_fraction = 0.5; });
  add("temperature_fixed", [](auto& c) { c.indexer.temperature.value = 0.25; });
  add("temperature_learned", [](auto& c) { c.indexer.temperature = {0.5, true}; });
  add("one_kv_head", [](auto& c) { c.kv_heads = 1; });
  add("all_kv_heads", [](auto& c) { c.kv_heads = c.heads; });
  add("qkv_biases", [](auto& c) { c.qkv_bias = true; });
  add("query_key_norms", [](auto& c) { c.qk_norm = true; });
  AttentionConfig plain = small(AttentionConfig::standard());
  plain.qkv_bias = plain.qk_norm = true;
  variants.push_back({"standard_biases_and_norms", plain});
  return variants;
}

inline std::vector<NamedConfig> sparse_variants() {
  std::vector<NamedConfig> variants = all_variants();
  std::erase_if(variants, [](const NamedConfig& v) { return !v.config.sparse; });
  return variants;
}

inline std::string name_of_case(const ::testing::TestParamInfo<NamedConfig>& info) { return info.param.name; }

// Biases of q, k and v and norms of q and k that are not the start's, where there are any.
inline void stir_optional_parts(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    const std::string& name = item.key();
    Tensor value = item.value();
    if (name.ends_with("_proj.bias")) value.normal_(0, 0.5);
    if (name.ends_with("q_norm.weight") || name.ends_with("k_norm.weight")) value.normal_(1, 0.3);
  }
}

inline GatedSparseAttention make_layer(const AttentionConfig& config, torch::Dtype dtype = torch::kFloat64) {
  torch::manual_seed(7);
  GatedSparseAttention layer(config);
  stir_optional_parts(*layer);
  layer->to(dtype);
  return layer;
}

inline Tensor random_input(at::IntArrayRef shape, torch::Dtype dtype = torch::kFloat64,
                           std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  return torch::randn(shape, torch::kFloat64).to(dtype);
}

inline void set_mean_variance(GatedSparseAttention& layer, double value) {
  torch::NoGradGuard no_grad;
  if (layer->config().sparse) layer->indexer->mean_variance.fill_(value);
}

inline double mean_variance(GatedSparseAttention& layer) {
  return layer->indexer->mean_variance.item<double>();
}

inline double max_error(const Tensor& a, const Tensor& b) {
  return a.numel() == 0 ? 0 : (a.to(torch::kFloat64) - b.to(torch::kFloat64)).abs().max().item<double>();
}

}  // namespace gsa::nn::testing
