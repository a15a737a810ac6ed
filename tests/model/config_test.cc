#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "gsa/error.h"

namespace gsa::nn {
namespace {

TEST(AttentionConfig, PresetsAreValidAndDiffer) {
  for (const auto& config : {AttentionConfig::standard(), AttentionConfig::sparse_only(),
                             AttentionConfig::gated_only(), AttentionConfig::gsa()}) {
    EXPECT_NO_THROW(config.validate());
  }
  EXPECT_FALSE(AttentionConfig::standard().sparse);
  EXPECT_EQ(AttentionConfig::standard().output_gate, GateKind::none);
  EXPECT_EQ(AttentionConfig::standard().value_gate, GateKind::none);
  EXPECT_FALSE(AttentionConfig::gated_only().sparse);
  EXPECT_EQ(AttentionConfig::gated_only().output_gate, GateKind::elementwise);
  EXPECT_EQ(AttentionConfig::sparse_only().indexer.form, ScoreForm::relu);
  EXPECT_EQ(AttentionConfig::sparse_only().budget.mode, BudgetMode::fixed);
  EXPECT_EQ(AttentionConfig::sparse_only().value_gate, GateKind::none);
  EXPECT_EQ(AttentionConfig::gsa().budget.mode, BudgetMode::inverse);
  EXPECT_EQ(AttentionConfig::gsa().indexer.temperature.value, 0.1);
  EXPECT_EQ(AttentionConfig::sparse_only().indexer.temperature.value, 1);
}

TEST(AttentionConfig, DescribesWhatItIs) {
  AttentionConfig config = AttentionConfig::gsa();
  config.output_gate = GateKind::headwise;
  config.dense_below = 128;
  config.rope.yarn.factor = 4;
  const std::string text = config.describe();
  for (const char* part :
       {"d_model 4096", "32 query heads", "8 key/value heads of 128", "inverse budget",
        "k 2048 in [256, 4096]", "dense below 128", "4 heads of 64", "sigmoid", "RoPE on 64 dimensions",
        "temperature 0.1", "value elementwise", "output headwise", "YaRN x 4", "attention factor 1.138"}) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is missing in:\n" << text;
  }
  EXPECT_EQ(AttentionConfig::standard().describe().find("indexer"), std::string::npos);
}

TEST(AttentionConfig, YarnAttentionFactor) {
  EXPECT_EQ(attention_factor({}), 1);
  YarnConfig yarn;
  yarn.factor = 32;
  EXPECT_DOUBLE_EQ(attention_factor(yarn), 0.1 * std::log(32.0) + 1);
  yarn.attention_factor = 1.5;
  EXPECT_EQ(attention_factor(yarn), 1.5);
}

struct BadConfig {
  const char* name;
  std::function<void(AttentionConfig&)> damage;
  const char* field;
  const char* got;
};

class BadConfigs : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigs, ErrorNamesFieldExpectedAndGot) {
  AttentionConfig config = AttentionConfig::gsa();
  GetParam().damage(config);
  try {
    config.validate();
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(
        text.find(std::string("gsa::nn::AttentionConfig: argument '") + GetParam().field + "': expected "),
        std::string::npos)
        << text;
    EXPECT_NE(text.find(std::string(", got ") + GetParam().got), std::string::npos) << text;
  }
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

INSTANTIATE_TEST_SUITE_P(
    AttentionConfig, BadConfigs,
    ::testing::Values(
        BadConfig{"d_model", [](auto& c) { c.d_model = 0; }, "d_model", "0"},
        BadConfig{"d_model_overflow", [](auto& c) { c.d_model = INT64_MAX / 2; }, "d_model", "46116"},
        BadConfig{"heads", [](auto& c) { c.heads = -1; }, "heads", "-1"},
        BadConfig{"heads_overflow", [](auto& c) { c.heads = INT64_MAX - 7; }, "heads", "92233"},
        BadConfig{"kv_heads_zero", [](auto& c) { c.kv_heads = 0; }, "kv_heads", "0"},
        BadConfig{"kv_heads_no_divisor", [](auto& c) { c.kv_heads = 5; }, "kv_heads", "5"},
        BadConfig{"head_size_odd", [](auto& c) { c.head_size = 59; }, "head_size", "59"},
        BadConfig{"head_size_large", [](auto& c) { c.head_size = 258; }, "head_size", "258"},
        BadConfig{"index_heads", [](auto& c) { c.indexer.heads = 129; }, "indexer.heads", "129"},
        BadConfig{"index_size", [](auto& c) { c.indexer.head_size = 0; }, "indexer.head_size", "0"},
        BadConfig{"fraction_above", [](auto& c) { c.indexer.rope_fraction = 1.5; }, "indexer.rope_fraction",
                  "1.5"},
        BadConfig{"fraction_nan", [](auto& c) { c.indexer.rope_fraction = kNan; }, "indexer.rope_fraction",
                  "nan"},
        BadConfig{"fraction_odd",
                  [](auto& c) {
                    c.indexer.head_size = 10;
                    c.indexer.rope_fraction = 0.5;
                  },
                  "indexer.rope_fraction", "0.5 (5 dimensions)"},
        BadConfig{"size_odd", [](auto& c) { c.indexer.head_size = 5; }, "indexer.rope_fraction",
                  "1 (5 dimensions)"},
        BadConfig{"temperature", [](auto& c) { c.indexer.temperature.value = 0; },
                  "indexer.temperature.value", "0"},
        BadConfig{"momentum", [](auto& c) { c.indexer.mean_variance_momentum = 1; },
                  "indexer.mean_variance_momentum", "1"},
        BadConfig{"k_min_zero", [](auto& c) { c.budget.min = 0; }, "budget.min", "0"},
        BadConfig{"k_min_above_max", [](auto& c) { c.budget.min = 5000; }, "budget.min", "5000"},
        BadConfig{"k_max_large", [](auto& c) { c.budget.max = std::int64_t{1} << 40; }, "budget.max",
                  "1099511627776"},
        BadConfig{"k_base_below", [](auto& c) { c.budget.base = 255; }, "budget.base", "255"},
        BadConfig{"k_base_above", [](auto& c) { c.budget.base = 4097; }, "budget.base", "4097"},
        BadConfig{"dense_below_negative", [](auto& c) { c.dense_below = -1; }, "dense_below", "-1"},
        BadConfig{"dense_below_dense",
                  [](auto& c) {
                    c.sparse = false;
                    c.dense_below = 8;
                  },
                  "dense_below", "8"},
        BadConfig{"shares_dense",
                  [](auto& c) {
                    c.sparse = false;
                    c.shares_selection = true;
                  },
                  "shares_selection", "true"},
        BadConfig{"theta", [](auto& c) { c.rope.theta = 1; }, "rope.theta", "1"},
        BadConfig{"yarn_factor", [](auto& c) { c.rope.yarn.factor = 0.5; }, "rope.yarn.factor", "0.5"},
        BadConfig{"yarn_length", [](auto& c) { c.rope.yarn.original_length = 0; },
                  "rope.yarn.original_length", "0"},
        BadConfig{"yarn_beta_slow", [](auto& c) { c.rope.yarn.beta_slow = 0; }, "rope.yarn.beta_slow", "0"},
        BadConfig{"yarn_betas", [](auto& c) { c.rope.yarn.beta_fast = 1; }, "rope.yarn.beta_fast", "1"},
        BadConfig{"yarn_attention", [](auto& c) { c.rope.yarn.attention_factor = -1; },
                  "rope.yarn.attention_factor", "-1"},
        BadConfig{"init_std", [](auto& c) { c.init_std = kInf; }, "init_std", "inf"},
        BadConfig{"gate_init_shut", [](auto& c) { c.gate_init = 0; }, "gate_init", "0"},
        BadConfig{"gate_init_open", [](auto& c) { c.gate_init = 1; }, "gate_init", "1"},
        BadConfig{"gate_init_std", [](auto& c) { c.gate_init_std = -0.1; }, "gate_init_std", "-0.1"},
        BadConfig{"gate_kind", [](auto& c) { c.value_gate = static_cast<GateKind>(9); }, "gate", "9"}),
    [](const auto& test) { return std::string(test.param.name); });

// What a dense layer does not read cannot be wrong.
TEST(AttentionConfig, DenseLayersDoNotReadTheIndexer) {
  AttentionConfig config = AttentionConfig::gated_only();
  config.indexer.heads = 0;
  config.budget.min = 99999;
  EXPECT_NO_THROW(config.validate());
}

}  // namespace
}  // namespace gsa::nn
