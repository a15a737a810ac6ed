#include "nn/rope.h"
#include "nn/torch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace gsa::nn {
namespace {

using at::Tensor;

RopeConfig yarn_config(double factor) {
  RopeConfig config;
  config.yarn.factor = factor;
  return config;
}

TEST(Rope, FrequenciesAreThetaToTheMinusTwoIOverSize) {
  const Rope rope(8, RopeConfig{}, true);
  ASSERT_EQ(rope.size(), 8);
  const std::vector<double> expected = {1, 0.1, 0.01, 0.001};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(rope.frequencies()[i], expected[i], 1e-15);
  EXPECT_EQ(rope.factor(), 1);
}

// One pair in two dimensions is a plain rotation of the plane.
TEST(Rope, TurnsAPairByThePosition) {
  const Rope rope(2, RopeConfig{}, true);
  const Tensor x = torch::tensor({1.0, 0.0}, torch::kFloat64).view({1, 1, 2});
  const Tensor y = rotate(x, rope.tables(torch::tensor({3}, torch::kInt64), torch::kFloat64));
  EXPECT_NEAR(y.flatten()[0].item<double>(), std::cos(3.0), 1e-15);
  EXPECT_NEAR(y.flatten()[1].item<double>(), std::sin(3.0), 1e-15);
}

// Half-split: dimension i rotates with dimension i + size / 2, what lies beyond size is left alone.
TEST(Rope, HalfSplitLayoutAndUntouchedRest) {
  const Rope rope(4, RopeConfig{}, true);
  const Tensor x = torch::tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, torch::kFloat64).view({1, 1, 6});
  const Tensor y = rotate(x, rope.tables(torch::tensor({7}, torch::kInt64), torch::kFloat64)).flatten();
  const double slow = 7 * 0.01;
  const std::vector<double> expected = {std::cos(7) - 3 * std::sin(7),
                                        2 * std::cos(slow) - 4 * std::sin(slow),
                                        3 * std::cos(7) + std::sin(7),
                                        4 * std::cos(slow) + 2 * std::sin(slow),
                                        5,
                                        6};
  for (std::int64_t i = 0; i < 6; ++i)
    EXPECT_NEAR(y[i].item<double>(), expected[static_cast<std::size_t>(i)], 1e-14);
}

TEST(Rope, PositionZeroAndSizeZeroChangeNothing) {
  torch::manual_seed(0);
  const Tensor x = torch::randn({3, 2, 8}, torch::kFloat64);
  const Tensor zeros = torch::zeros({3}, torch::kInt64);
  EXPECT_TRUE(torch::equal(rotate(x, Rope(8, {}, true).tables(zeros, torch::kFloat64)), x));
  const Tensor far = torch::full({3}, 1000, torch::kInt64);
  EXPECT_TRUE(torch::equal(rotate(x, Rope(0, {}, true).tables(far, torch::kFloat64)), x));
}

// q . k depends on the distance of the two alone.
TEST(Rope, ProductsDependOnRelativePositions) {
  torch::manual_seed(0);
  const Rope rope(16, yarn_config(4), true);
  const Tensor q = torch::randn({1, 1, 16}, torch::kFloat64), k = torch::randn({1, 1, 16}, torch::kFloat64);
  const auto product = [&](std::int64_t tq, std::int64_t tk) {
    const Tensor a = rotate(q, rope.tables(torch::tensor({tq}, torch::kInt64), torch::kFloat64));
    const Tensor b = rotate(k, rope.tables(torch::tensor({tk}, torch::kInt64), torch::kFloat64));
    return (a * b).sum().item<double>();
  };
  EXPECT_NEAR(product(9, 4), product(100009, 100004), 1e-9);
  EXPECT_GT(std::abs(product(9, 4) - product(9, 5)), 1e-3);
}

TEST(Rope, KeepsLengthTimesTheAttentionFactor) {
  torch::manual_seed(0);
  const Rope rope(16, yarn_config(8), true);
  EXPECT_DOUBLE_EQ(rope.factor(), 0.1 * std::log(8.0) + 1);
  const Tensor x = torch::randn({5, 3, 16}, torch::kFloat64);
  const Tensor y = rotate(x, rope.tables(torch::arange(5), torch::kFloat64));
  EXPECT_TRUE(torch::allclose(y.norm(2, -1), rope.factor() * x.norm(2, -1), 1e-12, 0));
  EXPECT_EQ(Rope(16, yarn_config(8), false).factor(), 1);
}

// Angles are exact far out even for float32 tables.
TEST(Rope, TablesFarOutAreTheExactOnesRounded) {
  const Rope rope(4, RopeConfig{}, true);
  const RopeTables tables = rope.tables(torch::tensor({131071}, torch::kInt64), torch::kBFloat16);
  ASSERT_EQ(tables.cos.scalar_type(), torch::kFloat32);
  EXPECT_EQ(tables.cos[0][0].item<float>(), static_cast<float>(std::cos(131071.0)));
  EXPECT_EQ(tables.sin[0][0].item<float>(), static_cast<float>(std::sin(131071.0)));
}

