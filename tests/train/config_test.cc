#include "train/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "model/cost.h"
#include "model/errors.h"
#include "model/temporary_folder.h"
#include "train/memory.h"
#include "train/model_sizes.h"

namespace gsa::train {
namespace {

using gsa::testing::expect_error;

TrainConfig valid() {
  TrainConfig config;
  config.data.train = "data";
  config.output.folder = "run";
  config.phases.sparse = 100;
  return config;
}

TEST(TrainConfig, ReadsToml) {
  TrainConfig config;
  read_toml_text(config,
                 "precision = \"bf16\"\n[optimizer]\nlr = 3e-4\nclip = 2\n[phases]\nsparse = 7\n"
                 "[guard]\nskip_spikes = true\n[output]\nfolder = \"a b\"\n",
                 "x.toml");
  EXPECT_EQ(config.precision, "bf16");
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.clip, 2);
  EXPECT_EQ(config.phases.sparse, 7);
  EXPECT_TRUE(config.guard.skip_spikes);
  EXPECT_EQ(config.output.folder, "a b");
  EXPECT_EQ(config.batch.rows, TrainConfig().batch.rows);
}

TEST(TrainConfig, PathsInAFileBeginAtTheFile) {
  TrainConfig config;
  const std::string text =
      "[model]\nfrom = \"../base\"\n[data]\ntrain = \"/data/train\"\n[output]\nfolder = \".\"\n"
      "sample_prompt = \"./a\"\n";
  read_toml_text(config, text, "config.toml", "runs/a");
  EXPECT_EQ(config.model.from, "runs/base");
  EXPECT_EQ(config.data.train, "/data/train");
  EXPECT_EQ(config.data.validation, "");
  EXPECT_EQ(config.output.folder, "runs/a");
  EXPECT_EQ(config.output.sample_prompt, "./a");
  set_option(config, "output.folder=runs/b");
  EXPECT_EQ(config.output.folder, "runs/b");
  const TrainConfig absolute = with_absolute_paths(config);
  EXPECT_EQ(absolute.output.folder, (std::filesystem::current_path() / "runs/b").string());
  EXPECT_EQ(absolute.data.train, "/data/train");
  EXPECT_EQ(absolute.data.validation, "");
}

// Files of older runs call the phases spans.
TEST(TrainConfig, OldNamesAreRead) {
  TrainConfig config;
  read_toml_text(config, "[spans]\ndense = 5\nwarmup = 2\n", "x.toml");
  set_option(config, "spans.sparse=4");
  EXPECT_EQ(config.phases.dense, 5);
  EXPECT_EQ(config.phases.warmup, 2);
  EXPECT_EQ(config.phases.sparse, 4);
  read_toml_text(config, "[spans]\n", "x.toml");
  EXPECT_EQ(config.steps(), 11);
  expect_error([&] { set_option(config, "spans.dense=3x"); }, {"'spans.dense'", "'3x'"});
}

TEST(TrainConfig, MistakesInAFileAreNamed) {
  const auto complain = [](const std::string& text, std::initializer_list<std::string> parts) {
    expect_error(
        [&] {
          TrainConfig config;
          read_toml_text(config, text, "x.toml");
        },
        parts);
  };
  complain("[optimizer]\n\nlearning = 1\n", {"x.toml", "line 3", "optimizer.learning"});
  complain("[optimiser]\nlr = 1\n", {"'optimiser.lr'", "did you mean 'optimizer.lr'"});
  complain("[phases]\nspars = 1\n", {"did you mean 'phases.sparse'"});
  complain("[modle]\n", {"'modle'"});
  complain("[optimizer]\nlr = \"fast\"\n", {"optimizer.lr", "a number", "fast"});
  complain("[optimizer]\nlr = -1.0\n", {"optimizer.lr", "from 0 to 10", "-1"});
  complain("[optimizer]\nlr = nan\n", {"optimizer.lr"});
  complain("[phases]\ndense = 1.5\n", {"phases.dense", "a whole number", "1.5"});
  complain("[phases]\ndense = [1]\n", {"phases.dense", "a list"});
  complain("[guard]\nskip_spikes = 1\n", {"guard.skip_spikes", "true or false", "1"});
  complain("precision = \"fp16\"\n", {"precision", "auto, fp32 or bf16", "fp16"});
  complain("[model]\npreset = \"smal\"\n", {"model.preset", "did you mean 'small'"});
  complain("[phases]\ndense = 1\n[spans]\ndense = 2\n", {"x.toml", "line 3", "[phases]", "got both"});
  complain("[phases\n", {"x.toml", "line 1", "TOML"});
  complain("seed = 1\nseed = 2\n", {"line 2"});
}

TEST(TrainConfig, SetsOptionsFromTheCommandLine) {
  TrainConfig config;
  set_option(config, "optimizer.lr=1e-2");
  set_option(config, "phases.dense=3");
  set_option(config, "output.sample_prompt=a = b");
  set_option(config, "output.tensorboard=false");
  EXPECT_EQ(config.optimizer.lr, 1e-2);
  EXPECT_EQ(config.phases.dense, 3);
  EXPECT_EQ(config.output.sample_prompt, "a = b");
  EXPECT_FALSE(config.output.tensorboard);
  expect_error([&] { set_option(config, "optimizer.lr"); }, {"key=value"});
  expect_error([&] { set_option(config, "=1"); }, {"key=value"});
  expect_error([&] { set_option(config, "optimizer.rl=1"); }, {"did you mean 'optimizer.lr'"});
  expect_error([&] { set_option(config, "phases.dense=3x"); }, {"phases.dense", "'3x'"});
  expect_error([&] { set_option(config, "phases.dense="); }, {"phases.dense", "''"});
  expect_error([&] { set_option(config, "phases.dense=inf"); }, {"phases.dense"});
  expect_error([&] { set_option(config, "output.tensorboard=yes"); }, {"true or false", "'yes'"});
}

// What is printed is read back to the same, for every option.
TEST(TrainConfig, PrintsWhatItReads) {
  TrainConfig config;
  config.optimizer.lr = 0.1 + 0.2;
  config.output.sample_prompt = "\"quoted\" \\ and\nlines\t";
  config.seed = 123456789;
  for (Option& option : options_of(config)) {
    if (!option.choices.empty()) *std::get<std::string*>(option.target) = option.choices.back();
    if (auto* flag = std::get_if<bool*>(&option.target)) **flag = !**flag;
  }
  TrainConfig again;
  read_toml_text(again, to_toml(config), "printed");
  const auto a = options_of(config), b = options_of(again);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].value(), b[i].value()) << a[i].key;
  EXPECT_EQ(again.optimizer.lr, 0.1 + 0.2);
}

