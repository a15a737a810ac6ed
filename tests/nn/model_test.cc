// The model's forward pass: names, shapes, layouts, options, initialisation.
#include "nn/model.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <set>
#include <string>

#include "gsa/error.h"
#include "model/cost.h"
#include "nn/torch.h"
#include "small_models.h"

namespace gsa::nn::testing {
namespace {

class ModelVariants : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Model, ModelVariants, ::testing::ValuesIn(all_variants()), name_of_case);

TEST_P(ModelVariants, LogitsHaveTheRightShapeAndAreCausal) {
  auto model = make_model(small_model(GetParam().config));
  model->eval();
  const Tensor tokens = random_tokens({2, 33});
  const Tensor logits = model->logits(model->forward(tokens).hidden);
  EXPECT_EQ(logits.sizes(), at::IntArrayRef({2, 33, kVocabulary}));
  EXPECT_TRUE(logits.isfinite().all().item<bool>());
  Tensor other = tokens.clone();
  other.slice(1, 20).copy_(random_tokens({2, 13}, 99));
  const Tensor changed = model->logits(model->forward(other).hidden);
  EXPECT_TRUE(torch::equal(logits.slice(1, 0, 20), changed.slice(1, 0, 20)));
  EXPECT_FALSE(torch::equal(logits.slice(1, 20), changed.slice(1, 20)));
}

// Packed sequences are each what they are alone, whatever stands beside them.
TEST_P(ModelVariants, PackedEqualsSeparate) {
  auto model = make_model(small_model(GetParam().config));
  model->eval();
  const Tensor tokens = random_tokens({40});
  const Tensor bounds = torch::tensor({0, 9, 9, 40}, torch::kInt64);
  ModelForwardOptions packed_options;
  packed_options.cu_seqlens = bounds;
  const auto packed = model->loss(tokens, next_tokens(tokens), packed_options);
  const Tensor packed_hidden = model->forward(tokens, packed_options).hidden;
  double sum = 0;
  for (const auto& [begin, end] : {std::pair{0, 9}, {9, 40}}) {
    const Tensor part = tokens.slice(0, begin, end).unsqueeze(0);
    const Tensor targets = next_tokens(tokens).slice(0, begin, end).unsqueeze(0);
    EXPECT_LT(max_error(model->forward(part).hidden[0], packed_hidden.slice(0, begin, end)), 1e-12);
    sum += model->loss(part, targets).sum.item<double>();
  }
  EXPECT_NEAR(packed.sum.item<double>(), sum, 1e-10);
  EXPECT_EQ(packed.count.item<std::int64_t>(), 39);
}

// The fused loss is the cross-entropy of the logits, with the same gradients.
TEST_P(ModelVariants, LossIsCrossEntropyOfTheLogits) {
  auto model = make_model(small_model(GetParam().config));
  const Tensor tokens = random_tokens({2, 17}), targets = next_tokens(tokens);
  model->eval();  // the running mean of the variance stays, so both passes select alike
  const auto loss = model->loss(tokens, targets);
  EXPECT_EQ(loss.count.item<std::int64_t>(), 32);
  loss.sum.backward();
  const auto ours = gradients(model);
  model->zero_grad();
  const Tensor logits = model->logits(model->forward(tokens).hidden);
  const Tensor plain = torch::nn::functional::cross_entropy(
      logits.view({-1, kVocabulary}), targets.view({-1}),
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(kIgnoredTarget));
  EXPECT_NEAR(loss.sum.item<double>(), plain.item<double>(), 1e-10);
  plain.backward();
  const auto theirs = gradients(model);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(ours[i].second.defined(), theirs[i].second.defined()) << ours[i].first;
    if (ours[i].second.defined()) {
      EXPECT_LT(max_error(ours[i].second, theirs[i].second), 1e-11) << ours[i].first;
    }
  }
}

TEST_P(ModelVariants, CostModelCountsEveryParameter) {
  for (const bool tied : {false, true}) {
    ModelConfig config = small_model(GetParam().config);
    config.tie_embeddings = tied;
    auto model = make_model(config);
    std::int64_t base = 0, gates = 0, indexer = 0;
    for (const auto& item : model->named_parameters()) {
      const ParameterKind kind = kind_of_parameter(item.key());
      (kind == ParameterKind::base   ? base
       : kind == ParameterKind::gate ? gates
                                     : indexer) += item.value().numel();
    }
    const ParameterCount count = count_model(config);
    EXPECT_EQ(count.base(), base);
    EXPECT_EQ(count.value_gate + count.output_gate, gates);
    EXPECT_EQ(count.indexer, indexer);
  }
}

