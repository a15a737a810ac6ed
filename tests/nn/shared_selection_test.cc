// Layers that attend to what a layer before them has selected, and the indexer that learns from them all.
#include "nn/shared_selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/errors.h"
#include "nn/model.h"
#include "nn/torch.h"
#include "small_models.h"

namespace gsa::nn::testing {
namespace {

using gsa::testing::expect_error;

class SharedSelections : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Systems, SharedSelections, ::testing::ValuesIn(sparse_variants()), name_of_case);

struct LayerPair {
  GatedSparseAttention leader{nullptr}, follower{nullptr};
};

LayerPair make_pair_of_layers(const AttentionConfig& config, torch::Dtype dtype) {
  LayerPair pair;
  pair.leader = make_layer(config, dtype);
  AttentionConfig shares = config;
  shares.shares_selection = true;
  torch::manual_seed(8);
  pair.follower = GatedSparseAttention(shares);
  stir_optional_parts(*pair.follower);
  pair.follower->to(dtype);
  return pair;
}

// What a follower's own weights have to say.
Tensor attended_by_hand(GatedSparseAttention& layer, const AttentionView& view, const Tensor& mask,
                        const ops::Layout& layout) {
  Tensor out = ops::attend(view.q, view.k, view.v, mask, {}, layout).out;
  if (view.output_gate.defined()) out = ops::gate(out, view.output_gate);
  return layer->o_proj(out.reshape({out.size(0), -1}));
}

TEST_P(SharedSelections, AFollowerAttendsByTheMaskOfItsLeader) {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
    const AttentionConfig& config = GetParam().config;
    LayerPair pair = make_pair_of_layers(config, dtype);
    EXPECT_TRUE(pair.follower->named_buffers().is_empty());
    for (const auto& item : pair.follower->named_parameters()) {
      EXPECT_EQ(item.key().find("indexer"), std::string::npos) << item.key();
    }
    set_mean_variance(pair.leader, 0.01);
    const Tensor first = random_input({2, 40, config.d_model}, dtype, 1);
    const Tensor second = random_input({2, 40, config.d_model}, dtype, 2);
    AttentionView above, below;
    ForwardOptions options{.want_stats = true, .followers = 1};
    options.observe = [&](const AttentionView& view) { above = view; };
    const ForwardResult led = pair.leader->forward(first, options);
    ASSERT_TRUE(led.shared);

    ForwardOptions follows{.want_stats = true, .shared = led.shared};
    follows.observe = [&](const AttentionView& view) { below = view; };
    const ForwardResult result = pair.follower->forward(second, follows);
    EXPECT_FALSE(result.shared);
    const ops::Layout layout{above.starts, above.starts, std::nullopt};
    const Tensor mask = ops::select(*above.indexer, *above.budget, layout).mask;
    const Tensor expected = attended_by_hand(pair.follower, below, mask, layout);
    EXPECT_TRUE(result.out.reshape({80, -1}).equal(expected));
    EXPECT_TRUE(below.lse.equal(ops::attend(below.q, below.k, below.v, mask, {}, layout).lse));

    // What statistics see of it: the leader's selection, the follower's attention.
    EXPECT_TRUE(below.k_t.equal(above.k_t));
    EXPECT_TRUE(below.threshold.equal(above.threshold));
    EXPECT_TRUE(below.tie_cut.equal(above.tie_cut));
    EXPECT_TRUE(below.indexer->q.equal(above.indexer->q));
    EXPECT_TRUE(below.budget->mean_variance->equal(*above.budget->mean_variance));
    EXPECT_TRUE(result.stats->k_t.equal(led.stats->k_t));
    EXPECT_FALSE(result.stats->variance_mean);
    const Tensor dense = ops::attend_lse(below.q, below.k, {}, {}, layout);
    EXPECT_EQ(result.stats->kept_mass, ((below.lse - dense).exp().mean(-1).sum() / 80.0).item<double>());
  }
}

