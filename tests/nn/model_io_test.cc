// Model folders: what is saved comes back to the bit, and what does not fit is refused by name.
#include "nn/model_io.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "core/file.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "model/errors.h"
#include "model/temporary_folder.h"
#include "nn/convert.h"
#include "nn/torch.h"
#include "small_models.h"

namespace gsa::nn::testing {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;
namespace fs = std::filesystem;

std::map<std::string, Tensor> state(const Model& model) {
  std::map<std::string, Tensor> tensors;
  for (const auto& item : model->named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : model->named_buffers()) tensors[item.key()] = item.value();
  return tensors;
}

void expect_equal_state(const Model& a, const Model& b) {
  const auto x = state(a), y = state(b);
  ASSERT_EQ(x.size(), y.size());
  for (const auto& [name, tensor] : x) {
    ASSERT_TRUE(y.contains(name)) << name;
    EXPECT_EQ(tensor.scalar_type(), y.at(name).scalar_type()) << name;
    EXPECT_TRUE(torch::equal(tensor, y.at(name))) << name;
  }
}

// A model whose running mean of the variance has moved.
Model trained(const ModelConfig& config, torch::Dtype dtype = torch::kFloat32) {
  auto model = make_model(config, dtype);
  model->forward(random_tokens({2, 33}));
  return model;
}

class SavedModels : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Systems, SavedModels, ::testing::ValuesIn(all_variants()), name_of_case);

TEST_P(SavedModels, ComeBackToTheBit) {
  for (const bool tied : {false, true}) {
    for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
      TemporaryFolder folder;
      ModelConfig config = small_model(GetParam().config);
      config.tie_embeddings = tied;
      extend(config, 2);
      auto model = trained(config, dtype);
      save_model(model, folder / "model");
      const LoadedModel back = load_model(folder / "model");
      EXPECT_TRUE(back.initialised.empty());
      EXPECT_EQ(stored_dtype(folder / "model"), dtype_of(dtype));
      expect_equal_state(model, back.model);
      Model other = back.model;
      model->eval();
      other->eval();
      const Tensor tokens = random_tokens({2, 20});
      EXPECT_TRUE(torch::equal(model->forward(tokens).hidden, other->forward(tokens).hidden));
      EXPECT_EQ(config.describe(), other->config().describe());
    }
  }
}

// ---- Selections shared between layers

ModelConfig sharing_model(std::vector<std::int64_t> index_layers) {
  ModelConfig config = small_model(small(AttentionConfig::gsa()));
  config.layers = 4;
  config.index_layers = std::move(index_layers);
  return config;
}

void change_config(const fs::path& folder, const std::function<void(Json&)>& change) {
  Json json = Json::parse(read_file(folder / "config.json", 1 << 20));
  change(json);
  std::ofstream(folder / "config.json") << json.dump();
}

TEST(SharingFolders, ComeBackToTheBit) {
  TemporaryFolder folder;
  auto model = trained(sharing_model({0, 3}));
  save_model(model, folder / "model");
  const LoadedModel back = load_model(folder / "model");
  EXPECT_TRUE(back.initialised.empty());
  EXPECT_EQ(back.model->config().index_layers, (std::vector<std::int64_t>{0, 3}));
  expect_equal_state(model, back.model);
  for (const auto& [name, tensor] : state(back.model)) {
    const bool between =
        name.find("layers.1.") != std::string::npos || name.find("layers.2.") != std::string::npos;
    EXPECT_FALSE(between && name.find("indexer") != std::string::npos) << name;
  }
}