TEST(Model, ParametersCarryTheNamesOfLlama) {
  ModelConfig config = small_model(small(AttentionConfig::standard()));
  config.layers = 2;
  std::set<std::string> expected = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"};
  for (const std::string n : {"0", "1"}) {
    for (const char* name :
         {"input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
          "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      expected.insert("model.layers." + n + "." + name + ".weight");
    }
  }
  const auto names = [](const ModelConfig& c) {
    std::set<std::string> got;
    for (const auto& item : make_model(c)->named_parameters()) got.insert(item.key());
    return got;
  };
  EXPECT_EQ(names(config), expected);
  config.tie_embeddings = true;
  expected.erase("lm_head.weight");
  EXPECT_EQ(names(config), expected);
}

TEST(Model, TiedEmbeddingsLearnFromBothEnds) {
  ModelConfig config = small_model(small(AttentionConfig::standard()));
  config.tie_embeddings = true;
  auto model = make_model(config);
  EXPECT_TRUE(model->output_weight().is_same(model->model->embed_tokens->weight));
  const Tensor tokens = torch::full({1, 4}, 7, torch::kInt64),
               targets = torch::full({1, 4}, 8, torch::kInt64);
  model->loss(tokens, targets).sum.backward();
  const Tensor grad = model->model->embed_tokens->weight.grad();
  EXPECT_GT(grad[8].abs().max().item<double>(), 0);                                   // as an output
  EXPECT_GT(grad[7].abs().max().item<double>(), grad[9].abs().max().item<double>());  // as an input too
}

TEST(Model, GroupsHoldEveryParameterOnce) {
  ModelConfig config = small_model(small(AttentionConfig::gsa()));
  config.attention.indexer.temperature.learned = true;
  auto model = make_model(config);
  const auto groups = model->parameter_groups();
  std::set<std::string> seen;
  for (const ParameterGroup& group : groups) {
    ASSERT_EQ(group.names.size(), group.parameters.size());
    for (std::size_t i = 0; i < group.names.size(); ++i) {
      EXPECT_TRUE(seen.insert(group.names[i]).second) << group.names[i];
      EXPECT_EQ(group.parameters[i].dim() >= 2, group.decay) << group.names[i];
      EXPECT_EQ(kind_of_parameter(group.names[i]), group.kind);
      EXPECT_TRUE(group.parameters[i].is_same(*model->named_parameters().find(group.names[i])));
    }
  }
  EXPECT_EQ(seen.size(), model->named_parameters().size());
  EXPECT_EQ(groups.size(), 6u);
  EXPECT_EQ(make_model(small_model(small(AttentionConfig::standard())))->parameter_groups().size(), 2u);
}

TEST(Model, InitialisationIsSeededAndHasItsDeviation) {
  ModelConfig config = small_model(small(AttentionConfig::gsa()));
  config.attention.d_model = 96;
  config.intermediate = 300;
  config.layers = 8;
  auto a = make_model(config, torch::kFloat32), b = make_model(config, torch::kFloat32);
  for (const auto& item : a->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), *b->named_parameters().find(item.key()))) << item.key();
  }
  const auto deviation = [](const Tensor& x) { return x.std().item<double>(); };
  EXPECT_NEAR(deviation(a->model->embed_tokens->weight), 0.3, 0.02);
  EXPECT_NEAR(deviation(a->model->layers[3]->mlp->down_proj->weight), 0.3, 0.02);
  EXPECT_EQ(a->model->norm->weight.min().item<double>(), 1);
  config.scale_residual_init = true;
  auto scaled = make_model(config, torch::kFloat32);
  EXPECT_NEAR(deviation(scaled->model->layers[3]->mlp->down_proj->weight), 0.3 / 4, 0.01);
  EXPECT_NEAR(deviation(scaled->model->layers[3]->self_attn->o_proj->weight), 0.3 / 4, 0.01);
  EXPECT_NEAR(deviation(scaled->model->layers[3]->mlp->up_proj->weight), 0.3, 0.02);
}

TEST(Model, ObserverSeesTheResidualStream) {
  auto model = make_model(small_model(small(AttentionConfig::gsa())));
  model->eval();
  const Tensor tokens = random_tokens({2, 9});
  std::vector<Tensor> seen;
  const auto observe = [&](std::int64_t index, const Tensor& x) {
    EXPECT_EQ(index, static_cast<std::int64_t>(seen.size()));
    EXPECT_FALSE(x.requires_grad());
    seen.push_back(x);
  };
  const Tensor hidden = model->forward(tokens, {.observe = observe}).hidden;
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_TRUE(
      torch::equal(seen[0], torch::embedding(model->model->embed_tokens->weight, tokens).view({18, -1})));
  EXPECT_TRUE(torch::equal(model->model->norm(seen[3]).view(hidden.sizes()), hidden));
}

