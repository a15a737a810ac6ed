// Shapes, packing, causality bit for bit, types, and what is refused.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gsa/error.h"
#include "nn/attention.h"
#include "nn/torch.h"
#include "small_layers.h"

namespace gsa::nn::testing {
namespace {

constexpr std::int64_t kLength = 41;

Tensor offsets(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> bounds = {0};
  for (const std::int64_t length : lengths) bounds.push_back(bounds.back() + length);
  return torch::tensor(bounds, torch::kInt64);
}

class LayoutVariants : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Layout, LayoutVariants, ::testing::ValuesIn(all_variants()), name_of_case);

// Change the future: the past stays as it was, to the bit, in training mode and with a known mean variance.
TEST_P(LayoutVariants, CausalBitForBit) {
  for (const torch::Dtype dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat64}) {
    SCOPED_TRACE(c10::toString(dtype));
    const std::int64_t d = GetParam().config.d_model;
    const Tensor h = random_input({2, kLength, d}, dtype);
    for (const std::int64_t cut : {std::int64_t{1}, std::int64_t{17}, kLength - 1}) {
      Tensor changed = h.clone();
      changed.slice(1, cut) = 3 * random_input({2, kLength - cut, d}, dtype, 11);
      auto layer = make_layer(GetParam().config, dtype);
      layer->train();
      for (const double v_bar : {-1.0, 0.01}) {
        set_mean_variance(layer, v_bar);
        const auto a = layer->forward(h, {.want_stats = true});
        set_mean_variance(layer, v_bar);
        const auto b = layer->forward(changed, {.want_stats = true});
        EXPECT_TRUE(torch::equal(a.out.slice(1, 0, cut), b.out.slice(1, 0, cut))) << cut;
        EXPECT_FALSE(torch::equal(a.out.slice(1, cut), b.out.slice(1, cut)));
        EXPECT_TRUE(torch::equal(a.stats->k_t.slice(1, 0, cut), b.stats->k_t.slice(1, 0, cut))) << cut;
      }
    }
  }
}

TEST_P(LayoutVariants, RepeatsBitForBit) {
  const Tensor h = random_input({2, kLength, GetParam().config.d_model}, torch::kFloat32);
  const bool sparse = GetParam().config.sparse;
  std::vector<Tensor> grads;
  Tensor out;
  for (int round = 0; round < 3; ++round) {
    auto layer = make_layer(GetParam().config, torch::kFloat32);
    const auto result = layer->forward(h, {.want_kl = sparse});
    Tensor loss = result.out.square().sum();
    if (sparse) loss = loss + *result.kl;
    loss.backward();
    if (round > 0) {
      EXPECT_TRUE(torch::equal(out, result.out));
    }
    out = result.out.detach();
    std::size_t i = 0;
    for (const auto& item : layer->named_parameters()) {
      if (round == 0) {
        grads.push_back(item.value().grad());
      } else {
        EXPECT_TRUE(torch::equal(grads[i], item.value().grad())) << item.key();
      }
      ++i;
    }
  }
}

TEST_P(LayoutVariants, PackedEqualsBatchedBitForBit) {
  auto layer = make_layer(GetParam().config, torch::kFloat32);
  layer->eval();
  set_mean_variance(layer, 0.01);
  const bool sparse = layer->config().sparse;
  const Tensor h = random_input({3, kLength, layer->config().d_model}, torch::kFloat32);
  const auto batched = layer->forward(h, {.want_kl = sparse, .want_stats = true});
  const auto packed = layer->forward(
      h.flatten(0, 1),
      {.cu_seqlens = offsets({kLength, kLength, kLength}), .want_kl = sparse, .want_stats = true});
  EXPECT_EQ(packed.out.sizes(), (std::vector<std::int64_t>{3 * kLength, layer->config().d_model}));
  EXPECT_TRUE(torch::equal(packed.out.view(h.sizes()), batched.out));
  EXPECT_TRUE(torch::equal(packed.stats->k_t.view({3, kLength}), batched.stats->k_t));
  if (sparse) {
    EXPECT_TRUE(torch::equal(*packed.kl, *batched.kl));
  }
}