TEST(TrainConfig, HelpNamesEveryOptionOnceAndItsDefaultsAreAllowed) {
  const std::string help = options_help();
  TrainConfig config;
  std::set<std::string> keys;
  for (const Option& option : options_of(config)) {
    EXPECT_TRUE(keys.insert(option.key).second) << option.key;
    EXPECT_NE(help.find(option.help), std::string::npos) << option.key;
    EXPECT_FALSE(option.help.empty()) << option.key;
  }
  TrainConfig again;
  read_toml_text(again, help, "help");  // help is a valid file
  EXPECT_EQ(to_toml(again), to_toml(TrainConfig()));
}

TEST(TrainConfig, ResolvesWhatFollows) {
  TrainConfig config = valid();
  config.resolve();
  EXPECT_EQ(config.model.preset, "tiny");
  EXPECT_EQ(config.model.system, "gsa");
  EXPECT_EQ(config.optimizer.warmup_steps, 5);
}

TEST(TrainConfig, TheIndexersLoss) {
  TrainConfig config = valid();
  EXPECT_EQ(config.kl_support, "all");
  EXPECT_EQ(config.kl_share, 1.0 / 64);
  for (const char* share : {"1", "0.5", "0.333333333", "0.001"}) {
    set_option(config, std::string("kl_share=") + share);
    EXPECT_NO_THROW(config.resolve()) << share;
  }
  set_option(config, "kl_support=selected");
  EXPECT_NO_THROW(config.resolve());
  expect_error([&] { set_option(config, "kl_share=0"); }, {"kl_share", "0.001", "'0'"});
  expect_error([&] { set_option(config, "kl_share=2"); }, {"kl_share", "'2'"});
  expect_error([&] { set_option(config, "kl_support=sparse"); }, {"kl_support", "all", "selected"});
}

