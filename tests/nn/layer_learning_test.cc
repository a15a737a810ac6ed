// Who learns from what, the phases, and the running mean of the variance.
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <limits>
#include <set>
#include <sstream>
#include <string>

#include "gsa/error.h"
#include "nn/attention.h"
#include "nn/torch.h"
#include "reference.h"
#include "small_layers.h"

namespace gsa::nn::testing {
namespace {

constexpr std::int64_t kLearningLength = 33;

bool of_indexer(const std::string& name) { return name.rfind("indexer.", 0) == 0; }

class LearningVariants : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Learning, LearningVariants, ::testing::ValuesIn(all_variants()), name_of_case);

TEST_P(LearningVariants, ParametersCarryCheckpointNames) {
  auto layer = make_layer(GetParam().config);
  const AttentionConfig& c = layer->config();
  std::set<std::string> expected = {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"};
  if (c.qkv_bias) expected.insert({"q_proj.bias", "k_proj.bias", "v_proj.bias"});
  if (c.qk_norm) expected.insert({"q_norm.weight", "k_norm.weight"});
  if (c.sparse) {
    expected.insert({"indexer.wq.weight", "indexer.wk.weight", "indexer.weights_proj.weight"});
    if (c.indexer.form == ScoreForm::sigmoid) expected.insert("indexer.bias");
    if (c.indexer.temperature.learned) expected.insert("indexer.log_temperature");
  }
  if (c.value_gate != GateKind::none) expected.insert({"value_gate.weight", "value_gate.bias"});
  if (c.output_gate != GateKind::none) expected.insert({"output_gate.weight", "output_gate.bias"});
  std::set<std::string> got;
  for (const auto& item : layer->named_parameters()) got.insert(item.key());
  EXPECT_EQ(got, expected);
  EXPECT_EQ(layer->named_buffers().contains("indexer.mean_variance"), c.sparse);
}

// The language-model loss reaches every parameter but the indexer's.
TEST_P(LearningVariants, LanguageModelLossLeavesTheIndexerAlone) {
  auto layer = make_layer(GetParam().config);
  const Tensor h = random_input({2, kLearningLength, layer->config().d_model}).requires_grad_();
  const auto result = layer->forward(h, {.want_kl = layer->config().sparse});
  result.out.square().sum().backward();
  EXPECT_TRUE(h.grad().defined());
  for (const auto& item : layer->named_parameters()) {
    const Tensor& grad = item.value().grad();
    if (of_indexer(item.key())) {
      EXPECT_FALSE(grad.defined()) << item.key();
    } else {
      ASSERT_TRUE(grad.defined()) << item.key();
      EXPECT_GT(grad.abs().max().item<double>(), 0) << item.key();
    }
  }
}

class SparseVariants : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Learning, SparseVariants, ::testing::ValuesIn(sparse_variants()), name_of_case);

// The indexer's loss reaches every parameter of the indexer, and nothing else: not even the input.
TEST_P(SparseVariants, IndexerLossReachesTheIndexerAlone) {
  auto layer = make_layer(GetParam().config);
  for (const Phase phase : {Phase::warmup, Phase::sparse}) {
    SCOPED_TRACE(name_of(phase));
    layer->zero_grad();
    const Tensor h = random_input({2, kLearningLength, layer->config().d_model}).requires_grad_();
    layer->forward(h, {.phase = phase, .want_kl = true}).kl->backward();
    EXPECT_FALSE(h.grad().defined());
    for (const auto& item : layer->named_parameters()) {
      const Tensor& grad = item.value().grad();
      if (!of_indexer(item.key())) {
        EXPECT_FALSE(grad.defined()) << item.key();
      } else {
        ASSERT_TRUE(grad.defined()) << item.key();
        EXPECT_GT(grad.abs().max().item<double>(), 0) << item.key();
      }
    }
  }
}

// Dense and warm-up attend alike, and like a layer without an indexer; only the loss tells them apart.
TEST(Phases, WarmupAttendsLikeDense) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  layer->eval();
  const Tensor h = random_input({2, kLearningLength, layer->config().d_model});
  const auto dense = layer->forward(h, {.phase = Phase::dense, .want_stats = true});
  const auto warmup = layer->forward(h, {.phase = Phase::warmup, .want_kl = true, .want_stats = true});
  const auto sparse = layer->forward(h, {.phase = Phase::sparse, .want_kl = true});
  EXPECT_TRUE(torch::equal(dense.out, warmup.out));
  EXPECT_FALSE(torch::equal(dense.out, sparse.out));
  EXPECT_TRUE(torch::equal(layer->forward(h).out, sparse.out));  // the phase of a sparse layer by default
  EXPECT_EQ(dense.stats->k_max, kLearningLength);
  EXPECT_EQ(dense.stats->kept_mass, 1);
  EXPECT_FALSE(dense.stats->variance_mean.has_value());
  EXPECT_FALSE(dense.kl.has_value());
  EXPECT_LT(warmup.stats->kept_mass, 1);
  EXPECT_NE(warmup.kl->item<double>(), sparse.kl->item<double>());
}