// Packed sequences of many lengths are what each is alone. (Not to the bit: torch's matrix product may
// pick another order of summation for another number of rows.)
TEST_P(LayoutVariants, PackedSequencesDoNotMix) {
  auto layer = make_layer(GetParam().config);
  layer->eval();
  set_mean_variance(layer, 0.01);
  const bool sparse = layer->config().sparse;
  const std::vector<std::int64_t> lengths = {5, 1, 33, 0, 20};
  const Tensor h = random_input({59, layer->config().d_model});
  const auto packed =
      layer->forward(h, {.cu_seqlens = offsets(lengths), .want_kl = sparse, .want_stats = true});
  std::int64_t begin = 0;
  double kl = 0;
  for (const std::int64_t length : lengths) {
    const auto alone = layer->forward(h.slice(0, begin, begin + length).unsqueeze(0),
                                      {.want_kl = sparse, .want_stats = true});
    EXPECT_LT(max_error(packed.out.slice(0, begin, begin + length), alone.out[0]), 1e-12);
    EXPECT_TRUE(torch::equal(packed.stats->k_t.slice(0, begin, begin + length), alone.stats->k_t[0]));
    if (sparse) kl += alone.kl->item<double>() * static_cast<double>(length);
    begin += length;
  }
  if (sparse) {
    EXPECT_NEAR(packed.kl->item<double>(), kl / 59, 1e-12);
  }
}

TEST_P(LayoutVariants, RunsInBfloat16ForwardAndBackward) {
  auto layer = make_layer(GetParam().config, torch::kBFloat16);
  const bool sparse = layer->config().sparse;
  const Tensor h = random_input({2, kLength, layer->config().d_model}, torch::kBFloat16).requires_grad_();
  const auto result = layer->forward(h, {.want_kl = sparse, .want_stats = true});
  EXPECT_EQ(result.out.scalar_type(), torch::kBFloat16);
  Tensor loss = result.out.to(torch::kFloat32).square().mean();
  if (sparse) loss = loss + *result.kl;
  loss.backward();
  EXPECT_TRUE(h.grad().isfinite().all().item<bool>());
  for (const auto& item : layer->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
  }
}

TEST_P(LayoutVariants, EmptyInputsGiveEmptyOutputs) {
  auto layer = make_layer(GetParam().config);
  const bool sparse = layer->config().sparse;
  const std::int64_t d = layer->config().d_model;
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{0, 5, d}, {2, 0, d}, {0, d}}) {
    const Tensor h = torch::zeros(shape, torch::kFloat64).requires_grad_();
    ForwardOptions options{.want_kl = sparse, .want_stats = true};
    if (shape.size() == 2) options.cu_seqlens = torch::zeros({1}, torch::kInt64);
    const auto result = layer->forward(h, options);
    EXPECT_EQ(result.out.sizes(), h.sizes());
    EXPECT_EQ(result.stats->k_mean, 0);
    if (sparse) {
      EXPECT_EQ(result.kl->item<double>(), 0);
      EXPECT_EQ(mean_variance(layer), -1);
    }
    result.out.sum().backward();
  }
}

// Only distances count, and explicit positions are the ones used.
TEST_P(LayoutVariants, PositionsShiftedTogetherChangeNothing) {
  auto layer = make_layer(GetParam().config);
  layer->eval();
  const Tensor h = random_input({2, kLength, layer->config().d_model});
  const Tensor positions = torch::arange(kLength).expand({2, kLength});
  const Tensor plain = layer->forward(h).out;
  EXPECT_TRUE(torch::equal(layer->forward(h, {.positions = positions}).out, plain));
  EXPECT_LT(max_error(layer->forward(h, {.positions = positions + 5000}).out, plain), 1e-9);
  EXPECT_GT(max_error(layer->forward(h, {.positions = positions * 2}).out, plain), 1e-3);
}