// Without gradients long inputs go in chunks; nothing may show of it.
TEST(Rope, ChunksGiveTheSameBits) {
  const std::int64_t tokens = 9001;
  const Rope rope(16, RopeConfig{}, true);
  const Tensor x = torch::randn({tokens, 2, 20}, torch::kBFloat16);
  const RopeTables tables = rope.tables(torch::arange(tokens, torch::kInt64), torch::kBFloat16);
  const Tensor whole = rotate(x.clone().requires_grad_(), tables).detach();
  EXPECT_TRUE(torch::equal(rotate(x, tables), whole));
}

TEST(Rope, LinearScalingDividesEveryFrequency) {
  RopeConfig config;
  config.linear_factor = 4;
  const Rope plain(8, RopeConfig{}, true), scaled(8, config, true);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(scaled.frequencies()[i], plain.frequencies()[i] / 4);
  EXPECT_EQ(scaled.factor(), 1);
}

// By the turns of a pair over the original length: above 4 as it was, below 1 slowed by the whole factor.
TEST(Rope, Llama3ScalingGoesByTurns) {
  RopeConfig config;
  config.theta = 500000;
  const Rope plain(128, config, true);
  config.llama3.factor = 8;
  const Rope scaled(128, config, true);
  int kept = 0, slowed = 0, between = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    const double w = plain.frequencies()[i], turns = 8192 * w / (2 * M_PI);
    const double share = (turns - 1) / 3;
    const double expected = turns > 4 ? w : turns < 1 ? w / 8 : share * w + (1 - share) * w / 8;
    EXPECT_NEAR(scaled.frequencies()[i], expected, 1e-15 * w);
    (turns > 4 ? kept : turns < 1 ? slowed : between) += 1;
  }
  EXPECT_GT(kept, 20);
  EXPECT_GT(slowed, 20);
  EXPECT_GT(between, 3);
}

TEST(Yarn, FactorOneIsPlainRope) {
  RopeConfig odd;
  odd.yarn.original_length = 17;
  odd.yarn.beta_fast = 5;
  const Rope rope(64, odd, true);
  EXPECT_EQ(rope.frequencies(), Rope(64, RopeConfig{}, true).frequencies());
  EXPECT_EQ(rope.factor(), 1);
}

// Pairs that rotate more than beta_fast times over the original length keep their frequency, those that
// rotate less than beta_slow times are slowed by the whole factor, and in between the share falls steadily.
TEST(Yarn, InterpolatesByParts) {
  const double factor = 16;
  const Rope plain(128, RopeConfig{}, true), yarn(128, yarn_config(factor), true);
  double last_ratio = 1;
  int kept = 0, slowed = 0, between = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    const double turns = 4096 * plain.frequencies()[i] / (2 * M_PI);
    const double ratio = yarn.frequencies()[i] / plain.frequencies()[i];
    EXPECT_LE(ratio, last_ratio);
    last_ratio = ratio;
    if (ratio == 1) {
      ++kept;
    } else if (std::abs(ratio - 1 / factor) < 1e-12) {
      ++slowed;
      EXPECT_LT(turns, 1);
    } else {
      ++between;
    }
    // Whole dimensions bound the ramp, so its ends may reach one pair further than the turns say.
    if (i > 0 && 4096 * plain.frequencies()[i - 1] / (2 * M_PI) > 32 && turns > 32) {
      EXPECT_EQ(ratio, 1) << i;
    }
  }
  EXPECT_GT(kept, 10);
  EXPECT_GT(slowed, 10);
  EXPECT_GT(between, 10);
}

// A case small enough for pencil and paper: theta e^2 and size 8 make m(b) = 2 ln(length / (2 pi b)). With a
// length of about 2 pi e^3, m(e^2.4) = 1.2 and m(e^1.6) = 2.8, so the ramp runs from pair 1 to pair 3.
TEST(Yarn, RampInClosedForm) {
  RopeConfig config;
  config.theta = std::exp(2.0);
  config.yarn.factor = 2;
  config.yarn.original_length = 126;  // 2 pi e^3 = 126.2
  config.yarn.beta_fast = std::exp(2.4);
  config.yarn.beta_slow = std::exp(1.6);
  const Rope rope(8, config, true);
  const std::vector<double> expected_ratio = {1, 1, 0.75, 0.5};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(rope.frequencies()[i], std::exp(-0.5 * static_cast<double>(i)) * expected_ratio[i], 1e-12)
        << i;
  }
}

// Bounds that fall together make a step, not a division by zero.
TEST(Yarn, DegenerateRampIsAStep) {
  RopeConfig config = yarn_config(4);
  config.yarn.original_length = 1;
  const Rope rope(8, config, true);
  const std::vector<double> expected = {1, 0.1 / 4, 0.01 / 4, 0.001 / 4};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(rope.frequencies()[i], expected[i], 1e-15);
}

}  // namespace
}  // namespace gsa::nn