// A few steps on the KL bring it down: sign and scale of its gradient are of use.
TEST(Phases, WarmupLowersTheLoss) {
  auto layer = make_layer(small(AttentionConfig::gsa()), torch::kFloat32);
  const Tensor h = random_input({2, kLearningLength, layer->config().d_model}, torch::kFloat32);
  torch::optim::Adam optimizer(layer->indexer->parameters(), torch::optim::AdamOptions(1e-2));
  double first = 0, last = 0;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    const Tensor loss = *layer->forward(h, {.phase = Phase::warmup, .want_kl = true}).kl;
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.9 * first);
}

TEST(Gates, StartWhereTheConfigurationSays) {
  for (const double start : {AttentionConfig().gate_init, 0.5}) {
    AttentionConfig config = small(AttentionConfig::gsa());
    config.gate_init = start;
    config.gate_init_std = AttentionConfig().gate_init_std;
    auto layer = make_layer(config);
    const auto stats =
        layer->forward(random_input({2, kLearningLength, config.d_model}), {.want_stats = true})
            .stats.value();
    EXPECT_NEAR(stats.value_gate_mean.value(), start, 0.01);
    EXPECT_NEAR(stats.output_gate_mean.value(), start, 0.01);
  }
  EXPECT_EQ(AttentionConfig().gate_init, 0.9);
  const auto bare =
      make_layer(small(AttentionConfig::standard()))->forward(random_input({1, 3, 24}), {.want_stats = true});
  EXPECT_FALSE(bare.stats->value_gate_mean.has_value());
  EXPECT_FALSE(bare.stats->output_gate_mean.has_value());
}

TEST(Gates, MeansAreThoseOfTheSigmoids) {
  for (const GateKind kind : {GateKind::elementwise, GateKind::headwise}) {
    AttentionConfig config = small(AttentionConfig::gated_only());
    config.value_gate = config.output_gate = kind;
    auto layer = make_layer(config);
    const Tensor h = random_input({2, kLearningLength, config.d_model});
    const auto stats = layer->forward(h, {.want_stats = true}).stats.value();
    EXPECT_NEAR(stats.value_gate_mean.value(), layer->value_gate(h).sigmoid().mean().item<double>(), 1e-6);
    EXPECT_NEAR(stats.output_gate_mean.value(), layer->output_gate(h).sigmoid().mean().item<double>(), 1e-6);
  }
}

// ---- the running mean of the variance ----

// Mean of Var_t over the queries that see at least k_min tokens, from the reference.
double batch_variance(GatedSparseAttention& layer, const Tensor& h) {
  const Reference r = reference_layer(layer->config(), parameters_of(*layer), h, -1, Phase::sparse);
  return r.variance.slice(1, layer->config().budget.min - 1).mean().item<double>();
}

