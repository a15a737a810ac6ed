#include "model/config_json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <tuple>

#include "core/json.h"
#include "model/errors.h"

namespace gsa::nn {
namespace {

using gsa::testing::expect_error;

ConfigFile parse_config(const std::string& text) { return config_from_json(text, "config.json"); }

void expect_same(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(config_to_json({a, DType::f32}), config_to_json({b, DType::f32}));
}

TEST(ConfigJson, EveryPresetAndSystemComesBack) {
  for (const std::string& preset : ModelConfig::preset_names()) {
    for (const std::string& system : system_names()) {
      SCOPED_TRACE(preset + " " + system);
      ModelConfig config = ModelConfig::preset(preset);
      apply(config, system_by_name(system));
      const ConfigFile back = parse_config(config_to_json({config, DType::bf16}));
      expect_same(config, back.config);
      EXPECT_EQ(back.dtype, DType::bf16);
      EXPECT_EQ(system_of(back.config.attention), system_by_name(system));
    }
  }
}

TEST(ConfigJson, EveryFieldComesBack) {
  ModelConfig config = ModelConfig::preset("tiny");
  config.vocab_size = 301;
  config.layers = 5;
  config.intermediate = 77;
  config.rms_eps = 3e-7;
  config.tie_embeddings = false;
  config.bos_id = 5;
  config.eos_ids = {7, 8};
  AttentionConfig& a = config.attention;
  a.d_model = 36;
  a.heads = 6;
  a.kv_heads = 3;
  a.head_size = 10;
  a.init_std = 0.013;
  a.gate_init = 0.75;
  a.gate_init_std = 0.0017;
  a.value_gate = GateKind::headwise;
  a.output_gate = GateKind::none;
  a.indexer = {.heads = 3,
               .head_size = 12,
               .form = ScoreForm::relu,
               .rope_fraction = 1,
               .temperature = {0.3, true},
               .mean_variance_momentum = 0.95};
  a.budget = {BudgetMode::proportional, 33, 11, 99};
  a.dense_below = 17;
  a.rope.theta = 500000;
  extend(config, 2.5);
  a.rope.yarn.beta_fast = 31;
  a.rope.yarn.beta_slow = 2;
  a.rope.yarn.attention_factor = 1.25;
  const ModelConfig back = parse_config(config_to_json({config, std::nullopt})).config;
  expect_same(config, back);
  const AttentionConfig& b = back.attention;
  EXPECT_EQ(back.eos_ids, config.eos_ids);
  EXPECT_EQ(back.bos_id, 5);
  EXPECT_EQ(back.max_positions, 2560);
  EXPECT_EQ(back.trained_length(), 1024);
  EXPECT_EQ(b.budget.mode, BudgetMode::proportional);
  EXPECT_EQ(b.budget.max, 99);
  EXPECT_EQ(b.indexer.temperature.learned, true);
  EXPECT_EQ(b.indexer.rope_fraction, 1);
  EXPECT_EQ(b.rope.theta, 500000);
  EXPECT_EQ(b.rope.yarn.attention_factor, 1.25);
  EXPECT_EQ(b.rope.yarn.beta_fast, 31);
  EXPECT_EQ(b.dense_below, 17);
  EXPECT_EQ(b.value_gate, GateKind::headwise);
  EXPECT_EQ(b.gate_init, 0.75);
  EXPECT_EQ(b.gate_init_std, 0.0017);
  EXPECT_FALSE(parse_config(config_to_json({config, std::nullopt})).dtype.has_value());
}

// Older files, and others', may leave it out; what it meant then is what it means.
TEST(ConfigJson, ARotatedShareThatIsLeftOutIsOneHalf) {
  const ModelConfig config = ModelConfig::preset("tiny");
  EXPECT_EQ(config.attention.indexer.rope_fraction, 1);
  Json json = Json::parse(config_to_json({config, DType::f32}));
  EXPECT_EQ(json["index_rope_fraction"], 1.0);
  json.erase("index_rope_fraction");
  EXPECT_EQ(parse_config(json.dump()).config.attention.indexer.rope_fraction, 0.5);
  // Without an indexer there is nothing to remember: one that is added is a new one.
  ModelConfig dense = config;
  apply(dense, System::gated_only);
  EXPECT_EQ(parse_config(config_to_json({dense, DType::f32})).config.attention.indexer.rope_fraction, 1);
}

TEST(ConfigJson, AStartOfGatesThatIsLeftOutIsOneHalf) {
  const ModelConfig config = ModelConfig::preset("tiny");
  EXPECT_EQ(config.attention.gate_init, 0.9);
  Json json = Json::parse(config_to_json({config, DType::f32}));
  EXPECT_EQ(json["gate_init"], 0.9);
  json.erase("gate_init");
  EXPECT_EQ(parse_config(json.dump()).config.attention.gate_init, 0.5);
}

TEST(ConfigJson, ATemperatureThatIsLeftOutIsOne) {
  const ModelConfig config = ModelConfig::preset("tiny");
  Json json = Json::parse(config_to_json({config, DType::f32}));
  EXPECT_EQ(json["index_temperature"], 0.1);
  EXPECT_EQ(parse_config(json.dump()).config.attention.indexer.temperature.value, 0.1);
  json.erase("index_temperature");
  ModelConfig old = parse_config(json.dump()).config;
  EXPECT_EQ(old.attention.indexer.temperature.value, 1);
  apply(old, System::gsa);  // named once more: still the indexer that it has
  EXPECT_EQ(old.attention.indexer.temperature.value, 1);
  // An indexer that is added is a new one.
  ModelConfig dense = config;
  apply(dense, System::gated_only);
  dense = parse_config(config_to_json({dense, DType::f32})).config;
  apply(dense, System::gsa);
  EXPECT_EQ(dense.attention.indexer.temperature.value, 0.1);
}

TEST(ConfigJson, StandardIsPlainLlama) {
  ModelConfig config = ModelConfig::preset("small");
  apply(config, System::standard);
  const Json json = Json::parse(config_to_json({config, DType::f32}));
  EXPECT_EQ(json["model_type"], "llama");
  EXPECT_EQ(json["architectures"], Json::array({"LlamaForCausalLM"}));
  for (const char* key :
       {"index_topk", "sparse_attention", "value_gate", "gate_init", "gate_init_std", "dense_below"}) {
    EXPECT_FALSE(json.contains(key)) << key;
  }
  apply(config, System::gated_only);
  const Json gated = Json::parse(config_to_json({config, DType::f32}));
  EXPECT_EQ(gated["model_type"], "gated_sparse_attention");
  EXPECT_FALSE(gated.contains("index_topk"));
  EXPECT_EQ(gated["sparse_attention"], false);
}

TEST(ConfigJson, TheNameIsTransformersAndTheOldOneIsRead) {
  ModelConfig config = ModelConfig::preset("tiny");
  Json json = Json::parse(config_to_json({config, DType::f32}));
  EXPECT_EQ(json["model_type"], "gated_sparse_attention");
  EXPECT_EQ(json["architectures"], Json::array({"GatedSparseAttentionForCausalLM"}));
  json["model_type"] = "gsa";
  json["architectures"] = Json::array({"GsaForCausalLM"});
  expect_same(config, parse_config(json.dump()).config);
  json.erase("index_topk");  // no Llama: our keys are asked for
  EXPECT_THROW(parse_config(json.dump()), Error);
}

// As transformers 4 writes it, with its usual company.
constexpr const char* kLlama2 = R"({
  "_name_or_path": "x", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
  "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0",
  "use_cache": true, "vocab_size": 32000})";