TEST(SharedSelection, AMaskTooLargeToKeepIsSelectedOnceMore) {
  AttentionConfig config = small(AttentionConfig::gsa());
  config.heads = config.kv_heads = 1;
  config.head_size = 2;                           // 8 bytes a query
  for (const std::int64_t length : {500, 600}) {  // 16 words of a mask, 19
    LayerPair pair = make_pair_of_layers(config, torch::kFloat32);
    const ForwardResult led =
        pair.leader->forward(random_input({1, length, config.d_model}, torch::kFloat32), {.followers = 1});
    EXPECT_EQ(led.shared->groups[0].mask.defined(), length == 500);
    AttentionView view;
    ForwardOptions follows{.shared = led.shared};
    follows.observe = [&](const AttentionView& seen) { view = seen; };
    const Tensor h = random_input({1, length, config.d_model}, torch::kFloat32, 2);
    const ForwardResult result = pair.follower->forward(h, follows);
    const ops::Layout layout{view.starts, view.starts, std::nullopt};
    const ops::Selection selection = ops::select(led.shared->inputs, led.shared->budget, layout);
    EXPECT_TRUE(result.out[0].equal(attended_by_hand(pair.follower, view, selection.mask, layout)));
    EXPECT_TRUE(view.k_t.equal(selection.k_t));
  }
}

// ---- Learning

// KL(p || softmax(I)) of each query, mean over queries; p [T, T] is a constant. allowed: the support.
Tensor reference_kl(const Tensor& p, const Tensor& scores, const Tensor& allowed) {
  const Tensor log_softmax = scores.masked_fill(~allowed, -1e30).log_softmax(1);
  const Tensor terms = torch::where(p > 0, p * (p.clamp_min(1e-300).log() - log_softmax), 0.0);
  return terms.sum(1).mean();
}

Tensor reference_scores(const ops::IndexerInputs& in) {
  const Tensor products = torch::einsum("thd,sd->ths", {in.q, in.k}) * in.scale;
  const Tensor each = in.form == "relu"
                          ? products.relu()
                          : torch::sigmoid(in.bias ? products + in.bias->view({1, -1, 1}) : products);
  return (each * in.w.unsqueeze(2)).sum(1);
}

Tensor bits_of_mask(const Tensor& mask, std::int64_t keys) {
  const Tensor bits = mask.unsqueeze(-1).bitwise_right_shift(torch::arange(32, torch::kInt)).bitwise_and(1);
  return bits.reshape({mask.size(0), -1}).narrow(1, 0, keys).to(torch::kBool);
}

// Attention of a layer over `allowed`, mean over heads.
Tensor reference_target(const AttentionView& view, const Tensor& allowed) {
  const std::int64_t group = view.q.size(1) / view.k.size(1);
  const Tensor k = view.k.repeat_interleave(group, 1);
  const Tensor logits = torch::einsum("thd,shd->hts", {view.q, k}) / std::sqrt(double(view.q.size(2)));
  return logits.masked_fill(~allowed, -1e300).softmax(2).mean(0);
}

