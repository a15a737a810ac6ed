// Small models for tests, on the layers of small_layers.h.
#pragma once

#include <string>
#include <vector>

#include "nn/model.h"
#include "nn/torch.h"
#include "small_layers.h"

namespace gsa::nn::testing {

constexpr std::int64_t kVocabulary = 37;

inline ModelConfig small_model(const AttentionConfig& attention) {
  ModelConfig config;
  config.vocab_size = kVocabulary;
  config.layers = 3;
  config.intermediate = 40;
  config.max_positions = 64;
  config.attention = attention;
  return config;
}

inline Model make_model(const ModelConfig& config, torch::Dtype dtype = torch::kFloat64) {
  torch::manual_seed(11);
  Model model(config);
  stir_optional_parts(*model);
  model->to(dtype);
  return model;
}

inline Tensor random_tokens(at::IntArrayRef shape, std::uint64_t seed = 3) {
  torch::manual_seed(seed);
  return torch::randint(0, kVocabulary, shape, torch::kInt64);
}

// Next-token targets: the tokens moved by one, the last one ignored.
inline Tensor next_tokens(const Tensor& tokens) {
  Tensor targets = tokens.roll(-1, -1);
  targets.select(-1, -1).fill_(kIgnoredTarget);
  return targets;
}

inline std::vector<Tensor> mean_variances(Model& model) {
  std::vector<Tensor> values;
  for (const auto& item : model->named_buffers()) {
    if (item.key().ends_with("mean_variance")) values.push_back(item.value().clone());
  }
  return values;
}

// Gradients by name, as copies; an undefined one stays undefined.
inline std::vector<std::pair<std::string, Tensor>> gradients(Model& model) {
  std::vector<std::pair<std::string, Tensor>> result;
  for (const auto& item : model->named_parameters()) {
    const Tensor& grad = item.value().grad();
    result.emplace_back(item.key(), grad.defined() ? grad.clone() : Tensor());
  }
  return result;
}

}  // namespace gsa::nn::testing