TEST(SharingFolders, WhatTheirWeightsContradictIsRefusedByName) {
  TemporaryFolder folder;
  save_model(trained(sharing_model({})), folder / "all");
  change_config(folder / "all", [](Json& json) { json["index_layers"] = Json::array({0, 3}); });
  expect_error([&] { load_model(folder / "all"); },
               {"tensors that the model has", "'model.layers.1.self_attn.indexer."});
  save_model(trained(sharing_model({0, 3})), folder / "some");
  LoadOptions options{.config = sharing_model({0, 2})};
  expect_error([&] { load_model(folder / "some", options); },
               {"the folder's index_layers (layers 0, 3;", "got layers 0, 2"});
  change_config(folder / "some", [](Json& json) { json["index_layers"] = Json::array({0, 2, 3}); });
  expect_error([&] { load_model(folder / "some"); },
               {"a tensor for each parameter", "'model.layers.2.self_attn.indexer."});
}

TEST(SharingFolders, ConversionLeavesIndexersBehind) {
  TemporaryFolder folder;
  auto model = trained(sharing_model({}), torch::kBFloat16);
  save_model(model, folder / "all");
  fs::create_directories(folder / "some");
  const Conversion made = convert_model(folder / "all", folder / "some", {.config = sharing_model({0, 2})});
  EXPECT_EQ(made.indexer_parameters, 0);
  std::int64_t dropped = 0;
  for (const auto& item : model->model->layers[1]->self_attn->indexer->named_parameters()) {
    dropped += item.value().numel();
  }
  EXPECT_EQ(made.dropped_parameters, 2 * dropped);
  const LoadedModel back = load_model(folder / "some");
  auto before = state(model);
  for (const auto& [name, tensor] : state(back.model)) EXPECT_TRUE(tensor.equal(before.at(name))) << name;
  EXPECT_EQ(back.model->config().index_layers, (std::vector<std::int64_t>{0, 2}));

  // They do not come back.
  fs::create_directories(folder / "again");
  expect_error(
      [&] {
        convert_model(folder / "some", folder / "again", {.config = sharing_model({0, 1})});
      },
      {"'config.index_layers'", "layer 1"});

  // A model that gets indexers gets as many as it is to have.
  ModelConfig dense = sharing_model({});
  apply(dense, System::standard);
  save_model(trained(dense), folder / "dense");
  fs::create_directories(folder / "new");
  const Conversion gained =
      convert_model(folder / "dense", folder / "new", {.config = sharing_model({0, 2})});
  EXPECT_EQ(gained.indexer_parameters, 2 * dropped);
  EXPECT_EQ(load_model(folder / "new").model->config().index_layers, (std::vector<std::int64_t>{0, 2}));
}

TEST(ModelFolder, HasTheShapeOfHuggingFace) {
  TemporaryFolder folder;
  ModelConfig config = small_model(small(AttentionConfig::gsa()));
  config.tie_embeddings = true;
  save_model(trained(config), folder.path(), {.dtype = DType::f16});
  const SafetensorsFile file(folder / "model.safetensors");
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);  // tied: written once
  const StoredTensor* mean = file.find("model.layers.2.self_attn.indexer.mean_variance");
  ASSERT_NE(mean, nullptr);
  EXPECT_EQ(mean->type, StoredType::f64);
  EXPECT_TRUE(mean->shape.empty());
  for (const StoredTensor& tensor : file.header().tensors) {
    if (!tensor.name.ends_with("mean_variance")) {
      EXPECT_EQ(tensor.type, StoredType::f16) << tensor.name;
    }
  }
  const Json json = parse_json(read_file(folder / "config.json", 1 << 20), "config.json");
  EXPECT_EQ(json["model_type"], "gated_sparse_attention");
  EXPECT_EQ(json["torch_dtype"], "float16");
}

TEST(ModelFolder, TypeIsConvertedOnRequest) {
  TemporaryFolder folder;
  auto model = trained(small_model(small(AttentionConfig::gsa())));
  save_model(model, folder.path(), {.dtype = DType::bf16});
  auto low = load_model(folder.path()).model;
  EXPECT_EQ(low->output_weight().scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::equal(low->output_weight(), model->output_weight().to(torch::kBFloat16)));
  auto wide = load_model(folder.path(), {.dtype = DType::f32}).model;
  EXPECT_TRUE(torch::equal(wide->output_weight(), low->output_weight().to(torch::kFloat32)));
  EXPECT_TRUE(torch::equal(mean_variances(wide)[0], mean_variances(model)[0]));
}