TEST(ConfigJson, ReadsWhatOthersWrite) {
  const ConfigFile file = parse_config(kLlama2);
  EXPECT_EQ(system_of(file.config.attention), System::standard);
  EXPECT_EQ(file.config.attention.kv_heads, 32);  // as many as heads where the file does not say
  EXPECT_EQ(file.config.attention.head_size, 128);
  EXPECT_EQ(file.config.bos_id, 1);
  EXPECT_EQ(file.config.eos_ids, std::vector<std::int64_t>{2});
  EXPECT_EQ(file.dtype, DType::f16);
  // transformers 5: dtype, and positions in one object.
  Json json = Json::parse(kLlama2);
  json.erase("torch_dtype");
  json.erase("rope_scaling");
  json["dtype"] = "bfloat16";
  json["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "default"}};
  json["num_key_value_heads"] = 8;
  json["eos_token_id"] = Json::array({3, 4});
  const ConfigFile newer = parse_config(json.dump());
  EXPECT_EQ(newer.dtype, DType::bf16);
  EXPECT_EQ(newer.config.attention.rope.theta, 500000);
  EXPECT_EQ(newer.config.attention.kv_heads, 8);
  EXPECT_EQ(newer.config.eos_ids, (std::vector<std::int64_t>{3, 4}));
}

TEST(ConfigJson, FamiliesComeAndGoAsThemselves) {
  for (const auto& [type, written, architecture, bias, norm] :
       {std::tuple("llama", "llama", "LlamaForCausalLM", false, false),
        std::tuple("mistral", "mistral", "MistralForCausalLM", false, false),
        std::tuple("qwen2", "qwen2", "Qwen2ForCausalLM", true, false),
        std::tuple("qwen3", "qwen3", "Qwen3ForCausalLM", false, true)}) {
    SCOPED_TRACE(type);
    Json json = Json::parse(kLlama2);
    json["model_type"] = type;
    json["sliding_window"] = nullptr;
    ModelConfig config = parse_config(json.dump()).config;
    EXPECT_EQ(config.attention.qkv_bias, bias);
    EXPECT_EQ(config.attention.qk_norm, norm);
    const Json again = Json::parse(config_to_json({config, DType::bf16}));
    EXPECT_EQ(again["model_type"], written);
    EXPECT_EQ(again["architectures"], Json::array({architecture}));
    EXPECT_FALSE(again.contains("qkv_bias") || again.contains("qk_norm"));
    EXPECT_EQ(parse_config(again.dump()).config.attention.qk_norm, norm);
    // Any other system is ours, and says what its family said.
    apply(config, System::gsa);
    const Json ours = Json::parse(config_to_json({config, DType::bf16}));
    EXPECT_EQ(ours["model_type"], "gated_sparse_attention");
    EXPECT_EQ(ours.contains("qkv_bias"), bias);
    EXPECT_EQ(ours.contains("qk_norm"), norm);
    EXPECT_EQ(parse_config(ours.dump()).config.attention.qkv_bias, bias);
    EXPECT_EQ(parse_config(ours.dump()).config.attention.qk_norm, norm);
  }
  // Both at once is nobody's family.
  ModelConfig both = parse_config(kLlama2).config;
  both.attention.qkv_bias = both.attention.qk_norm = true;
  const Json json = Json::parse(config_to_json({both, DType::f32}));
  EXPECT_EQ(json["model_type"], "gated_sparse_attention");
  EXPECT_EQ(system_of(parse_config(json.dump()).config.attention), System::standard);
}

TEST(ConfigJson, LayersWithAnIndexerAreNamedWhereSomeHaveNone) {
  ModelConfig config = ModelConfig::preset("tiny");  // 4 layers
  EXPECT_FALSE(Json::parse(config_to_json({config, DType::f32})).contains("index_layers"));

  config.index_layers = {0, 2, 3};
  Json json = Json::parse(config_to_json({config, DType::f32}));
  EXPECT_EQ(json["index_layers"], Json::array({0, 2, 3}));
  EXPECT_EQ(parse_config(json.dump()).config.index_layers, config.index_layers);
  for (const Json& all : {Json(nullptr), Json::array({0, 1, 2, 3})}) {
    json["index_layers"] = all;
    EXPECT_TRUE(parse_config(json.dump()).config.index_layers.empty());
  }
  for (const Json& bad : {Json(2), Json("0,2"), Json::array(), Json::array({0, -1}), Json::array({0, 1.5}),
                          Json::array({0, std::uint64_t{1} << 63}), Json::array({0, "2"})}) {
    json["index_layers"] = bad;
    expect_error([&] { parse_config(json.dump()); }, {"'index_layers'", "a list of layers"});
  }
  for (const Json& bad : {Json::array({1}), Json::array({0, 4}), Json::array({0, 2, 2})}) {
    json["index_layers"] = bad;
    expect_error([&] { parse_config(json.dump()); }, {"config.json", "'index_layers'", "the first 0"});
  }
  // Where nothing is selected, the key says nothing.
  apply(config, System::gated_only);
  Json dense = Json::parse(config_to_json({config, DType::f32}));
  EXPECT_FALSE(dense.contains("index_layers"));
  dense["index_layers"] = Json::array({0, 2});
  expect_error([&] { parse_config(dense.dump()); }, {"index_layers"});
}

TEST(ConfigJson, AWindowInForceIsRefused) {
  const auto with = [](const char* type, const Json& keys) {
    Json json = Json::parse(kLlama2);  // 32 layers, 4096 positions
    json["model_type"] = type;
    json.update(keys);
    return json.dump();
  };
  const Json qwen = {{"use_sliding_window", false}, {"sliding_window", 1024}, {"max_window_layers", 28}};
  EXPECT_NO_THROW(parse_config(with("qwen2", qwen)));
  EXPECT_NO_THROW(parse_config(with("qwen3", {{"use_sliding_window", true}, {"sliding_window", 4096}})));
  EXPECT_NO_THROW(parse_config(
      with("qwen3", {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 32}})));
  EXPECT_NO_THROW(parse_config(
      with("qwen2", {{"layer_types", Json::array({"full_attention"})}, {"sliding_window", nullptr}})));
  EXPECT_NO_THROW(parse_config(with("mistral", {{"sliding_window", nullptr}})));
  EXPECT_NO_THROW(
      parse_config(with("mistral", Json::object())));  // absent: 4096, which covers every position
  for (const std::string& text :
       {with("mistral", {{"sliding_window", 1024}}),
        with("qwen2", {{"use_sliding_window", true}, {"sliding_window", 1024}}),
        with("qwen3", {{"layer_types", Json::array({"sliding_attention"})}, {"sliding_window", 1024}})}) {
    expect_error([&] { parse_config(text); },
                 {"no sliding window", "at least the 4096 of max_position_embeddings", "a window of 1024"});
  }
  expect_error(
      [&] {
        parse_config(with("mistral", {{"max_position_embeddings", 32768}}));
      },
      {"a window of 4096"});
}

