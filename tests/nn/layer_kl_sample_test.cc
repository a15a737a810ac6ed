// The indexer's loss over all keys in the sparse phase, and of a sample of the queries.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/philox.h"
#include "gsa/error.h"
#include "gsa/tensor_view.h"
#include "model/errors.h"
#include "nn/attention.h"
#include "nn/torch.h"
#include "reference.h"
#include "small_layers.h"
#include "small_models.h"

namespace gsa::nn::testing {
namespace {

using gsa::testing::expect_error;

ForwardOptions over_all(std::optional<KlSample> sample = std::nullopt, Phase phase = Phase::sparse) {
  return {.phase = phase, .want_kl = true, .kl_support = KlSupport::all, .kl_sample = sample};
}

std::vector<Tensor> indexer_gradients(GatedSparseAttention& layer, const Tensor& loss) {
  layer->zero_grad();
  loss.backward();
  std::vector<Tensor> grads;
  for (const Tensor& parameter : layer->indexer->parameters()) grads.push_back(parameter.grad().clone());
  return grads;
}

class KlOverAll : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(KlSample, KlOverAll, ::testing::ValuesIn(sparse_variants()), name_of_case);

// In the sparse phase too the target is dense attention, so the loss is that of the warm-up; what the layer
// attends to does not change. The kept mass is what statistics find by a second pass.
TEST_P(KlOverAll, IsTheLossOfTheWarmup) {
  auto layer = make_layer(GetParam().config);
  layer->eval();
  const Tensor h = random_input({2, 90, layer->config().d_model});
  const auto all = layer->forward(h, over_all());
  const auto selected = layer->forward(h, {.phase = Phase::sparse, .want_kl = true, .want_stats = true});
  const auto warmup = layer->forward(h, {.phase = Phase::warmup, .want_kl = true});
  EXPECT_TRUE(torch::equal(all.out, selected.out));
  EXPECT_NEAR(all.kl->item<double>(), warmup.kl->item<double>(), 1e-12);
  EXPECT_NEAR(all.kept->item<double>(), selected.stats->kept_mass, 1e-12);
  EXPECT_FALSE(selected.kept.has_value());
  EXPECT_FALSE(warmup.kept.has_value());
  EXPECT_FALSE(all.kept->requires_grad());
  const std::vector<Tensor> a = indexer_gradients(layer, *all.kl), b = indexer_gradients(layer, *warmup.kl);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_LT(max_error(a[i], b[i]), 1e-12);
  for (const auto& item : layer->named_parameters()) {
    if (item.key().rfind("indexer.", 0) != 0) {
      EXPECT_FALSE(item.value().grad().defined()) << item.key();
    }
  }
}

TEST_P(KlOverAll, StatisticsTakeTheEstimate) {
  auto layer = make_layer(GetParam().config);
  layer->eval();
  ForwardOptions options = over_all(KlSample{0.5, 3});
  options.want_stats = true;
  const auto result = layer->forward(random_input({2, 150, layer->config().d_model}), options);
  EXPECT_EQ(result.stats->kept_mass, result.kept->item<double>());
}

// What a sample says, from the reference's loss and kept mass of every query.
struct Expected {
  double kl = 0, kept = 1;
};

Expected expected_of(GatedSparseAttention& layer, const Tensor& x, const std::vector<std::int64_t>& starts,
                     const std::vector<std::vector<std::int64_t>>& groups, const std::vector<char>& sparse,
                     const KlSample& sample) {
  const Parameters parameters = parameters_of(*layer);
  const std::int64_t parts = *parts_of_share(sample.share);
  double kl = 0, lost = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::int64_t> group_starts = {0};
    for (const std::int64_t n : groups[g]) {
      group_starts.push_back(group_starts.back() + starts[static_cast<std::size_t>(n) + 1] -
                             starts[static_cast<std::size_t>(n)]);
    }
    const std::uint64_t seed = philox_bits(sample.seed, 1, sparse[g] != 0 ? 1 : 0);
    const std::vector<std::int64_t> tiles = sample_query_tiles(group_starts, parts, seed);
    std::int64_t number = 0;
    for (const std::int64_t n : groups[g]) {
      const Tensor rows =
          x.slice(0, starts[static_cast<std::size_t>(n)], starts[static_cast<std::size_t>(n) + 1]);
      const Reference all = reference_sequence(layer->config(), parameters, rows, -1, Phase::warmup);
      for (std::int64_t first = 0; first < rows.size(0); first += kQueryTile, ++number) {
        if (std::ranges::find(tiles, number) == tiles.end()) continue;
        kl += all.kl.slice(0, first, first + kQueryTile).sum().item<double>();
        if (sparse[g] != 0) lost += (1 - all.kept.slice(0, first, first + kQueryTile)).sum().item<double>();
      }
    }
  }
  const double scale = static_cast<double>(parts) / static_cast<double>(x.size(0));
  return {kl * scale, 1 - lost * scale};
}

TEST(KlSampleOfALayer, IsTheSumOverItsTiles) {
  for (const std::int64_t dense_below : {0, 100}) {
    AttentionConfig config = small(AttentionConfig::gsa());
    config.dense_below = dense_below;
    auto layer = make_layer(config);
    layer->eval();
    const std::vector<std::int64_t> starts = {0, 70, 270, 271, 471, 519};
    const Tensor x = random_input({519, config.d_model});
    for (const std::uint64_t seed : {1, 2, 3}) {
      const KlSample sample{1.0 / 3, seed};
      ForwardOptions options = over_all(sample);
      options.cu_seqlens = torch::tensor(at::ArrayRef<std::int64_t>(starts), torch::kInt64);
      const auto result = layer->forward(x, options);
      const Expected expected = dense_below == 0
                                    ? expected_of(layer, x, starts, {{0, 1, 2, 3, 4}}, {1}, sample)
                                    : expected_of(layer, x, starts, {{1, 3}, {0, 2, 4}}, {1, 0}, sample);
      EXPECT_NEAR(result.kl->item<double>(), expected.kl, 1e-10) << seed;
      EXPECT_NEAR(result.kept->item<double>(), expected.kept, 1e-10) << seed;
      EXPECT_NE(expected.kl, 0);
      // Warm-up draws from one group, and has no kept mass.
      ForwardOptions warmup = options;
      warmup.phase = Phase::warmup;
      const Expected dense = expected_of(layer, x, starts, {{0, 1, 2, 3, 4}}, {0}, sample);
      const auto warm = layer->forward(x, warmup);
      EXPECT_NEAR(warm.kl->item<double>(), dense.kl, 1e-10) << seed;
      EXPECT_FALSE(warm.kept.has_value());
    }
  }
}

// The mean over many draws is the loss, the kept mass and the gradient of every query, within five standard
// errors.
TEST(KlSampleOfALayer, IsUnbiased) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  layer->eval();
  const Tensor x = random_input({330, layer->config().d_model});
  ForwardOptions options = over_all();
  options.cu_seqlens = torch::tensor({0, 90, 100, 330}, torch::kInt64);
  const auto numbers = [&] {
    const auto result = layer->forward(x, options);
    indexer_gradients(layer, *result.kl);
    const Tensor grad = layer->indexer->wq->weight.grad();
    return std::vector<double>{result.kl->item<double>(), result.kept->item<double>(),
                               grad[0][0].item<double>(), grad[3][5].item<double>()};
  };
  const std::vector<double> exact = numbers();
  constexpr int kDraws = 100;
  std::vector<double> sum(exact.size(), 0), square(exact.size(), 0);
  for (int seed = 0; seed < kDraws; ++seed) {
    options.kl_sample = KlSample{0.25, static_cast<std::uint64_t>(seed)};
    const std::vector<double> drawn = numbers();
    for (std::size_t i = 0; i < exact.size(); ++i) {
      sum[i] += drawn[i];
      square[i] += drawn[i] * drawn[i];
    }
  }
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double mean = sum[i] / kDraws, variance = square[i] / kDraws - mean * mean;
    EXPECT_GT(variance, 0) << i;
    EXPECT_NEAR(mean, exact[i], 5 * std::sqrt(variance / kDraws)) << i;
  }
}