// Weights that a folder has are not drawn first; what is new is drawn as ever.
TEST(ModelFolder, LoadingDrawsOnlyWhatIsNew) {
  TemporaryFolder folder;
  ModelConfig config = small_model(small(AttentionConfig::gated_only()));
  config.attention.qkv_bias = true;
  save_model(trained(config), folder.path(), {.dtype = DType::bf16});
  torch::manual_seed(5);
  const auto drawn = [] { return at::detail::getDefaultCPUGenerator().get_state(); };
  const Tensor before = drawn();
  const auto loaded = load_model(folder.path()).model;
  EXPECT_TRUE(torch::equal(drawn(), before));
  for (const Tensor& parameter : loaded->parameters()) EXPECT_TRUE(parameter.requires_grad());
  ModelConfig wanted = config;
  wanted.attention.sparse = true;
  const auto more = load_model(folder.path(), {.config = wanted, .missing = MissingParts::initialise}).model;
  torch::manual_seed(5);
  const std::string name = "model.layers.1.self_attn.indexer.wq.weight";
  EXPECT_TRUE(torch::equal(state(more).at(name), state(Model(wanted)).at(name).to(torch::kBFloat16)));
}

TEST(ModelFolder, SavingAgainReplaces) {
  TemporaryFolder folder;
  const ModelConfig config = small_model(small(AttentionConfig::standard()));
  save_model(make_model(config, torch::kFloat32), folder.path());
  auto model = make_model(config, torch::kFloat32);
  {
    torch::NoGradGuard no_grad;
    model->output_weight().mul_(3);
  }
  save_model(model, folder.path());
  expect_equal_state(model, load_model(folder.path()).model);
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) files += entry.exists();
  EXPECT_EQ(files, 2u);
}

// ---- from one system to another ----

TEST(Conversion, MissingPartsAreNamedOrRefused) {
  TemporaryFolder folder;
  ModelConfig dense = small_model(small(AttentionConfig::standard()));
  auto model = make_model(dense, torch::kFloat32);
  save_model(model, folder.path());
  ModelConfig wanted = small_model(small(AttentionConfig::gsa()));
  expect_error([&] { load_model(folder.path(), {.config = wanted}); },
               {"a tensor for each parameter", "model.layers.0.self_attn.", "more"});

  const LoadedModel loaded =
      load_model(folder.path(), {.config = wanted, .missing = MissingParts::initialise});
  // Three layers: two gates with bias, three projections of the indexer, its bias and its running mean.
  EXPECT_EQ(loaded.initialised.size(), 3u * (4 + 3 + 1 + 1));
  for (const std::string& name : loaded.initialised)
    EXPECT_NE(kind_of_parameter(name), ParameterKind::base) << name;
  for (const auto& [name, tensor] : state(model))
    EXPECT_TRUE(torch::equal(tensor, state(loaded.model).at(name)));
  EXPECT_EQ(mean_variances(model).size(), 0u);
}