TEST(TrainConfig, ContradictionsAreRefused) {
  const auto complain = [](const auto& change, std::initializer_list<std::string> parts) {
    expect_error(
        [&] {
          TrainConfig config = valid();
          change(config);
          config.resolve();
        },
        parts);
  };
  complain([](TrainConfig& c) { c.data.train.clear(); }, {"data.train", "gsa tokenize"});
  complain([](TrainConfig& c) { c.output.folder.clear(); }, {"output.folder"});
  complain([](TrainConfig& c) { c.phases.sparse = 0; }, {"phases", "at least one step"});
  complain([](TrainConfig& c) { c.batch.tokens = 1000; }, {"batch.tokens", "multiple of data.length = 512"});
  complain([](TrainConfig& c) { c.optimizer.warmup_steps = 101; }, {"optimizer.warmup_steps", "100"});
  complain([](TrainConfig& c) { c.optimizer.decay_steps = 10; }, {"optimizer.decay_steps", "wsd"});
  complain(
      [](TrainConfig& c) {
        c.model.from = std::string("x");
        c.model.preset = std::string("small");
      },
      {"model.preset", "model.from"});
  complain([](TrainConfig& c) { c.output.sample_prompt = std::string("x"); },
           {"output.sample_prompt", "sample_every"});
  complain([](TrainConfig& c) { c.model.extend = 0.5; }, {"model.extend"});
  complain([](TrainConfig& c) { c.kl_share = 0.3; }, {"kl_share", "1/n", "0.3"});
}

TEST(TrainConfig, DescribesTheModel) {
  TrainConfig config = valid();
  config.model.system = "sparse-only";
  config.model.k_base = 100;
  config.model.output_gate = "headwise";
  config.resolve();
  const nn::ModelConfig model = config.model_config(258, std::nullopt);
  EXPECT_EQ(model.vocab_size, 258);
  EXPECT_EQ(model.max_positions, config.data.length);
  EXPECT_EQ(model.attention.budget.base, 100);
  EXPECT_EQ(model.attention.output_gate, nn::GateKind::headwise);
  EXPECT_EQ(model.attention.value_gate, nn::GateKind::none);
  EXPECT_EQ(model.attention.indexer.form, ScoreForm::relu);

  config.model.vocab_size = 100;
  expect_error([&] { config.model_config(258, std::nullopt); }, {"model.vocab_size", "258", "100"});
  config.model.vocab_size = 0;
  expect_error([&] { config.model_config(model.vocab_size + 1, model); }, {"model.from", "259", "258"});

  config.model.system = "standard";
  expect_error([&] { config.model_config(258, std::nullopt); }, {"model.system", "k_base"});
  config.model.k_base = 0;
  expect_error([&] { config.model_config(258, std::nullopt); }, {"phases", "no indexer", "100 sparse"});
  config.phases.dense = 100;
  config.phases.sparse = 0;
  EXPECT_FALSE(config.model_config(258, std::nullopt).attention.sparse);

  // A stored model keeps what it is meant for, also where rows are shorter.
  nn::ModelConfig longer = model;
  longer.max_positions = 4 * config.data.length;
  EXPECT_EQ(config.model_config(258, longer).max_positions, 4 * config.data.length);

  config.data.length = 1 << 20;
  expect_error([&] { config.model_config(258, model); }, {"data.length", "model.extend"});
}