// A sample that misses a short batch is no error: nothing is learned from it.
TEST(KlSampleOfALayer, MayBeEmpty) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  const Tensor h = random_input({1, 40, layer->config().d_model});
  int empty = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto result = layer->forward(h, over_all(KlSample{1.0 / 16, seed}));
    if (result.kl->item<double>() != 0) continue;
    ++empty;
    EXPECT_EQ(result.kept->item<double>(), 1);
    for (const Tensor& grad : indexer_gradients(layer, *result.kl)) {
      EXPECT_EQ(grad.abs().max().item<double>(), 0);
    }
  }
  EXPECT_GT(empty, 10);
  const auto nothing = layer->forward(random_input({0, 40, 24}), over_all(KlSample{0.5, 1}));
  EXPECT_EQ(nothing.kl->item<double>(), 0);
  EXPECT_EQ(nothing.kept->item<double>(), 1);
}

TEST(KlSampleOfALayer, MistakesAreNamed) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  const Tensor h = random_input({1, 40, layer->config().d_model});
  for (const double share : {0.0, 0.3, 1.5, std::nan("")}) {
    expect_error([&] { layer->forward(h, over_all(KlSample{share, 1})); }, {"kl_sample.share", "1/n"});
  }
  ForwardOptions selected = over_all(KlSample{0.5, 1});
  selected.kl_support = KlSupport::selected;
  expect_error([&] { layer->forward(h, selected); }, {"kl_sample", "kl_support selected"});
  selected.phase = Phase::warmup;
  EXPECT_NO_THROW(layer->forward(h, selected));
}