TEST(ConfigJson, ScalingsOfPositions) {
  const auto scaled = [](const Json& scaling) {
    Json json = Json::parse(kLlama2);
    json["rope_scaling"] = scaling;
    const ModelConfig config = parse_config(json.dump()).config;
    const Json again = Json::parse(config_to_json({config, DType::f32}));
    EXPECT_EQ(parse_config(again.dump()).config.attention.describe(), config.attention.describe());
    EXPECT_EQ(again["rope_scaling"]["rope_type"], scaling["rope_type"]);
    return config.attention.rope;
  };
  EXPECT_EQ(scaled({{"rope_type", "linear"}, {"factor", 4}}).linear_factor, 4);
  const Llama3RopeConfig llama3 = scaled({{"rope_type", "llama3"},
                                          {"factor", 8},
                                          {"low_freq_factor", 2},
                                          {"high_freq_factor", 5},
                                          {"original_max_position_embeddings", 1024}})
                                      .llama3;
  EXPECT_EQ(llama3.factor, 8);
  EXPECT_EQ(llama3.low_freq_factor, 2);
  EXPECT_EQ(llama3.high_freq_factor, 5);
  EXPECT_EQ(llama3.original_length, 1024);
  // What is not said: the original length is that of the model.
  const YarnConfig yarn = scaled({{"rope_type", "yarn"},
                                  {"factor", 4},
                                  {"mscale", 0.7},
                                  {"mscale_all_dim", 0.4},
                                  {"truncate", false}})
                              .yarn;
  EXPECT_EQ(yarn.original_length, 4096);
  EXPECT_FALSE(yarn.truncate);
  EXPECT_NEAR(attention_factor(yarn), (0.07 * std::log(4) + 1) / (0.04 * std::log(4) + 1), 1e-15);
  // YaRN goes beside neither of the others.
  ModelConfig config = parse_config(kLlama2).config;
  config.attention.rope.linear_factor = 2;
  extend(config, 1);
  expect_error([&] { extend(config, 2); }, {"linear scaling"});
  config.attention.rope.yarn.factor = 2;
  expect_error([&] { config.validate(); }, {"one of YaRN, linear and llama3"});
}

