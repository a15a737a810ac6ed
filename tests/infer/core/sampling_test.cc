#include "infer/core/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "core/philox.h"
#include "infer/core/weights.h"
#include "model/errors.h"

namespace gsa::infer {
namespace {

using gsa::testing::expect_error;

std::vector<float> random_logits(std::size_t size, unsigned seed, float width = 3) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, width);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(generator);
  return logits;
}

// What the header promises, as plain loops over a sorted list: the probability of every token.
std::vector<double> reference(const std::vector<float>& logits, const SamplingOptions& options,
                              const std::vector<std::int32_t>& seen, std::int64_t drawable) {
  std::vector<double> x(logits.begin(), logits.begin() + drawable);
  for (std::int32_t id = 0; id < drawable; ++id) {
    if (std::find(seen.begin(), seen.end(), id) == seen.end()) continue;
    double& logit = x[static_cast<std::size_t>(id)];
    logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
  }
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return x[a] > x[b]; });

  std::vector<double> probability(x.size(), 0);
  if (options.temperature == 0) {
    probability[order[0]] = 1;
    return probability;
  }
  const auto weight = [&](std::size_t id) { return std::exp((x[id] - x[order[0]]) / options.temperature); };
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));
  double total = 0, sum = 0;
  for (const std::size_t id : order) total += weight(id);
  std::size_t kept = 0;
  while (kept < order.size() && (kept == 0 || sum / total < options.top_p)) sum += weight(order[kept++]);
  order.resize(kept);
  while (weight(order.back()) < options.min_p * weight(order[0])) order.pop_back();
  total = 0;
  for (const std::size_t id : order) total += weight(id);
  for (const std::size_t id : order) probability[id] = weight(id) / total;
  return probability;
}

std::int32_t at_quantile(const std::vector<double>& probability, double quantile) {
  double sum = 0;
  for (std::size_t id = 0; id < probability.size(); ++id) {
    sum += probability[id];
    if (probability[id] > 0 && sum > quantile) return static_cast<std::int32_t>(id);
  }
  return -1;
}

TEST(Philox, GivesThePublishedNumbers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0U, ~0U, ~0U, ~0U}, ~std::uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0'a4093822),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

struct Setting {
  const char* name;
  SamplingOptions options;
};

class SamplerSettings : public ::testing::TestWithParam<Setting> {};

// Against the reference, token by token: the same quantile of the same distribution.
TEST_P(SamplerSettings, DrawsWhatTheReferenceDraws) {
  constexpr std::int64_t kDrawable = 57;
  for (unsigned seed = 0; seed < 40; ++seed) {
    SamplingOptions options = GetParam().options;
    options.seed = seed * 977;
    options.stream = seed % 3;
    std::vector<std::int32_t> seen = {3, 9, 9, static_cast<std::int32_t>(seed)};
    Sampler sampler(options, kDrawable);
    sampler.remember(seen);
    for (unsigned step = 0; step < 12; ++step) {
      // Eighths, so that equal logits are common.
      std::vector<float> logits = random_logits(61, seed * 100 + step);
      for (float& logit : logits) logit = std::round(logit * 8) / 8;
      const auto probability = reference(logits, options, seen, kDrawable);
      const double quantile =
          options.temperature == 0 ? 0.5 : philox_uniform(options.seed, options.stream, step);
      const std::int32_t drawn = sampler.sample(logits).id;
      ASSERT_EQ(drawn, at_quantile(probability, quantile)) << "seed " << seed << ", step " << step;
      seen.push_back(drawn);
    }
    EXPECT_EQ(sampler.step(), 12u);
  }
}