// The gradient of the mean of the losses is that of one loss against the mean of the targets, and the losses
// differ by what does not depend on the indexer.
TEST_P(SharedSelections, TheIndexerLearnsTheMeanOfItsLayers) {
  const AttentionConfig& config = GetParam().config;
  constexpr std::int64_t kSharedLength = 37, kFollowers = 3;
  struct Case {
    Phase phase;
    KlSupport support;
  };
  for (const auto& [phase, support] :
       {Case{Phase::warmup, KlSupport::selected}, Case{Phase::sparse, KlSupport::selected},
        Case{Phase::sparse, KlSupport::all}}) {
    SCOPED_TRACE(concat(name_of(phase), " ", name_of(support)));
    LayerPair pair = make_pair_of_layers(config, torch::kFloat64);
    set_mean_variance(pair.leader, 0.01);
    ForwardOptions options{.phase = phase, .want_kl = true, .kl_support = support, .followers = kFollowers};
    std::vector<AttentionView> views(1 + kFollowers);
    options.observe = [&](const AttentionView& view) { views[0] = view; };
    const ForwardResult led = pair.leader->forward(random_input({1, kSharedLength, config.d_model}), options);
    Tensor loss = *led.kl;
    options.followers = 0;
    options.shared = led.shared;
    for (std::size_t n = 1; n <= kFollowers; ++n) {
      options.observe = [&, n](const AttentionView& view) { views[n] = view; };
      loss = loss +
             *pair.follower
                  ->forward(random_input({1, kSharedLength, config.d_model}, torch::kFloat64, n + 5), options)
                  .kl;
    }
    loss = loss / (1 + kFollowers);
    const std::vector<Tensor> parameters = pair.leader->indexer->parameters();
    const auto gradients_of = [&](const Tensor& of) {
      return torch::autograd::grad({of}, parameters, {}, /*retain_graph=*/true);
    };

    Tensor allowed = torch::ones({kSharedLength, kSharedLength}, torch::kBool).tril();
    if (phase == Phase::sparse && support == KlSupport::selected) {
      allowed = bits_of_mask(led.shared->groups[0].mask, kSharedLength);
    }
    std::vector<Tensor> targets;
    for (const AttentionView& view : views) targets.push_back(reference_target(view, allowed));
    const Tensor scores = reference_scores(led.shared->temperature.apply(led.shared->inputs));
    const Tensor mean_target = torch::stack(targets).mean(0);
    const std::vector<Tensor> got = gradients_of(loss);
    const std::vector<Tensor> wanted = gradients_of(reference_kl(mean_target, scores, allowed));
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double size = wanted[i].abs().max().item<double>();
      EXPECT_GT(size, 0);
      EXPECT_LT(max_error(got[i], wanted[i]), 1e-10 * std::max(size, 1e-3)) << i;
    }
    Tensor each = torch::zeros({}, torch::kFloat64);
    for (const Tensor& target : targets) each = each + reference_kl(target, scores, allowed);
    EXPECT_NEAR(loss.item<double>(), each.item<double>() / (1 + kFollowers), 1e-11);
    EXPECT_GT(loss.item<double>(), reference_kl(mean_target, scores, allowed).item<double>() + 1e-6);
  }
}

// ---- Models

ModelConfig grouped_model(const AttentionConfig& attention, std::vector<std::int64_t> index_layers) {
  ModelConfig config = small_model(attention);
  config.layers = 4;
  config.index_layers = std::move(index_layers);
  return config;
}

TEST_P(SharedSelections, AModelHasALossForEachIndexer) {
  auto model = make_model(grouped_model(GetParam().config, {0, 1}), torch::kFloat64);
  model->eval();
  std::vector<AttentionView> views;
  ModelForwardOptions options{.want_kl = true, .want_stats = true, .kl_support = KlSupport::all};
  options.observe_attention = [&](std::int64_t, const AttentionView& view) { views.push_back(view); };
  const ModelResult result = model->forward(random_tokens({2, 33}), options);
  ASSERT_EQ(result.kl.size(), 2u);
  ASSERT_EQ(result.stats.size(), 4u);
  ASSERT_EQ(result.kept.size(), 4u);
  const ops::Layout layout{views[0].starts, views[0].starts, std::nullopt};
  const auto kl_of = [&](std::size_t layer, std::size_t leader) {
    const AttentionView& view = views[layer];
    const Temperature temperature = model->model->layers[leader]->self_attn->indexer->temperature();
    const Tensor lse = ops::attend_lse(view.q, view.k, {}, {}, layout);
    return ops::indexer_kl(view.q, view.k, lse, temperature.apply(*views[leader].indexer), {}, {}, {}, {},
                           layout)
               .loss.sum()
               .item<double>() /
           66;
  };
  EXPECT_EQ(result.kl[0].item<double>(), kl_of(0, 0));
  EXPECT_NEAR(result.kl[1].item<double>(), (kl_of(1, 1) + kl_of(2, 1) + kl_of(3, 1)) / 3, 1e-12);
  EXPECT_TRUE(result.stats[1].variance_mean && !result.stats[2].variance_mean);
  EXPECT_TRUE(result.stats[3].k_t.equal(result.stats[1].k_t));
  EXPECT_FALSE(views[1].q.equal(views[2].q));
}