TEST(MeanVariance, UnknownUntilTheFirstBatchThenMoves) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  const BudgetConfig budget = layer->config().budget;
  const Tensor h = random_input({2, kLearningLength, layer->config().d_model});
  EXPECT_EQ(mean_variance(layer), -1);
  EXPECT_EQ(layer->indexer->mean_variance.scalar_type(), torch::kFloat64);

  // The first batch finds nothing known: k_t is k_base wherever so much is visible.
  const auto first = layer->forward(h, {.want_stats = true});
  const Tensor expected =
      torch::arange(1, kLearningLength + 1).clamp_max(budget.base).expand({2, kLearningLength});
  EXPECT_TRUE(torch::equal(first.stats->k_t.to(torch::kInt64), expected));
  const double v1 = batch_variance(layer, h);
  EXPECT_NEAR(mean_variance(layer), v1, 1e-12);
  EXPECT_NEAR(first.stats->variance_mean.value(), v1, 1e-12);

  // The second is selected with what the first left, and then moves it by one part in a hundred.
  const Tensor g = 2 * random_input({2, kLearningLength, layer->config().d_model}, torch::kFloat64, 5);
  const Reference r = reference_layer(layer->config(), parameters_of(*layer), g, v1, Phase::sparse);
  EXPECT_TRUE(torch::equal(layer->forward(g, {.want_stats = true}).stats->k_t.to(torch::kInt64), r.k_t));
  EXPECT_NEAR(mean_variance(layer), 0.99 * v1 + 0.01 * batch_variance(layer, g), 1e-12);
  EXPECT_NE(mean_variance(layer), v1);
}

TEST(MeanVariance, FrozenInEvaluationAndOutsideTheSparsePhase) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  const Tensor h = random_input({2, kLearningLength, layer->config().d_model});
  layer->forward(h, {.phase = Phase::dense});
  layer->forward(h, {.phase = Phase::warmup, .want_kl = true, .want_stats = true});
  EXPECT_EQ(mean_variance(layer), -1);
  layer->eval();
  layer->forward(h);
  EXPECT_EQ(mean_variance(layer), -1);
  layer->train();
  layer->forward(h);
  const double known = mean_variance(layer);
  EXPECT_GT(known, 0);
  layer->eval();
  layer->forward(2 * h);
  EXPECT_EQ(mean_variance(layer), known);
}

TEST(MeanVariance, QueriesThatSeeLittleDoNotCount) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  const std::int64_t min = layer->config().budget.min, d = layer->config().d_model;
  const Tensor h = random_input({3, min, d});
  layer->forward(h.slice(1, 0, min - 1));  // no query sees k_min tokens
  EXPECT_EQ(mean_variance(layer), -1);
  EXPECT_FALSE(layer->forward(h.slice(1, 0, min - 1), {.want_stats = true}).stats->variance_mean.has_value());
  layer->forward(h);  // one query a sequence does
  EXPECT_NEAR(mean_variance(layer), batch_variance(layer, h), 1e-12);
}

TEST(MeanVariance, WhatIsNotFiniteLeavesItAlone) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  const Tensor h = random_input({2, kLearningLength, layer->config().d_model});
  layer->forward(h);
  const double known = mean_variance(layer);
  Tensor broken = h.clone();
  broken[1][20][3] = std::numeric_limits<double>::quiet_NaN();
  const Tensor out = layer->forward(broken).out;
  EXPECT_EQ(mean_variance(layer), known);
  // NaN comes out where it went in and after, never a silently different selection elsewhere.
  EXPECT_TRUE(out[1].slice(0, 20).isnan().all().item<bool>());
  EXPECT_TRUE(out[1].slice(0, 0, 20).isfinite().all().item<bool>());
  EXPECT_TRUE(out[0].isfinite().all().item<bool>());
}

