// Who learns from what in a whole model, the phases, and activations that are computed twice.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <string>
#include <vector>

#include "gsa/error.h"
#include "nn/model.h"
#include "nn/torch.h"
#include "small_models.h"

namespace gsa::nn::testing {
namespace {

class ModelLearning : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Systems, ModelLearning, ::testing::ValuesIn(all_variants()), name_of_case);

// With and without recomputed activations, in the phase that a model trains in.
TEST_P(ModelLearning, LanguageModelLossReachesAllButTheIndexer) {
  for (const bool again : {false, true}) {
    auto model = make_model(small_model(GetParam().config));
    const Tensor tokens = random_tokens({2, 33});
    const auto loss = model->loss(tokens, next_tokens(tokens),
                                  {.want_kl = GetParam().config.sparse, .checkpoint_activations = again});
    loss.sum.backward();
    for (const auto& [name, grad] : gradients(model)) {
      if (kind_of_parameter(name) == ParameterKind::indexer) {
        EXPECT_FALSE(grad.defined()) << name;
      } else {
        ASSERT_TRUE(grad.defined()) << name;
        EXPECT_GT(grad.abs().max().item<double>(), 0) << name;
      }
    }
  }
}

class SparseLearning : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Systems, SparseLearning, ::testing::ValuesIn(sparse_variants()), name_of_case);

TEST_P(SparseLearning, IndexerLossReachesTheIndexerAlone) {
  for (const bool again : {false, true}) {
    for (const Phase phase : {Phase::warmup, Phase::sparse}) {
      auto model = make_model(small_model(GetParam().config));
      const auto result = model->forward(random_tokens({2, 33}),
                                         {.phase = phase, .want_kl = true, .checkpoint_activations = again});
      ASSERT_EQ(result.kl.size(), 3u);
      total(result.kl).backward();
      for (const auto& [name, grad] : gradients(model)) {
        if (kind_of_parameter(name) != ParameterKind::indexer) {
          EXPECT_FALSE(grad.defined()) << name;
        } else {
          ASSERT_TRUE(grad.defined()) << name;
          EXPECT_GT(grad.abs().max().item<double>(), 0) << name;
        }
      }
    }
  }
}

struct TrainingRun {
  double sum = 0, kl = 0;
  std::vector<std::pair<std::string, Tensor>> grads;
  std::vector<Tensor> mean_variance;
  std::vector<AttentionStats> stats;
};

// Two training steps' worth of passes, so that the second selects with what the first left of the running
// mean.
TrainingRun run_two_passes(const ModelConfig& config, Phase phase, bool packed, bool again,
                           torch::Dtype dtype) {
  auto model = make_model(config, dtype);
  TrainingRun run;
  for (const std::uint64_t seed : {1, 2}) {
    const Tensor tokens = packed ? random_tokens({66}, seed) : random_tokens({2, 33}, seed);
    ModelForwardOptions options;
    options.phase = phase;
    options.want_kl = phase != Phase::dense;
    options.want_stats = true;
    options.checkpoint_activations = again;
    if (packed) options.cu_seqlens = torch::tensor({0, 20, 66}, torch::kInt64);
    const ModelLoss loss = model->loss(tokens, next_tokens(tokens), options);
    (loss.sum / 3 + total(loss.kl)).backward();
    run.sum += loss.sum.item<double>();
    run.kl += total(loss.kl).item<double>();
    run.stats = loss.stats;
  }
  run.grads = gradients(model);
  run.mean_variance = mean_variances(model);
  return run;
}

TEST_P(ModelLearning, RecomputedActivationsChangeNoBit) {
  const ModelConfig config = small_model(GetParam().config);
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
    for (const Phase phase : {Phase::dense, Phase::warmup, Phase::sparse}) {
      if (phase != Phase::dense && !config.attention.sparse) continue;
      for (const bool packed : {false, true}) {
        SCOPED_TRACE(concat(name_of(phase), packed ? " packed " : " batch ", torch::toString(dtype)));
        const TrainingRun kept = run_two_passes(config, phase, packed, false, dtype);
        const TrainingRun again = run_two_passes(config, phase, packed, true, dtype);
        EXPECT_EQ(kept.sum, again.sum);
        EXPECT_EQ(kept.kl, again.kl);
        for (std::size_t i = 0; i < kept.grads.size(); ++i) {
          const auto& [name, grad] = kept.grads[i];
          ASSERT_EQ(grad.defined(), again.grads[i].second.defined()) << name;
          if (grad.defined()) {
            EXPECT_TRUE(torch::equal(grad, again.grads[i].second)) << name;
          }
        }
        ASSERT_EQ(kept.mean_variance.size(), again.mean_variance.size());
        for (std::size_t i = 0; i < kept.mean_variance.size(); ++i) {
          EXPECT_TRUE(torch::equal(kept.mean_variance[i], again.mean_variance[i]));
        }
        for (std::size_t i = 0; i < kept.stats.size(); ++i) {
          EXPECT_TRUE(torch::equal(kept.stats[i].k_t, again.stats[i].k_t));
        }
      }
    }
  }
}