// New gates, folded into their neighbours, leave a dense model what it was; a bias of v is one.
TEST(Conversion, FoldedGatesKeepTheFunction) {
  for (const auto& [bias, gate_init] : {std::pair{false, 0.5}, {true, 0.5}, {true, 0.8}}) {
    SCOPED_TRACE(concat(bias, " ", gate_init));
    TemporaryFolder folder;
    ModelConfig dense = small_model(small(AttentionConfig::standard()));
    dense.attention.qkv_bias = bias;
    auto model = make_model(dense, torch::kFloat32);
    save_model(model, folder.path());
    ModelConfig gated = small_model(small(AttentionConfig::gated_only()));
    gated.attention.gate_init = gate_init;
    gated.attention.gate_init_std = 0;
    gated.attention.qkv_bias = bias;
    const Tensor tokens = random_tokens({2, 20});
    const Tensor before = model->forward(tokens).hidden;
    auto folded =
        load_model(folder.path(), {.config = gated, .missing = MissingParts::initialise_and_fold}).model;
    EXPECT_LT(max_error(folded->forward(tokens).hidden, before), 1e-5);
    auto plain = load_model(folder.path(), {.config = gated, .missing = MissingParts::initialise}).model;
    EXPECT_GT(max_error(plain->forward(tokens).hidden, before), 1e-2);
    // Only new gates are folded: a gated model loaded with the same option stays as it is.
    TemporaryFolder again;
    save_model(folded, again.path());
    expect_equal_state(folded,
                       load_model(again.path(), {.missing = MissingParts::initialise_and_fold}).model);
  }
}

TEST(Conversion, SizesMustAgree) {
  TemporaryFolder folder;
  save_model(make_model(small_model(small(AttentionConfig::standard())), torch::kFloat32), folder.path());
  ModelConfig other = small_model(small(AttentionConfig::standard()));
  other.layers = 4;
  expect_error([&] { load_model(folder.path(), {.config = other}); }, {"the folder's layers (3)", "got 4"});
  other = small_model(small(AttentionConfig::standard()));
  other.tie_embeddings = true;
  expect_error([&] { load_model(folder.path(), {.config = other}); }, {"tie_embeddings"});
}

// ---- damage ----

// Tensors of a file, to be changed and written again.
struct Contents {
  std::map<std::string, std::pair<StoredTensor, std::string>> tensors;
};

Contents read_all(const fs::path& path) {
  const SafetensorsFile file(path);
  Contents contents;
  for (const StoredTensor& tensor : file.header().tensors) {
    const auto bytes = file.bytes(tensor);
    contents.tensors[tensor.name] = {tensor,
                                     std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
  }
  return contents;
}

void write_all(const fs::path& path, const Contents& contents) {
  SafetensorsContent content;
  for (const auto& [name, item] : contents.tensors) {
    content.tensors.push_back(item.first);
    content.tensors.back().name = name;
  }
  content.bytes = [&](const StoredTensor& tensor) {
    const std::string& bytes = contents.tensors.at(tensor.name).second;
    return std::as_bytes(std::span(bytes.data(), bytes.size()));
  };
  write_safetensors(path, content);
}

struct Damage {
  const char* name;
  std::function<void(Contents&)> apply;
  std::vector<std::string> parts;
};

class DamagedWeights : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedWeights, AreRefusedByName) {
  TemporaryFolder folder;
  save_model(trained(small_model(small(AttentionConfig::gsa()))), folder.path());
  Contents contents = read_all(folder / "model.safetensors");
  GetParam().apply(contents);
  write_all(folder / "model.safetensors", contents);
  for (const std::string& part : GetParam().parts) expect_error([&] { load_model(folder.path()); }, {part});
}

INSTANTIATE_TEST_SUITE_P(
    ModelFolder, DamagedWeights,
    ::testing::Values(Damage{"missing",
                             [](Contents& c) { c.tensors.erase("model.norm.weight"); },
                             {"none for 'model.norm.weight'"}},
                      Damage{
                          "unknown",
                          [](Contents& c) { c.tensors["model.surprise"] = c.tensors["model.norm.weight"]; },
                          {"model.safetensors'", "'model.surprise'"}},
                      Damage{"shape",
                             [](Contents& c) {
                               c.tensors["model.norm.weight"].first.shape = {2, 12};
                             },
                             {"'model.norm.weight' to be of shape [24]", "[2, 12]"}},
                      Damage{"transposed",
                             [](Contents& c) {
                               std::swap(c.tensors["lm_head.weight"].first.shape[0],
                                         c.tensors["lm_head.weight"].first.shape[1]);
                             },
                             {"'lm_head.weight' to be of shape [37, 24]"}},
                      Damage{"integers",
                             [](Contents& c) { c.tensors["model.norm.weight"].first.type = StoredType::i32; },
                             {"'model.norm.weight' to be F32, BF16, F16 or F64", "got I32"}},
                      Damage{"mixed_types",
                             [](Contents& c) {
                               auto& [tensor, bytes] = c.tensors["model.norm.weight"];
                               tensor.type = StoredType::bf16;
                               bytes.resize(bytes.size() / 2);
                             },
                             {"'model.norm.weight' to be F32 like", "got BF16"}},
                      Damage{"mean_variance_type",
                             [](Contents& c) {
                               auto& [tensor, bytes] =
                                   c.tensors["model.layers.0.self_attn.indexer.mean_variance"];
                               tensor.type = StoredType::f32;
                               bytes.resize(4);
                             },
                             {"mean_variance' to be F64", "got F32"}}),
    [](const auto& test) { return std::string(test.param.name); });