TEST(Layout, YarnReachesAttention) {
  AttentionConfig config = small(AttentionConfig::gsa());
  const Tensor h = random_input({1, kLength, config.d_model});
  const Tensor plain = make_layer(config)->forward(h).out;
  config.rope.yarn.original_length = 16;
  EXPECT_TRUE(torch::equal(make_layer(config)->forward(h).out, plain));  // factor 1 is off
  config.rope.yarn.factor = 4;
  EXPECT_GT(max_error(make_layer(config)->forward(h).out, plain), 1e-3);
}

// Short sequences run dense, long ones sparse, in one packed batch and in any order.
TEST(DenseBelow, PartsShortSequencesFromLongOnes) {
  AttentionConfig config = small(AttentionConfig::gsa());
  auto sparse = make_layer(config);
  config.dense_below = 30;
  auto mixed = make_layer(config);
  for (auto* layer : {&sparse, &mixed}) {
    (*layer)->eval();
    set_mean_variance(*layer, 0.01);
  }
  const std::vector<std::int64_t> lengths = {29, 35, 7, 30};
  const Tensor bounds = offsets(lengths);
  const Tensor h = random_input({101, config.d_model});
  const auto all_sparse = sparse->forward(h, {.cu_seqlens = bounds, .want_kl = true, .want_stats = true});
  const auto all_dense =
      sparse->forward(h, {.cu_seqlens = bounds, .phase = Phase::dense, .want_stats = true});
  const auto result = mixed->forward(h, {.cu_seqlens = bounds, .want_kl = true, .want_stats = true});
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    const auto& expected = length < 30 ? all_dense : all_sparse;
    const std::int64_t end = begin + length;
    EXPECT_TRUE(torch::equal(result.out.slice(0, begin, end), expected.out.slice(0, begin, end))) << length;
    EXPECT_TRUE(
        torch::equal(result.stats->k_t.slice(0, begin, end), expected.stats->k_t.slice(0, begin, end)));
    begin = end;
  }
  EXPECT_GT(result.stats->kept_mass, all_sparse.stats->kept_mass);
  EXPECT_LT(result.stats->kept_mass, 1);

  // The loss of a dense sequence runs over all it sees.
  const auto warmup =
      sparse->forward(h.slice(0, 0, 29).unsqueeze(0), {.phase = Phase::warmup, .want_kl = true});
  const auto alone = mixed->forward(h.slice(0, 0, 29).unsqueeze(0), {.want_kl = true});
  EXPECT_NEAR(alone.kl->item<double>(), warmup.kl->item<double>(), 1e-13);

  // And gradients flow through the parting and putting together.
  const Tensor x = h.clone().requires_grad_();
  const auto again = mixed->forward(x, {.cu_seqlens = bounds, .want_kl = true});
  (again.out.sum() + *again.kl).backward();
  EXPECT_TRUE((x.grad().abs().sum(-1) > 0).all().item<bool>());
}