// Two ways to say the same would not compare equal.
TEST(SharedSelection, AListOfEveryLayerIsRefused) {
  const ModelConfig config = grouped_model(small(AttentionConfig::gsa()), {0, 1, 2, 3});
  expect_error([&] { Model{config}; }, {"'index_layers'", "an empty list", "got 0, 1, 2, 3"});
}

struct GroupedRun {
  std::vector<double> losses;
  std::vector<std::pair<std::string, Tensor>> grads;
  std::vector<Tensor> mean_variance;
};

GroupedRun run_grouped(const ModelConfig& config, const ModelForwardOptions& given, torch::Dtype dtype) {
  auto model = make_model(config, dtype);
  GroupedRun run;
  for (const std::uint64_t seed : {1, 2}) {  // the second selects with what the first left of the mean
    ModelForwardOptions options = given;
    options.cu_seqlens = torch::tensor({0, 20, 66}, torch::kInt64);
    const Tensor tokens = random_tokens({66}, seed);
    const ModelLoss loss = model->loss(tokens, next_tokens(tokens), options);
    Tensor objective = loss.sum / 3;
    if (!loss.kl.empty()) objective = objective + total(loss.kl);
    objective.backward();
    run.losses.push_back(loss.sum.item<double>());
    for (const Tensor& kl : loss.kl) run.losses.push_back(kl.item<double>());
  }
  run.grads = gradients(model);
  run.mean_variance = mean_variances(model);
  return run;
}

class RegroupedSelections : public ::testing::TestWithParam<NamedConfig> {};

// Where the order of sums could differ: temperatures that are learned, biases, several groups of sequences.
std::vector<NamedConfig> regrouped_variants() {
  std::vector<NamedConfig> variants = sparse_variants();
  std::erase_if(variants, [](const NamedConfig& v) {
    return v.name != "gsa" && v.name != "sparse_only" && v.name != "temperature_learned";
  });
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Systems, RegroupedSelections, ::testing::ValuesIn(regrouped_variants()),
                         name_of_case);

TEST_P(RegroupedSelections, RecomputedActivationsChangeNoBit) {
  struct Case {
    std::vector<std::int64_t> index_layers;
    std::int64_t dense_below;
    torch::Dtype dtype;
  };
  struct Learning {
    Phase phase;
    KlSupport support;
  };
  for (const Case& test : {Case{{0}, 0, torch::kFloat32}, Case{{0, 1}, 30, torch::kFloat32},
                           Case{{0, 1}, 0, torch::kBFloat16}, Case{{0}, 30, torch::kBFloat16}}) {
    ModelConfig config = grouped_model(GetParam().config, test.index_layers);
    config.attention.dense_below = test.dense_below;
    for (const auto& [phase, support] :
         {Learning{Phase::dense, KlSupport::selected}, Learning{Phase::warmup, KlSupport::selected},
          Learning{Phase::sparse, KlSupport::selected}, Learning{Phase::sparse, KlSupport::all}}) {
      SCOPED_TRACE(concat(test.index_layers.size(), " indexers, dense below ", test.dense_below, ", ",
                          name_of(phase), ", ", name_of(support), " ", torch::toString(test.dtype)));
      ModelForwardOptions options{.phase = phase, .want_kl = phase != Phase::dense, .kl_support = support};
      const GroupedRun kept = run_grouped(config, options, test.dtype);
      options.checkpoint_activations = true;
      const GroupedRun again = run_grouped(config, options, test.dtype);
      EXPECT_EQ(kept.losses, again.losses);
      ASSERT_EQ(kept.mean_variance.size(), test.index_layers.size());
      for (std::size_t i = 0; i < kept.mean_variance.size(); ++i) {
        EXPECT_TRUE(kept.mean_variance[i].equal(again.mean_variance[i]));
      }
      for (std::size_t i = 0; i < kept.grads.size(); ++i) {
        const auto& [name, grad] = kept.grads[i];
        ASSERT_EQ(grad.defined(), again.grads[i].second.defined()) << name;
        if (!grad.defined()) continue;
        EXPECT_TRUE(grad.equal(again.grads[i].second)) << name;
      }
    }
  }
}