TEST(TrainConfig, SizesAreSetOverThePreset) {
  TrainConfig config = valid();
  read_toml_text(
      config,
      "[model]\npreset = \"small\"\nlayers = 6\nd_model = 320\nintermediate_size = 864\nheads = 10\n"
      "kv_heads = 5\nhead_size = 32\nvocab_size = 16384\nrope_theta = 5e5\ntie_embeddings = false\n"
      "dense_below = 128\nindex_heads = 2\nindex_head_size = 24\nindex_rope_fraction = 0.5\n"
      "index_temperature = 0.25\nindex_temperature_learned = true\nindex_variance_momentum = 0.9\n",
      "x.toml");
  config.resolve();
  const nn::ModelConfig model = config.model_config(258, std::nullopt);
  const nn::AttentionConfig& a = model.attention;
  EXPECT_EQ(model.layers, 6);
  EXPECT_EQ(model.intermediate, 864);
  EXPECT_EQ(model.vocab_size, 16384);
  EXPECT_FALSE(model.tie_embeddings);
  EXPECT_EQ(a.d_model, 320);
  EXPECT_EQ(a.heads, 10);
  EXPECT_EQ(a.kv_heads, 5);
  EXPECT_EQ(a.head_size, 32);
  EXPECT_EQ(a.rope.theta, 5e5);
  EXPECT_EQ(a.dense_below, 128);
  EXPECT_EQ(a.indexer.heads, 2);
  EXPECT_EQ(a.indexer.head_size, 24);
  EXPECT_EQ(a.indexer.rope_fraction, 0.5);
  EXPECT_EQ(a.indexer.temperature.value, 0.25);
  EXPECT_TRUE(a.indexer.temperature.learned);
  EXPECT_EQ(a.indexer.mean_variance_momentum, 0.9);
  EXPECT_EQ(a.budget.base, nn::ModelConfig::preset("small").attention.budget.base);
  // Left alone, everything is the preset's.
  TrainConfig plain = valid();
  plain.model.preset = "small";
  plain.resolve();
  nn::ModelConfig preset = nn::ModelConfig::preset("small");
  preset.vocab_size = 258;
  preset.max_positions = plain.data.length;
  EXPECT_EQ(plain.model_config(258, std::nullopt).describe(), preset.describe());
  // Sizes that do not go together, by the field's name; values that no option has, by the option's.
  config.model.kv_heads = 3;
  expect_error([&] { config.model_config(258, std::nullopt); }, {"kv_heads", "divisor of heads (10)", "3"});
  config.model.kv_heads = 5;
  config.model.index_rope_fraction = -0.5;
  expect_error([&] { config.model_config(258, std::nullopt); }, {"indexer.rope_fraction", "-0.5"});
  expect_error([&] { set_option(config, "model.head_size=512"); }, {"model.head_size", "512"});
  expect_error([&] { set_option(config, "model.tie_embeddings=yes"); },
               {"model.tie_embeddings", "true or false"});
  expect_error([&] { read_toml_text(config, "[model]\nsystem = true\n", "x.toml"); },
               {"model.system", "true"});
}

TEST(TrainConfig, AFoldersSizesAreNotContradicted) {
  nn::ModelConfig stored = nn::ModelConfig::preset("tiny");
  const auto config_of = [](const char* assignment) {
    TrainConfig config = valid();
    config.model.from = "some/folder";
    set_option(config, assignment);
    config.resolve();
    return config;
  };
  const auto refused = [&](const char* key, const char* theirs, const char* asked) {
    SCOPED_TRACE(key);
    EXPECT_NO_THROW(config_of(concat(key, "=", theirs).c_str()).model_config(258, stored));
    expect_error(
        [&] { config_of(concat(key, "=", asked).c_str()).model_config(258, stored); },
        {key, concat("expected ", theirs, ", as the folder 'some/folder' has it"), concat("got ", asked)});
  };
  refused("model.vocab_size", "258", "300");
  refused("model.layers", "4", "5");
  refused("model.d_model", "128", "64");
  refused("model.intermediate_size", "352", "353");
  refused("model.heads", "4", "8");
  refused("model.kv_heads", "2", "4");
  refused("model.head_size", "32", "16");
  refused("model.tie_embeddings", "true", "false");
  refused("model.index_heads", "4", "3");
  refused("model.index_head_size", "16", "32");
  refused("model.index_rope_fraction", "1", "0.5");
  // What no weight depends on may change.
  EXPECT_EQ(config_of("model.dense_below=64").model_config(258, stored).attention.dense_below, 64);
  EXPECT_EQ(
      config_of("model.index_temperature=0.25").model_config(258, stored).attention.indexer.temperature.value,
      0.25);
  EXPECT_EQ(config_of("model.rope_theta=1e6").model_config(258, stored).attention.rope.theta, 1e6);
  stored.attention.indexer.temperature = {0.5, true};
  refused("model.index_temperature", "0.5", "0.25");
  refused("model.index_temperature_learned", "true", "false");
  // A folder without an indexer leaves it free.
  apply(stored, nn::System::gated_only);
  TrainConfig config = config_of("model.index_head_size=32");
  config.model.system = "gsa";
  EXPECT_EQ(config.model_config(258, stored).attention.indexer.head_size, 32);
  config.model.system = "gated-only";
  config.phases = {.dense = 1, .warmup = 0, .sparse = 0};
  expect_error([&] { config.model_config(258, stored); }, {"model.system", "model.index_head_size"});
}

