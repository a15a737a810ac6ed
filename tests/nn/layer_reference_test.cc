// The module against the plain float64 reference, against finite differences and against torch's own
// attention.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "nn/attention.h"
#include "nn/torch.h"
#include "reference.h"
#include "small_layers.h"

namespace gsa::nn::testing {
namespace {

constexpr std::int64_t kBatch = 2, kReferenceLength = 37;
constexpr double kTolerance = 1e-11;  // float64 sums of some hundred terms of order one

// A typical Var_t of these small layers, so that budgets spread between their bounds.
double typical_variance(GatedSparseAttention& layer, const Tensor& h) {
  if (!layer->config().sparse) return -1;
  const Reference r = reference_layer(layer->config(), parameters_of(*layer), h.detach(), -1, Phase::sparse);
  return r.variance.slice(1, layer->config().budget.min - 1).mean().item<double>();
}

class ReferenceVariants : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Layer, ReferenceVariants, ::testing::ValuesIn(all_variants()), name_of_case);

TEST_P(ReferenceVariants, EqualsTheReference) {
  auto layer = make_layer(GetParam().config);
  const AttentionConfig& config = layer->config();
  const Tensor h = random_input({kBatch, kReferenceLength, config.d_model});
  const double v_bar = typical_variance(layer, h);
  set_mean_variance(layer, v_bar);
  layer->eval();

  std::vector<Phase> phases = {Phase::dense};
  if (config.sparse) phases = {Phase::warmup, Phase::sparse};
  for (const Phase phase : phases) {
    SCOPED_TRACE(name_of(phase));
    const auto result = layer->forward(h, {.phase = phase, .want_kl = config.sparse, .want_stats = true});
    const Reference r = reference_layer(config, parameters_of(*layer), h, v_bar, phase);
    EXPECT_EQ(result.out.sizes(), h.sizes());
    EXPECT_LT(max_error(result.out, r.out), kTolerance);
    EXPECT_TRUE(torch::equal(result.stats->k_t.to(torch::kInt64), r.k_t));
    EXPECT_EQ(result.stats->k_min, r.k_t.min().item<std::int64_t>());
    EXPECT_EQ(result.stats->k_max, r.k_t.max().item<std::int64_t>());
    EXPECT_NEAR(result.stats->k_mean, r.k_t.to(torch::kFloat64).mean().item<double>(), 1e-9);
    ASSERT_EQ(result.kl.has_value(), config.sparse);
    if (!config.sparse) continue;
    EXPECT_EQ(result.kl->dim(), 0);
    EXPECT_NEAR(result.kl->item<double>(), r.kl.mean().item<double>(), kTolerance);
    EXPECT_NEAR(result.stats->kept_mass, r.kept.mean().item<double>(), kTolerance);
    EXPECT_NEAR(result.stats->variance_mean.value(), v_bar, kTolerance);
  }
}

// The budget of these tests is no constant: otherwise k_t would be tested by little.
TEST(Layer, AdaptiveBudgetsSpread) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  const Tensor h = random_input({kBatch, kReferenceLength, layer->config().d_model});
  set_mean_variance(layer, typical_variance(layer, h));
  const auto stats = layer->forward(h, {.want_stats = true}).stats.value();
  const Tensor late = stats.k_t.slice(1, layer->config().budget.max);
  EXPECT_GT(std::get<0>(torch::_unique2(late)).numel(), 4);
}

TEST_P(ReferenceVariants, GradientsEqualTheReference) {
  auto layer = make_layer(GetParam().config);
  const AttentionConfig& config = layer->config();
  const Tensor h = random_input({kBatch, kReferenceLength, config.d_model}).requires_grad_();
  const Tensor weights = random_input({kBatch, kReferenceLength, config.d_model}, torch::kFloat64, 2);
  const double v_bar = typical_variance(layer, h);
  set_mean_variance(layer, v_bar);

  std::vector<Phase> phases = {Phase::dense};
  if (config.sparse) phases = {Phase::warmup, Phase::sparse};
  layer->eval();
  for (const Phase phase : phases) {
    SCOPED_TRACE(name_of(phase));
    std::vector<std::string> names;
    std::vector<Tensor> inputs = {h};
    for (const auto& item : layer->named_parameters()) {
      names.push_back(item.key());
      inputs.push_back(item.value());
    }
    const auto result = layer->forward(h, {.phase = phase, .want_kl = config.sparse});
    Tensor ours = (result.out * weights).sum();
    const Reference r = reference_layer(config, parameters_of(*layer), h, v_bar, phase);
    Tensor theirs = (r.out * weights).sum();
    if (config.sparse) {
      ours = ours + 3 * *result.kl;
      theirs = theirs + 3 * r.kl.mean();
    }
    const auto our_grads = torch::autograd::grad({ours}, inputs);
    const auto their_grads = torch::autograd::grad({theirs}, inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const double size = their_grads[i].abs().max().item<double>();
      EXPECT_GT(size, 0) << (i == 0 ? "h" : names[i - 1]);
      EXPECT_LT(max_error(our_grads[i], their_grads[i]), kTolerance * std::max(1.0, size))
          << (i == 0 ? "h" : names[i - 1]);
    }
  }
}