TEST(Model, PositionsAreTaken) {
  auto model = make_model(small_model(small(AttentionConfig::gsa())));
  model->eval();
  const Tensor tokens = random_tokens({1, 12});
  const Tensor shifted = torch::arange(12, torch::kInt64).unsqueeze(0) + 5;
  ModelForwardOptions moved;
  moved.positions = shifted;
  const Tensor a = model->forward(tokens).hidden, b = model->forward(tokens, moved).hidden;
  EXPECT_LT(max_error(a, b), 1e-10);  // RoPE is relative
  moved.positions = shifted * 3;
  EXPECT_GT(max_error(a, model->forward(tokens, moved).hidden), 1e-3);
}

TEST(Model, RmsNormIsItsFormula) {
  RmsNorm norm(24, 1e-2);
  norm->to(torch::kFloat64);
  torch::manual_seed(1);
  torch::nn::init::normal_(norm->weight);
  const Tensor x = torch::randn({5, 24}, torch::kFloat64);
  const Tensor expected = x / (x.square().mean(-1, true) + 1e-2).sqrt() * norm->weight;
  EXPECT_LT(max_error(norm(x), expected), 1e-14);
}

TEST(Model, RunsInEveryType) {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    ModelConfig config = small_model(small(AttentionConfig::gsa()));
    config.attention.init_std = 0.05;
    auto exact = make_model(config), low = make_model(config, dtype);
    const Tensor tokens = random_tokens({2, 9});
    const auto loss = low->loss(tokens, next_tokens(tokens), {.want_kl = true, .want_stats = true});
    (loss.sum + total(loss.kl)).backward();
    EXPECT_NEAR(loss.sum.item<double>(), exact->loss(tokens, next_tokens(tokens)).sum.item<double>(), 0.2);
    EXPECT_EQ(loss.kl.size(), 3u);
    EXPECT_EQ(loss.stats.size(), 3u);
    EXPECT_EQ(low->model->norm->weight.grad().scalar_type(), dtype);
  }
}

// ---- errors ----

template <typename Call>
void expect_model_error(const Call& call, const std::string& argument, const std::string& got) {
  try {
    call();
    FAIL() << "accepted";
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("argument '" + argument + "'"), std::string::npos) << text;
    EXPECT_NE(text.find("got " + got), std::string::npos) << text;
  }
}

TEST(ModelErrors, NameArgumentExpectedAndGot) {
  auto model = make_model(small_model(small(AttentionConfig::gsa())));
  const Tensor tokens = random_tokens({2, 8});
  const auto forward = [&](const Tensor& t, const ModelForwardOptions& o = {}) {
    return [&model, t, o] { model->forward(t, o); };
  };
  expect_model_error(forward(tokens.to(torch::kInt32)), "tokens", "Int");
  expect_model_error(forward(tokens[0]), "tokens", "Long [8]");
  expect_model_error(forward(tokens + kVocabulary), "tokens", "");
  expect_model_error(forward(tokens - kVocabulary), "tokens", "-");
  ModelForwardOptions options;
  options.cu_seqlens = torch::tensor({0, 8}, torch::kInt64);
  expect_model_error(forward(tokens, options), "tokens", "Long [2, 8]");
  options.cu_seqlens = torch::tensor({0, 9}, torch::kInt64);
  expect_model_error(forward(tokens[0], options), "cu_seqlens", "0 to 9");
  options = {};
  options.positions = torch::zeros({2, 7}, torch::kInt64);
  expect_model_error(forward(tokens, options), "positions", "Long [2, 7]");
  expect_model_error([&] { model->loss(tokens, tokens.slice(1, 0, 7)); }, "targets", "Long [2, 7]");
  expect_model_error([&] { model->loss(tokens, tokens + 40); }, "targets", "");
  auto dense = make_model(small_model(small(AttentionConfig::standard())));
  expect_model_error([&] { dense->forward(tokens, {.phase = Phase::sparse}); }, "phase", "sparse");
  expect_model_error([&] { dense->forward(tokens, {.want_kl = true}); }, "want_kl", "true");
}

}  // namespace
}  // namespace gsa::nn::testing