TEST(TrainConfig, LayersMayShareASelection) {
  using List = std::vector<std::int64_t>;
  const auto layers_of = [](std::initializer_list<const char*> assignments,
                            const std::optional<nn::ModelConfig>& stored = std::nullopt) {
    TrainConfig config = valid();
    if (stored) config.model.from = "some/folder";
    for (const char* assignment : assignments) set_option(config, assignment);
    config.resolve();
    return config.model_config(258, stored).index_layers;
  };
  // tiny has four layers.
  EXPECT_EQ(layers_of({}), List());
  EXPECT_EQ(layers_of({"model.index_every=1"}), List());
  EXPECT_EQ(layers_of({"model.index_every=2"}), (List{0, 2}));
  EXPECT_EQ(layers_of({"model.index_every=2", "model.layers=7"}), (List{0, 2, 4, 6}));
  EXPECT_EQ(layers_of({"model.index_layers=0, 3"}), (List{0, 3}));
  EXPECT_EQ(layers_of({"model.index_layers=0,1,2,3"}), List());
  expect_error(
      [&] {
        layers_of({"model.index_every=2", "model.index_layers=0,3"});
      },
      {"model.index_layers", "none beside model.index_every"});
  expect_error([&] { layers_of({"model.index_layers=0,3,"}); }, {"index_layers", "such as 0,4,9"});
  expect_error([&] { layers_of({"model.index_layers=1,3"}); }, {"index_layers", "the first 0"});
  expect_error([&] { layers_of({"model.index_layers=0,4"}); }, {"index_layers", "0 .. 3"});
  // What a folder has may be repeated; conversion leaves indexers behind, and none comes back.
  nn::ModelConfig stored = nn::ModelConfig::preset("tiny");
  EXPECT_EQ(layers_of({"model.index_every=1"}, stored), List());
  expect_error(
      [&] { layers_of({"model.index_every=2"}, stored); },
      {"model.index_every", "some/folder", "every layer", "gsa convert --index-every", "got layers 0, 2"});
  stored.index_layers = {0, 2};
  EXPECT_EQ(layers_of({}, stored), (List{0, 2}));
  EXPECT_EQ(layers_of({"model.index_every=2"}, stored), (List{0, 2}));
  EXPECT_EQ(layers_of({"model.index_layers=0,2"}, stored), (List{0, 2}));
  expect_error([&] { layers_of({"model.index_every=1"}, stored); },
               {"model.index_every", "0, 2", "every layer"});
  // A folder without an indexer leaves it free.
  apply(stored, nn::System::gated_only);
  EXPECT_EQ(layers_of({"model.system=gsa", "model.index_every=3"}, stored), (List{0, 3}));
  expect_error(
      [&] {
        TrainConfig config = valid();
        config.model.system = "gated-only";
        config.model.index_every = 2;
        config.phases = {.dense = 1, .warmup = 0, .sparse = 0};
        config.resolve();
        config.model_config(258, std::nullopt);
      },
      {"model.system", "model.index_every"});
}

