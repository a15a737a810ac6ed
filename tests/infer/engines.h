// Small models and engines for the tests of inference, and the full forward pass to compare with.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "infer/engine.h"
#include "nn/small_models.h"
#include "nn/torch.h"

namespace gsa::infer::testing {

using at::Tensor;
using nn::testing::NamedConfig;
using Tokens = std::vector<std::int64_t>;

// Every layer with a running mean of the variance, so that budgets adapt.
inline nn::Model make_model(const nn::ModelConfig& config, torch::Dtype dtype = torch::kFloat64) {
  nn::Model model = nn::testing::make_model(config, dtype);
  for (nn::Block& block : model->model->layers) {
    if (block->self_attn->indexer) nn::testing::set_mean_variance(block->self_attn, 0.02);
  }
  model->eval();
  return model;
}

inline nn::Model make_model(const nn::AttentionConfig& config, torch::Dtype dtype = torch::kFloat64) {
  return make_model(nn::testing::small_model(config), dtype);
}

inline Tokens random_tokens(std::int64_t count, std::uint64_t seed = 3) {
  const Tensor tokens = nn::testing::random_tokens({count}, seed);
  return {tokens.const_data_ptr<std::int64_t>(), tokens.const_data_ptr<std::int64_t>() + count};
}

// Logits of one forward pass, [tokens, vocabulary].
inline Tensor full_logits(nn::Model& model, const Tokens& tokens,
                          std::optional<nn::Phase> phase = std::nullopt) {
  const torch::NoGradGuard no_grad;
  const Tensor input = torch::tensor(at::ArrayRef<std::int64_t>(tokens), torch::kInt64)
                           .to(model->model->embed_tokens->weight.device())
                           .unsqueeze(0);
  nn::ModelForwardOptions options;
  options.phase = phase;
  return model->logits(model->forward(input, options).hidden).squeeze(0);
}

// The first `prompt` tokens as a prompt and the rest one by one: logits of every token, [tokens, vocabulary].
inline Tensor stepped_logits(Engine& engine, const Tokens& tokens, std::int64_t prompt) {
  Sequence sequence = engine.start();
  const std::span<const std::int64_t> all(tokens);
  std::vector<Tensor> rows;
  if (prompt > 0) {
    rows.push_back(
        engine.prefill({{&sequence, all.first(static_cast<std::size_t>(prompt))}}, {.all_logits = true})
            .logits);
  }
  for (const std::int64_t token : all.subspan(static_cast<std::size_t>(prompt))) {
    rows.push_back(engine.decode({{&sequence, token}}).clone());
  }
  return torch::cat(rows);
}

// These tokens one by one: logits of each, [tokens, vocabulary].
inline Tensor decode_all(Engine& engine, Sequence& sequence, const Tokens& tokens) {
  std::vector<Tensor> rows;
  for (const std::int64_t token : tokens) rows.push_back(engine.decode({{&sequence, token}}).clone());
  return torch::cat(rows);
}

// A sequence and its fork go on differently, in turns, so that either would see what the other writes; each
// must equal one that shares nothing.
inline void expect_forks_keep_apart(nn::Model& model, const EngineOptions& options,
                                    std::int64_t prompt_tokens) {
  const Tokens prompt = random_tokens(prompt_tokens, 1), left = random_tokens(30, 2),
               right = random_tokens(30, 3);
  Engine engine(model, options);
  Sequence a = engine.start();
  engine.prefill({{&a, prompt}});
  Sequence b = a.fork();
  std::vector<Tensor> of_a, of_b;
  for (std::size_t i = 0; i < left.size(); ++i) {
    of_a.push_back(engine.decode({{&a, left[i]}}).clone());
    of_b.push_back(engine.decode({{&b, right[i]}}).clone());
  }
  for (const auto& [tokens, rows] : {std::pair(left, of_a), std::pair(right, of_b)}) {
    Engine separate(model, options);
    Sequence sequence = separate.start();
    separate.prefill({{&sequence, prompt}});
    EXPECT_TRUE(torch::equal(decode_all(separate, sequence, tokens), torch::cat(rows)));
  }
}

inline double max_difference(const Tensor& a, const Tensor& b) {
  return (a.cpu().to(torch::kFloat64) - b.cpu().to(torch::kFloat64)).abs().max().item<double>();
}

inline double relative_error(const Tensor& a, const Tensor& exact) {
  const Tensor x = a.cpu().to(torch::kFloat64), y = exact.cpu().to(torch::kFloat64);
  return ((x - y).norm() / y.norm()).item<double>();
}

}  // namespace gsa::infer::testing