struct BadFile {
  const char* name;
  std::function<void(Json&)> damage;
  std::vector<std::string> parts;
};

class BadFiles : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadFiles, SayWhatIsWrong) {
  ModelConfig config = ModelConfig::preset("tiny");
  Json json = Json::parse(config_to_json({config, DType::f32}));
  GetParam().damage(json);
  for (const std::string& part : GetParam().parts) {
    expect_error([&] { parse_config(json.dump()); }, {"file 'config.json'", part});
  }
}

INSTANTIATE_TEST_SUITE_P(
    ConfigJson, BadFiles,
    ::testing::Values(
        BadFile{"no_type",
                [](Json& j) { j.erase("model_type"); },
                {"'model_type' to be an architecture that is known here", "\"qwen3\"", "got none"}},
        BadFile{"other_type",
                [](Json& j) { j["model_type"] = "mamba"; },
                {"known here: \"llama\", \"mistral\", \"qwen2\", \"qwen3\", \"gated_sparse_attention\" or "
                 "\"gsa\", got \"mamba\""}},
        BadFile{
            "misspelt", [](Json& j) { j["index_topK"] = 3; }, {"'index_topK' (did you mean 'index_topk'?)"}},
        BadFile{"unknown", [](Json& j) { j["flux_capacitor"] = 3; }, {"'flux_capacitor'"}},
        BadFile{"missing", [](Json& j) { j.erase("index_budget"); }, {"the key 'index_budget'"}},
        BadFile{"llama_with_ours", [](Json& j) { j["model_type"] = "llama"; }, {"keys that are known here"}},
        BadFile{
            "dense_with_index", [](Json& j) { j["sparse_attention"] = false; }, {"keys that are known here"}},
        BadFile{
            "text_number", [](Json& j) { j["vocab_size"] = "258"; }, {"'vocab_size' to be a whole number"}},
        BadFile{"fraction",
                [](Json& j) { j["vocab_size"] = 258.5; },
                {"'vocab_size' to be a whole number", "258.5"}},
        BadFile{"unsigned_beyond", [](Json& j) { j["vocab_size"] = UINT64_MAX; }, {"a whole number"}},
        BadFile{"negative", [](Json& j) { j["num_hidden_layers"] = -1; }, {"layers", "-1"}},
        BadFile{"absurd",
                [](Json& j) {
                  j["num_hidden_layers"] = 60000;
                  j["intermediate_size"] = 2000000000;
                },
                {"10^15 parameters"}},
        BadFile{"zero_heads", [](Json& j) { j["num_attention_heads"] = 0; }, {"heads", "0"}},
        BadFile{"gate_name",
                [](Json& j) { j["value_gate"] = "elementwize"; },
                {"key 'value_gate'", "did you mean 'elementwise'?"}},
        BadFile{"gate_type", [](Json& j) { j["value_gate"] = true; }, {"'value_gate' to be a name", "true"}},
        BadFile{"budget_name",
                [](Json& j) { j["index_budget"] = "inverted"; },
                {"inverse, proportional or fixed"}},
        BadFile{"budget_range", [](Json& j) { j["index_topk"] = 4; }, {"budget.base", "4"}},
        BadFile{"bool_number", [](Json& j) { j["tie_word_embeddings"] = 1; }, {"true or false"}},
        BadFile{
            "activation", [](Json& j) { j["hidden_act"] = "gelu"; }, {"'hidden_act' to be \"silu\"", "gelu"}},
        BadFile{"bias", [](Json& j) { j["attention_bias"] = true; }, {"'attention_bias' to be false"}},
        BadFile{"rope_type",
                [](Json& j) {
                  j["rope_scaling"] = {{"rope_type", "longrope"}, {"factor", 8}};
                },
                {"'rope_scaling.rope_type'", "\"linear\", \"llama3\" or \"yarn\"", "\"longrope\""}},
        BadFile{"llama3_without_bounds",
                [](Json& j) {
                  j["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8}};
                },
                {"'rope_scaling.low_freq_factor'"}},
        BadFile{"linear_key",
                [](Json& j) {
                  j["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8}, {"beta_fast", 8}};
                },
                {"'rope_scaling.beta_fast'"}},
        BadFile{"part_type", [](Json& j) { j["qk_norm"] = 1; }, {"'qk_norm' to be true or false"}},
        BadFile{"rope_key",
                [](Json& j) {
                  j["rope_scaling"] = {{"rope_type", "yarn"},
                                       {"factor", 8},
                                       {"original_max_position_embeddings", 64},
                                       {"msacle", 1}};
                },
                {"'rope_scaling.msacle'"}},
        BadFile{"rope_factor",
                [](Json& j) {
                  j["rope_scaling"] = {{"rope_type", "yarn"}};
                },
                {"'rope_scaling.factor'"}},
        BadFile{"rope_both",
                [](Json& j) {
                  j["rope_scaling"] = {{"rope_type", "default"}};
                  j["rope_parameters"] = {{"rope_type", "default"}};
                },
                {"both"}},
        BadFile{"rope_number", [](Json& j) { j["rope_scaling"] = 4; }, {"an object"}},
        BadFile{"eos_beyond", [](Json& j) { j["eos_token_id"] = 258; }, {"eos_ids", "258"}},
        BadFile{"eos_text", [](Json& j) { j["eos_token_id"] = "</s>"; }, {"a token's number"}},
        BadFile{"bos_list",
                [](Json& j) {
                  j["bos_token_id"] = Json::array({1, 2});
                },
                {"one token"}},
        BadFile{"dtype", [](Json& j) { j["torch_dtype"] = "int8"; }, {"'torch_dtype'", "\"int8\""}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ConfigJson, WhatIsNoObject) {
  for (const char* text : {"", "[]", "3", "{", "{} x", "{\"a\":1,}", "// x\n{}", "{\"a\":NaN}", "\xff"}) {
    expect_error([&] { parse_config(text); }, {"file 'config.json'", "expected", "got"});
  }
}

// ---- the strict reader beneath ----

TEST(Json, DuplicateKeysAreRefusedAtAnyDepth) {
  expect_error([] { parse_json(R"({"a":1,"b":2,"a":3})", "f"); }, {"file 'f'", "every key once", "\"a\""});
  expect_error([] { parse_json(R"({"x":[{"a":1,"a":1}]})", "f"); }, {"every key once"});
  EXPECT_NO_THROW(parse_json(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})", "f"));
}

TEST(Json, DepthAndStrayBytesAreRefused) {
  EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), "f"));
  expect_error([] { parse_json(std::string(65, '[') + std::string(65, ']'), "f"); }, {"at most 64 levels"});
  expect_error([] { parse_json(std::string(1'000'000, '['), "f"); }, {"at most 64 levels"});
  expect_error([] { parse_json(std::string("{}\0", 3), "f"); }, {"a byte 0"});
  expect_error([] { parse_json("1e999", "f"); }, {"numbers up to", "1e999"});
}

}  // namespace
}  // namespace gsa::nn
