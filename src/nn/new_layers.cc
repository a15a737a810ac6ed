#include "nn/new_layers.h"

#include <optional>

namespace gsa::nn {
namespace {

thread_local std::optional<at::ScalarType> without_values;

}  // namespace

WithoutValues::WithoutValues(at::ScalarType type) { without_values = type; }
WithoutValues::~WithoutValues() { without_values.reset(); }

torch::nn::Linear new_linear(std::int64_t from, std::int64_t to, bool bias, double std) {
  if (without_values) {
    // torch's constructor draws: here for a matrix without rows.
    torch::nn::Linear linear(torch::nn::LinearOptions(1, 0).bias(bias));
    linear->options.in_features(from).out_features(to);
    linear->weight.set_data(torch::empty({to, from}, *without_values));
    if (bias) linear->bias.set_data(torch::empty({to}, *without_values));
    return linear;
  }
  torch::nn::Linear linear(torch::nn::LinearOptions(from, to).bias(bias));
  torch::nn::init::normal_(linear->weight, 0.0, std);
  if (bias) torch::nn::init::zeros_(linear->bias);
  return linear;
}

torch::nn::Embedding new_embedding(std::int64_t count, std::int64_t size, double std) {
  torch::nn::EmbeddingOptions options(count, size);
  if (without_values) {
    return torch::nn::Embedding(options._weight(torch::empty({count, size}, *without_values)));
  }
  torch::nn::Embedding embedding(options);
  torch::nn::init::normal_(embedding->weight, 0.0, std);
  return embedding;
}

}  // namespace gsa::nn