// A part that config.json has is not made anew, whichever way a folder becomes another system.
TEST(Conversion, DamagedPartsAreRefused) {
  struct {
    AttentionConfig stored;
    std::function<void(Contents&)> damage;
    std::string part;
  } const cases[] = {
      {small(AttentionConfig::sparse_only()),
       [](Contents& c) {
         auto& [tensor, bytes] = c.tensors["model.layers.0.self_attn.indexer.mean_variance"];
         tensor.type = StoredType::f32;
         bytes.resize(4);
       },
       "mean_variance' to be F64"},
      {small(AttentionConfig::sparse_only()),
       [](Contents& c) { c.tensors.erase("model.layers.1.self_attn.indexer.wq.weight"); },
       "none for 'model.layers.1.self_attn.indexer.wq.weight'"},
      {small(AttentionConfig::gated_only()),
       [](Contents& c) {
         c.tensors.erase("model.layers.1.self_attn.value_gate.weight");
         c.tensors.erase("model.layers.1.self_attn.value_gate.bias");
       },
       "none for 'model.layers.1.self_attn.value_gate."},
      {small(AttentionConfig::standard()),
       [](Contents& c) {
         c.tensors["model.layers.0.self_attn.value_gate.bias"] = c.tensors["model.norm.weight"];
       },
       "value_gate.bias'"},
  };
  const ModelConfig wanted = small_model(small(AttentionConfig::gsa()));
  for (const auto& one : cases) {
    SCOPED_TRACE(one.part);
    TemporaryFolder folder, output;
    save_model(make_model(small_model(one.stored), torch::kFloat32), folder.path());
    Contents contents = read_all(folder / "model.safetensors");
    one.damage(contents);
    write_all(folder / "model.safetensors", contents);
    expect_error([&] { convert_model(folder.path(), output.path(), {.config = wanted}); }, {one.part});
    expect_error(
        [&] { load_model(folder.path(), {.config = wanted, .missing = MissingParts::initialise_and_fold}); },
        {one.part});
  }
}

TEST(ModelFolder, TiedHeadMayStandTwiceIfEqual) {
  TemporaryFolder folder;
  ModelConfig config = small_model(small(AttentionConfig::standard()));
  config.tie_embeddings = true;
  auto model = make_model(config, torch::kFloat32);
  save_model(model, folder.path());
  Contents contents = read_all(folder / "model.safetensors");
  contents.tensors["lm_head.weight"] = contents.tensors["model.embed_tokens.weight"];
  contents.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = contents.tensors["model.norm.weight"];
  write_all(folder / "model.safetensors", contents);
  expect_equal_state(model, load_model(folder.path()).model);
  contents.tensors["lm_head.weight"].second[5] ^= 1;
  write_all(folder / "model.safetensors", contents);
  expect_error([&] { load_model(folder.path()); }, {"'lm_head.weight' to be the embedding's"});
}