// Few likely tokens among many, many that are alike, and equal ones everywhere.
TEST_P(SamplerSettings, DrawsFromLargeVocabularies) {
  constexpr std::int64_t kDrawable = 3001;
  for (const float width : {0.01F, 0.7F, 3.0F, 40.0F}) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      SamplingOptions options = GetParam().options;
      options.seed = seed * 31 + 5;
      std::vector<std::int32_t> seen = {0, 3000, static_cast<std::int32_t>(seed * 400)};
      Sampler sampler(options, kDrawable);
      sampler.remember(seen);
      for (unsigned step = 0; step < 4; ++step) {
        std::vector<float> logits = random_logits(3010, seed * 10 + step, width);
        if (seed % 2 == 1) {
          for (float& logit : logits) logit = std::round(logit * 4) / 4;
        }
        const auto probability = reference(logits, options, seen, kDrawable);
        const double quantile =
            options.temperature == 0 ? 0.5 : philox_uniform(options.seed, options.stream, step);
        const std::int32_t drawn = sampler.sample(logits).id;
        ASSERT_EQ(drawn, at_quantile(probability, quantile))
            << width << ", seed " << seed << ", step " << step;
        seen.push_back(drawn);
      }
    }
  }
}

// 20,000 draws from one distribution, by chi-square at 0.1 %; tokens that were filtered never come.
TEST_P(SamplerSettings, DrawsWithTheRightFrequencies) {
  constexpr int kDraws = 20000;
  SamplingOptions options = GetParam().options;
  options.repetition_penalty = 1;  // it would move the distribution
  options.seed = 11;
  const std::vector<float> logits = random_logits(24, 5, 1.5F);
  const auto probability = reference(logits, options, {}, 24);
  std::vector<int> along_steps(24), along_streams(24);
  Sampler sampler(options, 24);
  for (int i = 0; i < kDraws; ++i) {
    ++along_steps[static_cast<std::size_t>(sampler.sample(logits).id)];
    SamplingOptions other = options;
    other.stream = static_cast<std::uint64_t>(i);
    ++along_streams[static_cast<std::size_t>(Sampler(other, 24).sample(logits).id)];
  }
  for (const auto& counts : {along_steps, along_streams}) {
    double chi_square = 0;
    int freedom = -1;
    for (std::size_t id = 0; id < 24; ++id) {
      const double expected = probability[id] * kDraws;
      if (expected == 0) {
        EXPECT_EQ(counts[id], 0) << "token " << id;
        continue;
      }
      chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
      ++freedom;
    }
    // The 99.9 % quantile, by Wilson and Hilferty's approximation.
    const double v = std::max(freedom, 1), root = 1 - 2 / (9 * v) + 3.09 * std::sqrt(2 / (9 * v));
    EXPECT_LT(chi_square, v * root * root * root) << freedom << " degrees of freedom";
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SamplerSettings,
    ::testing::Values(
        Setting{"plain", {}}, Setting{"greedy", {.temperature = 0}}, Setting{"cool", {.temperature = 0.3}},
        Setting{"hot", {.temperature = 4}}, Setting{"top_k", {.top_k = 5}}, Setting{"top_k_1", {.top_k = 1}},
        Setting{"top_k_beyond", {.top_k = 1000}}, Setting{"top_p", {.top_p = 0.7}},
        Setting{"top_p_tiny", {.top_p = 1e-9}}, Setting{"min_p", {.min_p = 0.2}},
        Setting{"min_p_1", {.min_p = 1}}, Setting{"penalty", {.repetition_penalty = 1.7}},
        Setting{"reward", {.repetition_penalty = 0.6}},
        Setting{"greedy_penalty", {.temperature = 0, .repetition_penalty = 1.3}},
        Setting{"together",
                {.temperature = 0.9, .top_k = 20, .top_p = 0.9, .min_p = 0.05, .repetition_penalty = 1.2}}),
    [](const auto& test) { return std::string(test.param.name); });

// top-p sees the probabilities that top-k left, min-p what top-p left: the order of transformers.
TEST(Sampler, FiltersActInTheirOrder) {
  std::vector<float> logits;
  for (const double p : {0.4, 0.3, 0.1, 0.1, 0.1}) logits.push_back(static_cast<float>(std::log(p)));
  const auto reached = [&](SamplingOptions options) {
    std::vector<bool> drawn(5);
    Sampler sampler(options, 5);
    for (int i = 0; i < 500; ++i) drawn[static_cast<std::size_t>(sampler.sample(logits).id)] = true;
    return drawn;
  };
  // Of the two that top-k leaves, the first has 4/7 > 0.5: alone. Without top-k it has 0.4 and needs the
  // next.
  EXPECT_EQ(reached({.top_k = 2, .top_p = 0.5}), (std::vector<bool>{true, false, false, false, false}));
  EXPECT_EQ(reached({.top_p = 0.5}), (std::vector<bool>{true, true, false, false, false}));
  // Of equals, the lower ids are the more likely.
  EXPECT_EQ(reached({.top_k = 3}), (std::vector<bool>{true, true, true, false, false}));
  EXPECT_EQ(reached({.top_p = 0.85}), (std::vector<bool>{true, true, true, true, false}));
  // Temperature comes before: at 0.5 the shares are 16 : 9 : 1 : 1 : 1, and 1/16 falls to min-p = 0.1.
  EXPECT_EQ(reached({.temperature = 0.5, .min_p = 0.1}),
            (std::vector<bool>{true, true, false, false, false}));
  EXPECT_EQ(reached({.min_p = 0.1}), (std::vector<bool>{true, true, true, true, true}));
}

TEST(Sampler, ADrawDependsOnSeedStreamAndStepAlone) {
  const std::vector<float> logits = random_logits(200, 1, 1);
  const auto text = [&](SamplingOptions options) {
    std::vector<std::int32_t> ids;
    Sampler sampler(options, 200);
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.sample(logits).id);
    return ids;
  };
  EXPECT_EQ(text({.seed = 4}), text({.seed = 4}));
  EXPECT_NE(text({.seed = 4}), text({.seed = 5}));
  EXPECT_NE(text({.seed = 4}), text({.seed = 4, .stream = 1}));
  // Asking for log-probabilities changes no draw.
  EXPECT_EQ(text({.seed = 4}), text({.seed = 4, .logprobs = 3}));
}