// ---- in a model

struct Pass {
  std::vector<Tensor> kl, kept;
  std::vector<std::pair<std::string, Tensor>> grads;
};

Pass pass_of(std::uint64_t seed, bool again, Phase phase) {
  auto model = make_model(small_model(small(AttentionConfig::gsa())), torch::kFloat32);
  const Tensor tokens = random_tokens({2, 300});
  const auto loss = model->loss(tokens, next_tokens(tokens),
                                {.phase = phase,
                                 .want_kl = true,
                                 .kl_support = KlSupport::all,
                                 .kl_sample = KlSample{0.25, seed},
                                 .checkpoint_activations = again});
  (loss.sum / 600 + total(loss.kl)).backward();
  return {loss.kl, loss.kept, gradients(model)};
}

TEST(KlSampleOfAModel, IsTheSameWhereActivationsAreComputedAgain) {
  for (const Phase phase : {Phase::warmup, Phase::sparse}) {
    const Pass once = pass_of(5, false, phase), again = pass_of(5, true, phase);
    EXPECT_EQ(once.kept.size(), phase == Phase::sparse ? 3u : 0u);
    for (std::size_t i = 0; i < once.kept.size(); ++i) EXPECT_TRUE(torch::equal(once.kept[i], again.kept[i]));
    for (std::size_t i = 0; i < once.kl.size(); ++i) EXPECT_TRUE(torch::equal(once.kl[i], again.kl[i]));
    for (std::size_t i = 0; i < once.grads.size(); ++i) {
      ASSERT_TRUE(once.grads[i].second.defined()) << once.grads[i].first;
      EXPECT_TRUE(torch::equal(once.grads[i].second, again.grads[i].second)) << once.grads[i].first;
    }
  }
}

TEST(KlSampleOfAModel, IsDrawnAnewByTheSeed) {
  const Pass a = pass_of(5, false, Phase::warmup), b = pass_of(5, false, Phase::warmup),
             c = pass_of(6, false, Phase::warmup);
  for (std::size_t i = 0; i < a.kl.size(); ++i) {
    EXPECT_TRUE(torch::equal(a.kl[i], b.kl[i]));
    EXPECT_FALSE(torch::equal(a.kl[i], c.kl[i]));
  }
}

// Layers with the same weights and input would have the same loss: each draws its own sample.
TEST(KlSampleOfAModel, IsDrawnByEachLayerForItself) {
  auto model = make_model(small_model(small(AttentionConfig::gsa())));
  torch::NoGradGuard no_grad;
  const Tensor tokens = random_tokens({1, 1000});
  for (Block& block : model->model->layers) {
    block->self_attn->o_proj->weight.zero_();  // the stream passes through unchanged
    block->mlp->down_proj->weight.zero_();
    const auto from = model->model->layers[0]->named_parameters();
    for (auto& item : block->named_parameters()) item.value().copy_(from[item.key()]);
  }
  const auto kl = [&](std::optional<KlSample> sample) {
    return model->forward(tokens, {.phase = Phase::warmup, .want_kl = true, .kl_sample = sample}).kl;
  };
  const auto every = kl(std::nullopt), some = kl(KlSample{0.125, 1});
  EXPECT_EQ(every[0].item<double>(), every[1].item<double>());
  EXPECT_NE(some[0].item<double>(), some[1].item<double>());
  EXPECT_NE(some[1].item<double>(), some[2].item<double>());
}

}  // namespace
}  // namespace gsa::nn::testing