// The indexer learns from its followers, too.
TEST(SharedSelection, AnIndexersGradientComesFromItsFollowers) {
  for (const bool again : {false, true}) {
    for (const bool shared : {false, true}) {
      auto model = make_model(grouped_model(small(AttentionConfig::gsa()), {0, 3}), torch::kFloat64);
      ModelForwardOptions options{.want_kl = true, .checkpoint_activations = again};
      const ModelResult result = model->forward(random_tokens({2, 33}), options);
      (shared ? result.kl[0] : result.kl[1]).backward();
      for (const auto& [name, grad] : gradients(model)) {
        const bool own = name.find(shared ? "layers.0.self_attn.indexer." : "layers.3.self_attn.indexer.") !=
                         std::string::npos;
        ASSERT_EQ(grad.defined(), own) << name;
      }
    }
  }
}

TEST(SharedSelection, WhatDoesNotFitIsRefused) {
  const AttentionConfig config = small(AttentionConfig::gsa());
  LayerPair pair = make_pair_of_layers(config, torch::kFloat32);
  const Tensor h = random_input({1, 20, config.d_model}, torch::kFloat32);
  expect_error([&] { pair.follower->forward(h); }, {"'shared'", "has no indexer", "got none"});
  EXPECT_NO_THROW(pair.follower->forward(h, {.phase = Phase::dense}));
  expect_error([&] { pair.follower->forward(h, {.followers = 1}); }, {"'followers'", "got 1"});
  const ForwardResult led = pair.leader->forward(h, {.followers = 1});
  EXPECT_FALSE(pair.leader->forward(h).shared);
  EXPECT_FALSE(pair.leader->forward(h, {.phase = Phase::dense, .followers = 1}).shared);
  EXPECT_NO_THROW(pair.follower->forward(h, {.shared = led.shared}));
  expect_error([&] { pair.leader->forward(h, {.shared = led.shared}); }, {"'shared'", "got one"});
  const Tensor longer = random_input({1, 21, config.d_model}, torch::kFloat32);
  expect_error([&] { pair.follower->forward(longer, {.shared = led.shared}); },
               {"'shared'", "21 tokens", "20 tokens"});
  expect_error(
      [&] { pair.follower->forward(h, {.phase = Phase::warmup, .want_kl = true, .shared = led.shared}); },
      {"'shared'", "in this phase"});
  // As many tokens in as many groups, of other sequences.
  const auto packed = [](std::int64_t first) {
    return torch::tensor({std::int64_t{0}, first, std::int64_t{20}});
  };
  const ForwardResult parted = pair.leader->forward(h[0], {.cu_seqlens = packed(8), .followers = 1});
  EXPECT_NO_THROW(pair.follower->forward(h[0], {.cu_seqlens = packed(8), .shared = parted.shared}));
  expect_error([&] { pair.follower->forward(h[0], {.cu_seqlens = packed(9), .shared = parted.shared}); },
               {"'shared'", "for these sequences", "of other sequences"});
}

// The pass on a plan that was made before says the same as the one that makes it.
TEST(SharedSelection, WhatDoesNotFitIsRefusedWithAPlanToo) {
  const AttentionConfig config = small(AttentionConfig::gsa());
  LayerPair pair = make_pair_of_layers(config, torch::kFloat32);
  const Tensor h = random_input({1, 20, config.d_model}, torch::kFloat32);
  const SequencePlan plan = pair.leader->plan({1, 20}, torch::kFloat32, torch::kCPU, {});
  const ForwardResult led = pair.leader->forward(h, {.followers = 1}, plan);
  EXPECT_NO_THROW(pair.follower->forward(h, {.shared = led.shared}, plan));
  expect_error([&] { pair.leader->forward(h, {.shared = led.shared}, plan); }, {"'shared'", "got one"});
  expect_error([&] { pair.follower->forward(h, {.shared = led.shared, .followers = 1}, plan); },
               {"'followers'", "got 1"});
}

}  // namespace
}  // namespace gsa::nn::testing