TEST(Autocast, RunsInBfloat16) {
  auto layer = make_layer(small(AttentionConfig::gsa()), torch::kFloat32);
  const Tensor h = random_input({1, 40, 24}, torch::kFloat32);
  const bool before = at::autocast::is_autocast_enabled(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
  const Tensor kl = *layer->forward(h, {.want_kl = true}).kl;
  // Dense, because in bfloat16 the indexer may well prefer other keys.
  const Tensor out = layer->forward(h, {.phase = Phase::dense}).out;
  at::autocast::set_autocast_enabled(at::kCPU, before);
  at::autocast::clear_cache();
  EXPECT_TRUE(kl.isfinite().item<bool>());
  EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
  const Tensor exact = layer->forward(h, {.phase = Phase::dense}).out;
  EXPECT_LT((out.to(torch::kFloat32) - exact).abs().max().item<double>(),
            0.05 * exact.abs().max().item<double>());
}

struct Refused {
  const char* name;
  std::function<void(GatedSparseAttention&)> call;
  const char* argument;
};

class Refusals : public ::testing::TestWithParam<Refused> {};

TEST_P(Refusals, NameTheArgument) {
  auto layer = make_layer(small(AttentionConfig::gsa()));
  try {
    GetParam().call(layer);
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string start =
        std::string("gsa::nn::GatedSparseAttention: argument '") + GetParam().argument + "': expected ";
    EXPECT_EQ(text.rfind(start, 0), 0U) << text;
    EXPECT_NE(text.find(", got "), std::string::npos) << text;
  }
}

Tensor zeros(std::initializer_list<std::int64_t> shape) { return torch::zeros(shape, torch::kFloat64); }

INSTANTIATE_TEST_SUITE_P(
    Layout, Refusals,
    ::testing::Values(
        Refused{"h_width",
                [](auto& layer) {
                  layer->forward(zeros({1, 4, 23}));
                },
                "h"},
        Refused{"h_type",
                [](auto& layer) {
                  layer->forward(torch::zeros({1, 4, 24}, torch::kInt64));
                },
                "h"},
        Refused{"h_other_type_than_the_weights",
                [](auto& layer) {
                  layer->forward(torch::zeros({1, 4, 24}, torch::kFloat32));
                },
                "h"},
        Refused{"packed_without_lengths",
                [](auto& layer) {
                  layer->forward(zeros({4, 24}));
                },
                "h"},
        Refused{"batched_with_lengths",
                [](auto& layer) {
                  layer->forward(zeros({1, 4, 24}), {.cu_seqlens = offsets({4})});
                },
                "h"},
        Refused{"lengths_type",
                [](auto& layer) {
                  layer->forward(zeros({4, 24}), {.cu_seqlens = offsets({4}).to(torch::kInt32)});
                },
                "cu_seqlens"},
        Refused{"lengths_shape",
                [](auto& layer) {
                  layer->forward(zeros({4, 24}), {.cu_seqlens = offsets({4}).view({1, 2})});
                },
                "cu_seqlens"},
        Refused{"lengths_empty",
                [](auto& layer) {
                  layer->forward(zeros({4, 24}), {.cu_seqlens = torch::zeros({0}, torch::kInt64)});
                },
                "cu_seqlens"},
        Refused{"lengths_short",
                [](auto& layer) {
                  layer->forward(zeros({4, 24}), {.cu_seqlens = offsets({3})});
                },
                "cu_seqlens"},
        Refused{"lengths_fall",
                [](auto& layer) {
                  layer->forward(zeros({4, 24}), {.cu_seqlens = offsets({5, -1})});
                },
                "cu_seqlens"},
        Refused{"lengths_start",
                [](auto& layer) {
                  layer->forward(zeros({4, 24}), {.cu_seqlens = offsets({4}) + 1});
                },
                "cu_seqlens"},
        Refused{"positions_shape",
                [](auto& layer) {
                  layer->forward(zeros({1, 4, 24}), {.positions = torch::zeros({4}, torch::kInt64)});
                },
                "positions"},
        Refused{"positions_type",
                [](auto& layer) {
                  layer->forward(zeros({1, 4, 24}), {.positions = torch::zeros({1, 4})});
                },
                "positions"},
        Refused{"loss_in_dense_phase",
                [](auto& layer) {
                  layer->forward(zeros({1, 4, 24}), {.phase = Phase::dense, .want_kl = true});
                },
                "want_kl"},
        Refused{
            "loss_without_indexer",
            [](auto&) {
              make_layer(small(AttentionConfig::standard()))->forward(zeros({1, 4, 24}), {.want_kl = true});
            },
            "want_kl"},
        Refused{"sparse_without_indexer",
                [](auto&) {
                  make_layer(small(AttentionConfig::gated_only()))
                      ->forward(zeros({1, 4, 24}), {.phase = Phase::sparse});
                },
                "phase"},
        Refused{"phase_unknown",
                [](auto& layer) {
                  layer->forward(zeros({1, 4, 24}), {.phase = static_cast<Phase>(9)});
                },
                "phase"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Layout, BadConfigurationsMakeNoLayer) {
  AttentionConfig config = small(AttentionConfig::gsa());
  config.kv_heads = 3;
  EXPECT_THROW(GatedSparseAttention{config}, Error);
}

}  // namespace
}  // namespace gsa::nn::testing