TEST(MeanVariance, IsAveragedOverRanks) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  int calls = 0;
  layer->indexer->reduce_totals = [&](Tensor& totals) {
    ++calls;
    totals += torch::tensor({6.0, 30.0}, torch::kFloat64);  // what another rank has
  };
  const Tensor h = random_input({1, kLearningLength, layer->config().d_model});
  layer->forward(h);
  const double count = static_cast<double>(kLearningLength - layer->config().budget.min + 1);
  EXPECT_NEAR(mean_variance(layer), (count * batch_variance(layer, h) + 6) / (count + 30), 1e-12);
  // A rank whose sequences are too short takes part all the same.
  layer->indexer->mean_variance.fill_(-1);
  layer->forward(h.slice(1, 0, 2));
  EXPECT_EQ(calls, 2);
  EXPECT_NEAR(mean_variance(layer), 6.0 / 30.0, 1e-12);
}

// So does a rank whose sequences all run dense.
TEST(MeanVariance, DenseSequencesTakePartWithNothing) {
  AttentionConfig config = small(AttentionConfig::gsa());
  config.dense_below = 100;
  auto layer = make_layer(config);
  const Tensor h = random_input({1, kLearningLength, config.d_model});
  layer->forward(h);
  EXPECT_EQ(mean_variance(layer), -1);
  layer->indexer->reduce_totals = [](Tensor& totals) {
    totals += torch::tensor({6.0, 30.0}, torch::kFloat64);
  };
  layer->forward(h);
  EXPECT_NEAR(mean_variance(layer), 6.0 / 30.0, 1e-12);
}

TEST(MeanVariance, KeepsItsTypeAndBitsWhenTheLayerChangesType) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  set_mean_variance(layer, 0.123456789012345);
  layer->to(torch::kBFloat16);
  EXPECT_EQ(layer->q_proj->weight.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(layer->indexer->wq->weight.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(layer->indexer->mean_variance.scalar_type(), torch::kFloat64);
  EXPECT_EQ(mean_variance(layer), 0.123456789012345);
  layer->to(torch::kCPU);
  layer->to(torch::kCPU, torch::kFloat32);
  EXPECT_EQ(layer->indexer->mean_variance.scalar_type(), torch::kFloat64);
  EXPECT_EQ(mean_variance(layer), 0.123456789012345);
  // And it is still the buffer that a checkpoint sees.
  EXPECT_EQ(layer->named_buffers()["indexer.mean_variance"].item<double>(), 0.123456789012345);
  layer->forward(random_input({1, kLearningLength, layer->config().d_model}, torch::kFloat32));
  EXPECT_NE(mean_variance(layer), 0.123456789012345);
  EXPECT_EQ(layer->named_buffers()["indexer.mean_variance"].item<double>(), mean_variance(layer));
}

TEST(MeanVariance, SavedAndLoadedWithTheLayer) {
  const AttentionConfig config = small(AttentionConfig::gsa());
  auto layer = make_layer(config, torch::kFloat32);
  const Tensor h = random_input({2, kLearningLength, config.d_model}, torch::kFloat32);
  layer->forward(h);
  std::stringstream file;
  torch::save(layer, file);
  torch::manual_seed(99);
  GatedSparseAttention other(config);
  torch::load(other, file);
  EXPECT_EQ(mean_variance(other), mean_variance(layer));
  layer->eval();
  other->eval();
  const auto a = layer->forward(h, {.want_kl = true, .want_stats = true}),
             b = other->forward(h, {.want_kl = true, .want_stats = true});
  EXPECT_TRUE(torch::equal(a.out, b.out));
  EXPECT_TRUE(torch::equal(*a.kl, *b.kl));
  EXPECT_TRUE(torch::equal(a.stats->k_t, b.stats->k_t));
}

}  // namespace
}  // namespace gsa::nn::testing