class FourSystems : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Layer, FourSystems, ::testing::ValuesIn(four_systems()), name_of_case);

// Independent of autograd altogether. The language-model side is checked on the base parameters, the KL on
// the indexer's: the target of the KL is a constant by definition, which differences would not know.
TEST_P(FourSystems, FiniteDifferences) {
  auto layer = make_layer(GetParam().config);
  layer->eval();
  const AttentionConfig& config = layer->config();
  const Tensor h = random_input({1, 23, config.d_model});
  const Tensor weights = random_input({1, 23, config.d_model}, torch::kFloat64, 2);
  set_mean_variance(layer, typical_variance(layer, h));
  for (const auto& item : layer->named_parameters()) {
    const bool of_indexer = item.key().rfind("indexer.", 0) == 0;
    const auto loss = [&] {
      const auto result = layer->forward(h, {.want_kl = of_indexer});
      return of_indexer ? *result.kl : (result.out * weights).sum();
    };
    const Tensor grad = torch::autograd::grad({loss()}, {item.value()})[0].flatten();
    torch::NoGradGuard no_grad;
    const Tensor flat = item.value().view(-1);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(flat.numel(), 3); ++i) {
      const Tensor entry = flat[(i * 7919) % flat.numel()];
      const double saved = entry.item<double>(), step = 1e-6;
      entry.fill_(saved + step);
      const double above = loss().item<double>();
      entry.fill_(saved - step);
      const double below = loss().item<double>();
      entry.fill_(saved);
      const double expected = (above - below) / (2 * step);
      EXPECT_NEAR(grad[(i * 7919) % flat.numel()].item<double>(), expected,
                  1e-6 * std::max(1.0, std::abs(expected)))
          << item.key() << " entry " << (i * 7919) % flat.numel();
    }
  }
}

// The layer built from torch's own attention, in the type of h: projections, rotation, SDPA, projection.
Tensor torch_standard(GatedSparseAttention& layer, const Tensor& h) {
  const AttentionConfig& c = layer->config();
  const std::int64_t batch = h.size(0), length = h.size(1), group = c.heads / c.kv_heads;
  const RopeTables tables =
      Rope(c.head_size, c.rope, true).tables(torch::arange(length).repeat({batch}), h.scalar_type());
  const auto heads = [&](const Tensor& x, std::int64_t n, bool rotated) {
    Tensor y = x.view({batch * length, n, c.head_size});
    if (rotated) y = rotate(y, tables);
    return y.view({batch, length, n, c.head_size}).transpose(1, 2).repeat_interleave(c.heads / n, 1);
  };
  EXPECT_EQ(group * c.kv_heads, c.heads);
  const Tensor o = at::scaled_dot_product_attention(
      heads(layer->q_proj(h), c.heads, true), heads(layer->k_proj(h), c.kv_heads, true),
      heads(layer->v_proj(h), c.kv_heads, false), {}, 0.0, /*is_causal=*/true);
  return layer->o_proj(o.transpose(1, 2).reshape({batch, length, c.heads * c.head_size}));
}

TEST(Layer, StandardIsTorchAttention) {
  auto layer = make_layer(small(AttentionConfig::standard()));
  const Tensor h = random_input({kBatch, kReferenceLength, layer->config().d_model});
  EXPECT_LT(max_error(layer->forward(h).out, torch_standard(layer, h)), kTolerance);
}

// Where the budget covers all that is visible, a sparse layer is a dense one.
TEST(Layer, AWideBudgetIsDense) {
  AttentionConfig config = small(AttentionConfig::sparse_only());
  config.budget.base = config.budget.max = kReferenceLength;
  auto layer = make_layer(config);
  const Tensor h = random_input({kBatch, kReferenceLength, config.d_model});
  const auto sparse = layer->forward(h, {.want_stats = true});
  EXPECT_LT(max_error(sparse.out, torch_standard(layer, h)), kTolerance);
  EXPECT_NEAR(sparse.stats->kept_mass, 1, 1e-12);
}

// At low precision our error against float64 is at most twice torch's own.
class Precisions : public ::testing::TestWithParam<torch::Dtype> {};

INSTANTIATE_TEST_SUITE_P(Layer, Precisions,
                         ::testing::Values(torch::kFloat32, torch::kBFloat16, torch::kFloat16),
                         [](const auto& test) { return std::string(c10::toString(test.param)); });

TEST_P(Precisions, StandardErrorAtMostTwiceTorchs) {
  auto layer = make_layer(small(AttentionConfig::standard()), GetParam());
  const Tensor h = random_input({kBatch, 97, layer->config().d_model}, GetParam());
  const Tensor ours = layer->forward(h).out, theirs = torch_standard(layer, h);
  ASSERT_EQ(ours.scalar_type(), GetParam());
  layer->to(torch::kFloat64);
  const Tensor exact = torch_standard(layer, h.to(torch::kFloat64));
  EXPECT_LE(max_error(ours, exact), 2 * max_error(theirs, exact));
  EXPECT_GT(max_error(ours, exact), 0);
}

}  // namespace
}  // namespace gsa::nn::testing