TEST(TrainConfig, GateInitIsOfNewGates) {
  const auto gate_init = [](std::initializer_list<const char*> assignments,
                            const std::optional<nn::ModelConfig>& stored = std::nullopt) {
    TrainConfig config = valid();
    config.phases = {.dense = 1, .warmup = 0, .sparse = 0};
    if (stored) config.model.from = "some/folder";
    for (const char* assignment : assignments) set_option(config, assignment);
    config.resolve();
    return config.model_config(258, stored).attention.gate_init;
  };
  nn::ModelConfig standard = nn::ModelConfig::preset("tiny"), gated = standard, half_gated = standard;
  apply(standard, nn::System::standard);
  apply(gated, nn::System::gated_only);
  apply(half_gated, nn::System::gated_only);
  half_gated.attention.value_gate = nn::GateKind::none;
  gated.attention.gate_init = 0.5;
  EXPECT_EQ(gate_init({}), 0.9);
  EXPECT_EQ(gate_init({}, gated), 0.5);
  EXPECT_EQ(gate_init({"model.system=gated-only"}, standard), 0.5);
  EXPECT_EQ(gate_init({"model.gate_init=0.75"}), 0.75);
  EXPECT_EQ(gate_init({"model.gate_init=0.75", "model.system=gated-only"}, standard), 0.75);
  EXPECT_EQ(gate_init({"model.gate_init=0.75", "model.value_gate=headwise"}, half_gated), 0.75);
  EXPECT_EQ(gate_init({"model.gate_init=0.5"}, gated), 0.5);
  expect_error([&] { gate_init({"model.gate_init=0.75"}, gated); },
               {"model.gate_init", "expected 0.5, as the folder 'some/folder' has it", "got 0.75"});
  for (const auto& stored : {std::optional<nn::ModelConfig>(), std::optional(standard)}) {
    expect_error(
        [&] {
          gate_init({"model.gate_init=0.75", "model.system=standard"}, stored);
        },
        {"model.gate_init", "none for a model without gates", "got 0.75"});
  }
  expect_error([&] { gate_init({"model.gate_init=1"}); }, {"model.gate_init", "1"});
}

TEST(TrainConfig, ANewFormBringsItsTemperatureUnlessOneIsSet) {
  const auto temperature = [](std::initializer_list<const char*> assignments,
                              const std::optional<nn::ModelConfig>& stored = std::nullopt) {
    TrainConfig config = valid();
    if (stored) config.model.from = "folder";
    for (const char* assignment : assignments) set_option(config, assignment);
    config.resolve();
    return config.model_config(258, stored).attention.indexer.temperature.value;
  };
  EXPECT_EQ(temperature({}), 0.1);
  EXPECT_EQ(temperature({"model.system=sparse-only"}), 1);
  EXPECT_EQ(temperature({"model.score_form=relu"}), 1);
  EXPECT_EQ(temperature({"model.score_form=relu", "model.index_temperature=0.2"}), 0.2);
  EXPECT_EQ(temperature({"model.system=sparse-only", "model.score_form=sigmoid"}), 0.1);
  // A folder keeps what it has; one without an indexer gets a new one.
  nn::ModelConfig old = nn::ModelConfig::preset("tiny");
  old.attention.indexer.temperature.value = 1;
  EXPECT_EQ(temperature({"model.system=gsa"}, old), 1);
  nn::ModelConfig dense = nn::ModelConfig::preset("tiny");
  apply(dense, nn::System::gated_only);
  EXPECT_EQ(temperature({"model.system=gsa"}, dense), 0.1);
  EXPECT_EQ(temperature({"model.system=sparse-only"}, dense), 1);
}

TEST(TrainConfig, SaysWhereSparseStepsDoNotPay) {
  TrainConfig config = valid();
  config.data.length = 8192;
  nn::AttentionConfig attention;
  EXPECT_EQ(length_note(config, attention, /*on_gpu=*/false), "");
  EXPECT_NE(length_note(config, attention, true).find("model.dense_below=16384"), std::string::npos);
  for (const std::int64_t bound : {1024, 8192}) {  // whoever sets one has decided
    attention.dense_below = bound;
    EXPECT_EQ(length_note(config, attention, true), "") << bound;
  }
  attention.dense_below = 16384;
  for (const bool on_gpu : {false, true}) {
    const std::string note = length_note(config, attention, on_gpu);
    for (const char* part : {"run dense", "8192", "16384", "model.dense_below=0"}) {
      EXPECT_NE(note.find(part), std::string::npos) << note;
    }
  }
  config.data.length = 16384;
  EXPECT_EQ(length_note(config, attention, true), "");
  attention.dense_below = 0;
  EXPECT_EQ(length_note(config, attention, true), "");
  config.data.length = 8192;
  config.phases = {.dense = 100, .warmup = 10, .sparse = 0};
  EXPECT_EQ(length_note(config, attention, true), "");
}