TEST(ModelFolder, CutFilesAreRefused) {
  TemporaryFolder folder;
  save_model(trained(small_model(small(AttentionConfig::gsa()))), folder.path());
  const auto size = fs::file_size(folder / "model.safetensors");
  for (const std::uintmax_t cut :
       {size - 1, size / 2, std::uintmax_t{100}, std::uintmax_t{4}, std::uintmax_t{0}}) {
    fs::resize_file(folder / "model.safetensors", cut);
    expect_error([&] { load_model(folder.path()); }, {"model.safetensors'", "expected", "got"});
  }
  fs::remove(folder / "model.safetensors");
  expect_error([&] { load_model(folder.path()); },
               {"model.safetensors or model.safetensors.index.json", "neither"});
  fs::remove(folder / "config.json");
  expect_error([&] { load_model(folder.path()); }, {"config.json", "No such file"});
}

TEST(ModelFolder, AbsurdConfigurationAllocatesNothing) {
  TemporaryFolder folder;
  save_model(make_model(small_model(small(AttentionConfig::standard())), torch::kFloat32), folder.path());
  Json json = parse_json(read_file(folder / "config.json", 1 << 20), "config.json");
  json["vocab_size"] = 2'000'000'000;
  json["hidden_size"] = 4096;
  std::ofstream(folder / "config.json") << json.dump();
  expect_error([&] { load_model(folder.path()); }, {"parameters of config.json"});
}

// ---- shards ----

void write_shards(const TemporaryFolder& folder, const Model& model,
                  const std::function<void(Json&)>& change) {
  save_model(model, folder.path());
  const Contents all = read_all(folder / "model.safetensors");
  Contents parts[2];
  Json index;
  index["metadata"] = {{"total_size", 1}};
  int n = 0;
  for (const auto& [name, item] : all.tensors) {
    parts[n % 2].tensors[name] = item;
    index["weight_map"][name] =
        n++ % 2 == 0 ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
  }
  write_all(folder / "model-00001-of-00002.safetensors", parts[0]);
  write_all(folder / "model-00002-of-00002.safetensors", parts[1]);
  change(index);
  std::ofstream(folder / "model.safetensors.index.json") << index.dump();
  fs::remove(folder / "model.safetensors");
}

TEST(Shards, AreRead) {
  TemporaryFolder folder;
  auto model = trained(small_model(small(AttentionConfig::gsa())));
  write_shards(folder, model, [](Json&) {});
  expect_equal_state(model, load_model(folder.path()).model);
  expect_error([&] { save_model(model, folder.path()); }, {"without model.safetensors.index.json"});
  fs::copy_file(folder / "model-00001-of-00002.safetensors", folder / "model.safetensors");
  expect_error([&] { load_model(folder.path()); }, {"both"});
}

TEST(Shards, IndexAndFilesMustAgree) {
  auto model = trained(small_model(small(AttentionConfig::gsa())));
  const auto refuse = [&](const std::function<void(Json&)>& change,
                          std::initializer_list<std::string> parts) {
    TemporaryFolder folder;
    write_shards(folder, model, change);
    expect_error([&] { load_model(folder.path()); }, parts);
  };
  refuse([](Json& j) { j["weight_map"]["model.norm.weight"] = "../x.safetensors"; },
         {"plain file name", "../x"});
  refuse([](Json& j) { j["weight_map"]["model.norm.weight"] = 3; }, {"plain file name", "got 3"});
  refuse([](Json& j) { j["weight_map"]["model.norm.weight"] = "other.safetensors"; },
         {"places there", "also \"model.norm.weight\""});
  refuse([](Json& j) { j["weight_map"].erase("model.norm.weight"); },
         {"places there", "also \"model.norm.weight\""});
  refuse([](Json& j) { j["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"; },
         {"tensor \"ghost\"", "got none"});
  refuse([](Json& j) { j["weight_map"] = 4; }, {"'weight_map'"});
  refuse([](Json& j) { j["extra"] = 4; }, {"weight_map and metadata", "\"extra\""});
}

}  // namespace
}  // namespace gsa::nn::testing