TEST(Sampler, LogProbabilitiesAreTheModelsOwn) {
  std::vector<float> logits = random_logits(40, 2);
  logits[7] = logits[21] = 9;  // two most likely ones; 35 and above are not drawable
  logits[38] = 8.5F;
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  Sampler sampler({.temperature = 0.2, .top_k = 3, .repetition_penalty = 1.5, .logprobs = 3}, 35);
  sampler.remember(std::vector<std::int32_t>{7});
  const SampledToken token = sampler.sample(logits);
  ASSERT_TRUE(token.logprob);
  EXPECT_NEAR(*token.logprob, logits[static_cast<std::size_t>(token.id)] - std::log(sum), 1e-12);
  ASSERT_EQ(token.top.size(), 3u);
  EXPECT_EQ(token.top[0].id, 7);
  EXPECT_EQ(token.top[1].id, 21);
  EXPECT_EQ(token.top[2].id, 38);
  EXPECT_NEAR(token.top[2].logprob, 8.5 - std::log(sum), 1e-12);
  EXPECT_EQ(Sampler({.logprobs = 100}, 35).sample(logits).top.size(), 40u);
  EXPECT_TRUE(Sampler({.logprobs = 0}, 35).sample(logits).logprob.has_value());
  EXPECT_FALSE(Sampler({}, 35).sample(logits).logprob.has_value());
}

TEST(Sampler, MostLikelyTokensOfManyAreFound) {
  for (const float width : {0.0F, 0.01F, 5.0F, 3e37F}) {
    const std::vector<float> logits = random_logits(4000, 8, width);
    std::vector<std::int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const auto at = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return at(a) > at(b); });
    for (const std::size_t count : {1, 5, 300, 4000}) {
      const SampledToken token = with_logprobs(7, logits, static_cast<std::int64_t>(count));
      ASSERT_EQ(token.top.size(), count);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(token.top[i].id, order[i]) << width << ", " << i;
    }
  }
}

TEST(Weights, ExponentialsAreThoseOfTheLibrary) {
  std::mt19937 generator(3);
  std::uniform_real_distribution<double> exponent(-30, 9.4);
  for (int i = 0; i < 100000; ++i) {
    const double x = -std::exp2(exponent(generator)), wanted = std::exp(x);
    if (x < -707) continue;
    ASSERT_NEAR(exp_of_negative(x), wanted, 3e-16 * wanted) << x;
  }
  EXPECT_EQ(exp_of_negative(0), 1);
  EXPECT_EQ(exp_of_negative(-0.0), 1);
  for (const double x : {-708.1, -745.0, -1e9, -6e44, -1e300}) EXPECT_EQ(exp_of_negative(x), 0) << x;
}

