#include "model/model_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/suggest.h"
#include "model/errors.h"
#include "model/phase.h"

namespace gsa::nn {
namespace {

using gsa::testing::expect_error;

TEST(Presets, AreExactlyAsPublished) {
  const ModelConfig paper = ModelConfig::preset("paper-1.7b");
  EXPECT_EQ(paper.layers, 24);
  EXPECT_EQ(paper.attention.d_model, 2048);
  EXPECT_EQ(paper.attention.heads, 16);
  EXPECT_EQ(paper.attention.kv_heads, 4);
  EXPECT_EQ(paper.attention.head_size, 128);
  EXPECT_EQ(paper.intermediate, 5504);
  EXPECT_EQ(paper.vocab_size, 151936);
  EXPECT_FALSE(paper.tie_embeddings);
  EXPECT_EQ(paper.max_positions, 4096);
  EXPECT_EQ(paper.attention.indexer.heads, 4);
  EXPECT_EQ(paper.attention.indexer.head_size, 64);
  EXPECT_EQ(paper.attention.budget.base, 2048);

  const ModelConfig small = ModelConfig::preset("small");
  EXPECT_EQ(small.layers, 8);
  EXPECT_EQ(small.attention.d_model, 512);
  EXPECT_EQ(small.attention.heads, 8);
  EXPECT_EQ(small.attention.kv_heads, 2);
  EXPECT_EQ(small.attention.head_size, 64);
  EXPECT_EQ(small.intermediate, 1408);
  EXPECT_EQ(small.vocab_size, 32768);

  const ModelConfig seven = ModelConfig::preset("llama-7b-class");
  EXPECT_EQ(seven.attention.d_model, 4096);
  EXPECT_EQ(seven.attention.heads, 32);
  EXPECT_EQ(seven.attention.kv_heads, 8);
  EXPECT_EQ(seven.attention.budget.min, 256);
  EXPECT_EQ(seven.attention.budget.max, 4096);
}

TEST(Presets, LargeOnesRunShortSequencesDense) {
  for (const auto& [name, bound] :
       {std::pair{"tiny", std::int64_t{0}}, std::pair{"small", std::int64_t{0}},
        std::pair{"paper-1.7b", kSparsePays}, std::pair{"llama-7b-class", kSparsePays}}) {
    ModelConfig config = ModelConfig::preset(name);
    EXPECT_EQ(config.attention.dense_below, bound) << name;
    apply(config, System::sparse_only);
    EXPECT_EQ(config.attention.dense_below, bound) << name;
    apply(config, System::gated_only);
    EXPECT_EQ(config.attention.dense_below, 0) << name;
  }
}

TEST(Presets, TheTemperatureFollowsTheForm) {
  const auto temperature = [](const ModelConfig& c) { return c.attention.indexer.temperature.value; };
  ModelConfig config = ModelConfig::preset("small");
  EXPECT_EQ(temperature(config), 0.1);
  apply(config, System::sparse_only);
  EXPECT_EQ(temperature(config), 1);
  apply(config, System::gsa);
  EXPECT_EQ(temperature(config), 0.1);
  // A form that stays keeps what was set, and a learned temperature is among the weights.
  config.attention.indexer.temperature.value = 0.5;
  apply(config, System::gsa);
  EXPECT_EQ(temperature(config), 0.5);
  config.attention.indexer.temperature.learned = true;
  apply(config, System::sparse_only);
  EXPECT_EQ(temperature(config), 0.5);
}

TEST(Presets, TakeEverySystem) {
  for (const std::string& preset : ModelConfig::preset_names()) {
    for (const std::string& name : system_names()) {
      ModelConfig config = ModelConfig::preset(preset);
      const auto sizes = config.attention.budget.base;
      const System system = system_by_name(name);
      apply(config, system);
      EXPECT_NO_THROW(config.validate());
      EXPECT_EQ(system_of(config.attention), system);
      EXPECT_EQ(config.attention.budget.base, sizes);
      EXPECT_NE(config.describe().find(name), std::string::npos);
    }
    EXPECT_EQ(system_of(ModelConfig::preset(preset).attention), System::gsa);
  }
}

TEST(Systems, GoingAwayAndBackChangesNothing) {
  ModelConfig config = ModelConfig::preset("tiny");
  const std::string before = config.describe();
  apply(config, System::sparse_only);
  EXPECT_NE(config.describe(), before);
  apply(config, System::standard);
  apply(config, System::gsa);
  EXPECT_EQ(config.describe(), before);
}

TEST(Systems, AnAblationIsNoneOfTheFour) {
  ModelConfig config = ModelConfig::preset("tiny");
  config.attention.value_gate = GateKind::none;
  EXPECT_FALSE(system_of(config.attention).has_value());
  config = ModelConfig::preset("tiny");
  config.attention.budget.mode = BudgetMode::fixed;
  EXPECT_FALSE(system_of(config.attention).has_value());
  EXPECT_NE(config.describe().find("an ablation"), std::string::npos);
  // k is a number, not a switch.
  config = ModelConfig::preset("tiny");
  config.attention.budget.base = 32;
  EXPECT_EQ(system_of(config.attention), System::gsa);
}

TEST(Names, ErrorsSuggest) {
  expect_error([] { ModelConfig::preset("smal"); },
               {"'preset'", "tiny, small, paper-1.7b or llama-7b-class", "did you mean 'small'?"});
  expect_error([] { system_by_name("gated_only"); }, {"did you mean 'gated-only'?"});
  expect_error([] { system_by_name("xyz"); }, {"got 'xyz'"});
  expect_error([] { gate_kind_by_name("head"); }, {"none, elementwise or headwise"});
  expect_error([] { score_form_by_name("Relu"); }, {"did you mean 'relu'?"});
  expect_error([] { budget_mode_by_name("fix"); }, {"inverse, proportional or fixed"});
  expect_error([] { phase_by_name("warm-up"); }, {"did you mean 'warmup'?"});
  EXPECT_EQ(score_form_by_name("relu"), ScoreForm::relu);
  EXPECT_EQ(budget_mode_by_name("proportional"), BudgetMode::proportional);
  EXPECT_EQ(gate_kind_by_name("headwise"), GateKind::headwise);
  EXPECT_EQ(phase_by_name("sparse"), Phase::sparse);
}

TEST(Names, NearestIsNearEnoughOrNothing) {
  const std::vector<std::string> known = {"length", "layers", "dtype"};
  EXPECT_EQ(nearest_name("lenght", known), "length");
  EXPECT_EQ(nearest_name("LAYERS", known), "layers");
  EXPECT_EQ(nearest_name("typed", known), "");
  EXPECT_EQ(nearest_name("", known), "");
  EXPECT_EQ(nearest_name(std::string(1000, 'l'), known), "");
  EXPECT_EQ(alternatives({"a"}), "a");
  EXPECT_EQ(alternatives({"a", "b"}), "a or b");
  EXPECT_EQ(alternatives({"a", "b", "c"}), "a, b or c");
}

TEST(Extension, KeepsTheTrainedLength) {
  ModelConfig config = ModelConfig::preset("paper-1.7b");
  extend(config, 32);
  EXPECT_EQ(config.max_positions, 131072);
  EXPECT_EQ(config.trained_length(), 4096);
  EXPECT_NO_THROW(config.validate());
  extend(config, 8);
  EXPECT_EQ(config.max_positions, 32768);
  extend(config, 1);
  EXPECT_EQ(config.max_positions, 4096);
  EXPECT_EQ(config.attention.rope.yarn.factor, 1);
  expect_error([&] { extend(config, 0.5); }, {"factor", "0.5"});
}

TEST(IndexLayers, EveryNthLayer) {
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(every_nth_layer(8, 1), List());
  EXPECT_EQ(every_nth_layer(8, 3), (List{0, 3, 6}));
  EXPECT_EQ(every_nth_layer(8, 4), (List{0, 4}));
  EXPECT_EQ(every_nth_layer(8, 100), List{0});
  EXPECT_EQ(every_nth_layer(1, 4), List());
  expect_error([] { every_nth_layer(8, 0); }, {"index_every", "got 0"});
}

TEST(IndexLayers, AsText) {
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(layers_by_text("0,4,9"), (List{0, 4, 9}));
  EXPECT_EQ(layers_by_text(" 0 , 4"), (List{0, 4}));
  EXPECT_EQ(layers_by_text("7"), List{7});
  EXPECT_EQ(layers_by_text(layers_text({0, 12})), (List{0, 12}));
  for (const char* bad : {"0,", ",", "0,,1", "a", "0 1", "1.5", "99999999999999999999"}) {
    expect_error([&] { layers_by_text(bad); }, {"'index_layers'", "such as 0,4,9", bad});
  }
  EXPECT_EQ(shown_index_layers({}), "every layer");
  EXPECT_EQ(shown_index_layers({0, 3}), "layers 0, 3");
}

TEST(IndexLayers, EachLayerHasALeader) {
  ModelConfig config = ModelConfig::preset("small");  // 8 layers
  const std::string every = config.describe();
  for (std::int64_t layer = 0; layer < 8; ++layer) {
    EXPECT_TRUE(config.has_indexer(layer));
    EXPECT_EQ(config.leader_of(layer), layer);
    EXPECT_FALSE(config.attention_of(layer).shares_selection);
  }
  EXPECT_EQ(config.indexers(), 8);

  set_index_layers(config, {0, 3, 4});
  config.validate();
  const std::int64_t leaders[] = {0, 0, 0, 3, 4, 4, 4, 4};
  for (std::int64_t layer = 0; layer < 8; ++layer) {
    EXPECT_EQ(config.leader_of(layer), leaders[layer]);
    EXPECT_EQ(config.has_indexer(layer), leaders[layer] == layer);
    const AttentionConfig attention = config.attention_of(layer);
    EXPECT_EQ(attention.shares_selection, leaders[layer] != layer);
    EXPECT_EQ(attention.has_indexer(), leaders[layer] == layer);
    EXPECT_TRUE(attention.sparse);
    EXPECT_NO_THROW(attention.validate());
  }
  EXPECT_EQ(config.indexers(), 3);
  EXPECT_NE(config.describe().find("by 3 of 8 layers (0, 3, 4)"), std::string::npos) << config.describe();

  set_index_layers(config, {0, 1, 2, 3, 4, 5, 6, 7});  // the same as saying nothing
  EXPECT_TRUE(config.index_layers.empty());
  EXPECT_EQ(config.describe(), every);

  set_index_layers(config, {0, 4});
  apply(config, System::gated_only);
  EXPECT_TRUE(config.index_layers.empty());
  EXPECT_FALSE(config.has_indexer(0));
  EXPECT_FALSE(config.attention_of(3).shares_selection);
  EXPECT_EQ(config.indexers(), 0);
  EXPECT_NO_THROW(config.validate());
}

struct BadModel {
  const char* name;
  std::function<void(ModelConfig&)> damage;
  const char* field;
};

class BadModels : public ::testing::TestWithParam<BadModel> {};

TEST_P(BadModels, ErrorNamesTheField) {
  ModelConfig config = ModelConfig::preset("tiny");
  GetParam().damage(config);
  expect_error([&] { config.validate(); },
               {std::string("argument '") + GetParam().field + "'", "expected", "got"});
}

INSTANTIATE_TEST_SUITE_P(
    ModelConfig, BadModels,
    ::testing::Values(BadModel{"vocab", [](auto& c) { c.vocab_size = 0; }, "vocab_size"},
                      BadModel{"layers", [](auto& c) { c.layers = 0; }, "layers"},
                      BadModel{"layers_many", [](auto& c) { c.layers = 1 << 20; }, "layers"},
                      BadModel{"intermediate", [](auto& c) { c.intermediate = -4; }, "intermediate"},
                      BadModel{"positions", [](auto& c) { c.max_positions = 0; }, "max_positions"},
                      BadModel{"eps", [](auto& c) { c.rms_eps = 0; }, "rms_eps"},
                      BadModel{"bos", [](auto& c) { c.bos_id = c.vocab_size; }, "bos_id"},
                      BadModel{"eos", [](auto& c) { c.eos_ids = {-1}; }, "eos_ids"},
                      BadModel{"index_first",
                               [](auto& c) {
                                 c.index_layers = {1, 2};
                               },
                               "index_layers"},
                      BadModel{"index_negative",
                               [](auto& c) {
                                 c.index_layers = {-1, 0};
                               },
                               "index_layers"},
                      BadModel{"index_order",
                               [](auto& c) {
                                 c.index_layers = {0, 2, 1};
                               },
                               "index_layers"},
                      BadModel{"index_twice",
                               [](auto& c) {
                                 c.index_layers = {0, 2, 2};
                               },
                               "index_layers"},
                      BadModel{"index_beyond",
                               [](auto& c) {
                                 c.index_layers = {0, 4};
                               },
                               "index_layers"},
                      BadModel{"index_all",
                               [](auto& c) {
                                 c.index_layers = {0, 1, 2, 3};
                               },
                               "index_layers"},
                      BadModel{"index_dense",
                               [](auto& c) {
                                 apply(c, System::gated_only);
                                 c.index_layers = {0};
                               },
                               "index_layers"},
                      BadModel{"shares", [](auto& c) { c.attention.shares_selection = true; },
                               "attention.shares_selection"},
                      BadModel{"attention", [](auto& c) { c.attention.heads = 0; }, "heads"},
                      BadModel{"sum",
                               [](auto& c) {
                                 c.attention.d_model = 1 << 30;
                                 c.intermediate = 1 << 30;
                               },
                               "layers"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace gsa::nn