TEST(TrainConfig, SaysWhereFewQueriesTeachTheIndexer) {
  TrainConfig config = valid();
  config.batch.tokens = 65536;
  EXPECT_EQ(sample_note(config), "");
  config.batch.tokens = 8192;
  const std::string note = sample_note(config);
  for (const char* part : {"128 queries", "kl_share=0.125 takes 1024"}) {
    EXPECT_NE(note.find(part), std::string::npos) << note;
  }
  config.kl_support = "selected";  // of every query
  EXPECT_EQ(sample_note(config), "");
  config.phases.warmup = 1;  // always a sample
  EXPECT_EQ(sample_note(config), note);
  config.kl_share = 0.125;
  EXPECT_EQ(sample_note(config), "");
  config.kl_share = 1;
  config.batch.tokens = 512;
  EXPECT_EQ(sample_note(config), "");
  config.kl_share = 0.015625;
  config.phases = {.dense = 100, .warmup = 0, .sparse = 0};
  EXPECT_EQ(sample_note(config), "");
}

TEST(TrainConfig, AFolderWithoutAnIndexerGetsKByTheLength) {
  nn::ModelConfig stored = nn::ModelConfig::preset("small");
  stored.max_positions = 1 << 17;
  const nn::BudgetConfig own = stored.attention.budget;
  const auto budget = [&](std::int64_t length, std::int64_t k_base = 0, std::int64_t k_max = 0) {
    TrainConfig config = valid();
    config.model.from = "folder";
    config.model.system = "gsa";
    config.model.k_base = k_base;
    config.model.k_max = k_max;
    config.data.length = length;
    config.batch.tokens = length;
    config.resolve();
    return config.model_config(258, stored).attention.budget;
  };
  EXPECT_EQ(budget(8192).base, own.base);  // it has an indexer
  apply(stored, nn::System::standard);
  const auto same = [](const nn::BudgetConfig& b, std::int64_t base, std::int64_t min, std::int64_t max) {
    EXPECT_EQ(b.base, base);
    EXPECT_EQ(b.min, min);
    EXPECT_EQ(b.max, max);
  };
  same(budget(4096), 512, 64, 1024);  // the preset small at its own length
  same(budget(8192), 1024, 128, 2048);
  same(budget(131072), 16384, 2048, 32768);
  same(budget(1000), 128, 16, 256);
  same(budget(512), 64, 8, 128);
  same(budget(48), 6, 1, 12);
  same(budget(4), 1, 1, 2);
  same(budget(8192, 256), 256, 32, 512);
  same(budget(8192, 256, 300), 256, 32, 300);
}

TEST(TrainMemory, WhatDoesNotFitIsRefusedWithWhatWould) {
  TrainConfig config = valid();
  config.precision = "fp32";
  config.data.length = 1000;
  config.batch.tokens = 64'000;
  config.batch.rows = 64;
  const nn::ModelConfig model = nn::ModelConfig::preset("tiny");
  const auto need = [&](std::int64_t rows, bool checkpointed) {
    return static_cast<std::int64_t>(
        nn::training_memory(model,
                            {.tokens = rows * 1000, .length = 1000, .checkpoint_activations = checkpointed})
            .total());
  };
  const auto room = [](std::int64_t bytes) { return MemoryRoom{bytes, "the machine"}; };
  EXPECT_NO_THROW(check_memory(config, model, room(need(64, false) + 1)));
  const auto refused = [&](std::int64_t bytes, const std::string& advice) {
    expect_error([&] { check_memory(config, model, room(bytes)); },
                 {"training needs about", "64 rows of 1000 tokens", "the machine has", advice});
  };
  refused(need(64, false) - 1, "batch.rows=63 would fit");
  refused(need(5, false) + 1, "batch.rows=5 would fit");
  refused(need(1, false) - 1, "checkpoint_activations=true with batch.rows=");
  refused(need(1, true) - 1, "not even one row fits");
  refused(1000, "the weights alone do not fit");
}

}  // namespace
}  // namespace gsa::train