TEST(Sampler, TakesExtremesInStride) {
  // Differences that no exponential holds, at a temperature that makes them worse.
  const std::vector<float> logits = {-3e38F, 3e38F, 3e38F, 0};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::int32_t id = Sampler({.temperature = 1e-6, .seed = seed}, 4).sample(logits).id;
    EXPECT_TRUE(id == 1 || id == 2) << id;
  }
  EXPECT_EQ(Sampler({.temperature = 0}, 4).sample(logits).id, 1);
  EXPECT_EQ(Sampler({}, 1).sample(std::vector<float>{-5}).id, 0);
}

TEST(Sampler, MistakesAreNamed) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  Sampler sampler({}, 3);
  sampler.sample(std::vector<float>{1, 2, 3});
  expect_error(
      [&] {
        sampler.sample(std::vector<float>{1, kNan, 3});
      },
      {"logits", "finite", "nan for token 1", "step 1"});
  expect_error([&] { sampler.sample(std::vector<float>{1, 2, kInf}); }, {"inf for token 2"});
  expect_error([&] { sampler.sample(std::vector<float>{-kInf, 2, 1}); }, {"-inf for token 0"});
  expect_error([&] { sampler.sample(std::vector<float>{1, 2}); }, {"at least 3", "got 2"});
  expect_error([&] { sampler.remember(std::vector<std::int32_t>{-1}); }, {"ids", "-1"});
  expect_error([] { Sampler({}, 0); }, {"drawable"});
  expect_error([] { Sampler({.temperature = -1}, 3); }, {"temperature", "greedy", "-1"});
  expect_error([] { Sampler({.temperature = kNan}, 3); }, {"temperature", "nan"});
  expect_error([] { Sampler({.top_k = -2}, 3); }, {"top_k", "-2"});
  expect_error([] { Sampler({.top_p = 0}, 3); }, {"top_p"});
  expect_error([] { Sampler({.top_p = 1.1}, 3); }, {"top_p", "1.1"});
  expect_error([] { Sampler({.min_p = -0.1}, 3); }, {"min_p"});
  expect_error([] { Sampler({.repetition_penalty = 0}, 3); }, {"repetition_penalty"});
  expect_error([] { Sampler({.logprobs = -1}, 3); }, {"logprobs"});
}

// What a thread keeps for its draws tells none of them of another.
TEST(Sampler, TextsOfAThreadKnowNothingOfEachOther) {
  const std::vector<SamplingOptions> all = {{.temperature = 0, .repetition_penalty = 1.3},
                                            {.temperature = 1.2, .seed = 1},
                                            {.top_k = 40, .seed = 2},
                                            {.top_p = 0.9, .repetition_penalty = 1.5, .seed = 3},
                                            {.top_k = 30, .top_p = 0.8, .min_p = 0.05, .seed = 4},
                                            {.min_p = 0.1, .seed = 5}};
  const auto sizes = [](std::size_t i) { return static_cast<std::int64_t>(300 + 700 * (i % 3)); };
  std::vector<std::vector<std::int32_t>> alone(all.size()), together(all.size());
  std::vector<Sampler> samplers;
  for (std::size_t i = 0; i < all.size(); ++i) {
    samplers.emplace_back(all[i], sizes(i));
    Sampler sampler(all[i], sizes(i));
    for (unsigned step = 0; step < 20; ++step)
      alone[i].push_back(sampler.sample(random_logits(2000, step)).id);
  }
  for (unsigned step = 0; step < 20; ++step) {
    for (std::size_t i = 0; i < all.size(); ++i)
      together[i].push_back(samplers[i].sample(random_logits(2000, step)).id);
  }
  EXPECT_EQ(together, alone);
  EXPECT_LT(sizeof(Sampler), 300U);
}

}  // namespace
}  // namespace gsa::infer