TEST(Recompute, KeepsLessUntilTheBackwardPass) {
  // What survives the forward pass is visible in the graph: one node a block, whose only saved tensors are
  // its input and parameters.
  auto model = make_model(small_model(small(AttentionConfig::gsa())));
  int calls = 0;
  const auto observe = [&](std::int64_t, const Tensor&) { ++calls; };
  const auto result =
      model->forward(random_tokens({1, 20}), {.checkpoint_activations = true, .observe = observe});
  result.hidden.sum().backward();
  EXPECT_EQ(calls, 4);  // the second computation is not observed
}

// Weights in float32, products in bfloat16. The backward pass runs after autocast has ended, yet computes the
// block again as it was.
TEST(Recompute, KeepsAutocast) {
  std::vector<Tensor> grads[2];
  for (const bool again : {false, true}) {
    auto model = make_model(small_model(small(AttentionConfig::gsa())), torch::kFloat32);
    const Tensor tokens = random_tokens({2, 33});
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const auto loss =
        model->loss(tokens, next_tokens(tokens), {.want_kl = true, .checkpoint_activations = again});
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    (loss.sum + total(loss.kl)).backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    for (const auto& [name, grad] : gradients(model)) {
      ASSERT_TRUE(grad.defined()) << name;
      EXPECT_EQ(grad.scalar_type(), torch::kFloat32) << name;
      grads[again ? 1 : 0].push_back(grad);
    }
  }
  for (std::size_t i = 0; i < grads[0].size(); ++i) EXPECT_TRUE(torch::equal(grads[0][i], grads[1][i])) << i;
}

TEST(Recompute, RunsWithoutAGraphWhereNoneIsWanted) {
  auto model = make_model(small_model(small(AttentionConfig::gsa())));
  model->eval();
  const Tensor tokens = random_tokens({1, 20});
  const Tensor plain = model->forward(tokens).hidden;
  torch::NoGradGuard no_grad;
  const Tensor hidden = model->forward(tokens, {.checkpoint_activations = true}).hidden;
  EXPECT_FALSE(hidden.requires_grad());
  EXPECT_TRUE(torch::equal(hidden, plain));
}

// In the warm-up only the indexer learns: with the rest frozen, the same gradients for it, none elsewhere.
TEST(SetLearning, FreezesByKind) {
  for (const bool again : {false, true}) {
    auto free = make_model(small_model(small(AttentionConfig::gsa())));
    auto frozen = make_model(small_model(small(AttentionConfig::gsa())));
    frozen->set_learning(ParameterKind::base, false);
    frozen->set_learning(ParameterKind::gate, false);
    const Tensor tokens = random_tokens({2, 33});
    const ModelForwardOptions options = {
        .phase = Phase::warmup, .want_kl = true, .checkpoint_activations = again};
    total(free->forward(tokens, options).kl).backward();
    total(frozen->forward(tokens, options).kl).backward();
    const auto a = gradients(free), b = gradients(frozen);
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].second.defined(), b[i].second.defined()) << a[i].first;
      if (a[i].second.defined()) {
        EXPECT_TRUE(torch::equal(a[i].second, b[i].second)) << a[i].first;
      }
    }
    frozen->set_learning(ParameterKind::base, true);
    frozen->loss(tokens, next_tokens(tokens)).sum.backward();
    EXPECT_TRUE(frozen->model->norm->weight.grad().defined());
    EXPECT_FALSE(frozen->model->layers[0]->self_attn->value_gate->weight.grad().defined());
  }
}

// A few steps on random tokens learn them by heart: signs and scales of all gradients are of use together.
TEST(Learning, LossFalls) {
  for (const NamedConfig& system : four_systems()) {
    SCOPED_TRACE(system.name);
    ModelConfig config = small_model(system.config);
    config.attention.init_std = 0.1;
    auto model = make_model(config, torch::kFloat32);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    const Tensor tokens = random_tokens({2, 33}), targets = next_tokens(tokens);
    double first = 0, last = 0;
    for (int step = 0; step < 30; ++step) {
      optimizer.zero_grad();
      const auto loss = model->loss(tokens, targets, {.want_kl = system.config.sparse});
      (loss.sum / loss.count + total(loss.kl)).backward();
      optimizer.step();
      last = (loss.sum / loss.count).item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.5 * first);
  }
}

}  // namespace
}  // namespace gsa::nn::testing
