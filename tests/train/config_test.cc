#include "train/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "model/errors.h"
#include "model/temporary_folder.h"

namespace gsa::train {
namespace {

using gsa::testing::expect_error;

TrainConfig valid() {
  TrainConfig config;
  config.data.train = "data";
  config.output.folder = "run";
  config.spans.sparse = 100;
  return config;
}

TEST(TrainConfig, ReadsToml) {
  TrainConfig config;
  read_toml_text(config,
                 "precision = \"bf16\"\n[optimizer]\nlr = 3e-4\nclip = 2\n[spans]\nsparse = 7\n"
                 "[guard]\nskip_spikes = true\n[output]\nfolder = \"a b\"\n",
                 "x.toml");
  EXPECT_EQ(config.precision, "bf16");
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.clip, 2);
  EXPECT_EQ(config.spans.sparse, 7);
  EXPECT_TRUE(config.guard.skip_spikes);
  EXPECT_EQ(config.output.folder, "a b");
  EXPECT_EQ(config.batch.rows, TrainConfig().batch.rows);
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
  complain("[spans]\nspars = 1\n", {"did you mean 'spans.sparse'"});
  complain("[modle]\n", {"'modle'"});
  complain("[optimizer]\nlr = \"fast\"\n", {"optimizer.lr", "a number", "fast"});
  complain("[optimizer]\nlr = -1.0\n", {"optimizer.lr", "from 0 to 10", "-1"});
  complain("[optimizer]\nlr = nan\n", {"optimizer.lr"});
  complain("[spans]\ndense = 1.5\n", {"spans.dense", "a whole number", "1.5"});
  complain("[spans]\ndense = [1]\n", {"spans.dense", "a list"});
  complain("[guard]\nskip_spikes = 1\n", {"guard.skip_spikes", "true or false", "1"});
  complain("precision = \"fp16\"\n", {"precision", "auto, fp32 or bf16", "fp16"});
  complain("[model]\npreset = \"smal\"\n", {"model.preset", "did you mean 'small'"});
  complain("[spans\n", {"x.toml", "line 1", "TOML"});
  complain("seed = 1\nseed = 2\n", {"line 2"});
}

TEST(TrainConfig, SetsOptionsFromTheCommandLine) {
  TrainConfig config;
  set_option(config, "optimizer.lr=1e-2");
  set_option(config, "spans.dense=3");
  set_option(config, "output.sample_prompt=a = b");
  set_option(config, "output.tensorboard=false");
  EXPECT_EQ(config.optimizer.lr, 1e-2);
  EXPECT_EQ(config.spans.dense, 3);
  EXPECT_EQ(config.output.sample_prompt, "a = b");
  EXPECT_FALSE(config.output.tensorboard);
  expect_error([&] { set_option(config, "optimizer.lr"); }, {"key=value"});
  expect_error([&] { set_option(config, "=1"); }, {"key=value"});
  expect_error([&] { set_option(config, "optimizer.rl=1"); }, {"did you mean 'optimizer.lr'"});
  expect_error([&] { set_option(config, "spans.dense=3x"); }, {"spans.dense", "'3x'"});
  expect_error([&] { set_option(config, "spans.dense="); }, {"spans.dense", "''"});
  expect_error([&] { set_option(config, "spans.dense=inf"); }, {"spans.dense"});
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
  EXPECT_EQ(config.kl_share, 0.0625);
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
  complain([](TrainConfig& c) { c.spans.sparse = 0; }, {"spans", "at least one step"});
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
  complain([](TrainConfig& c) { c.model.yarn_factor = 0.5; }, {"model.yarn_factor"});
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
  expect_error([&] { config.model_config(258, std::nullopt); }, {"spans", "no indexer", "100 sparse"});
  config.spans.dense = 100;
  config.spans.sparse = 0;
  EXPECT_FALSE(config.model_config(258, std::nullopt).attention.sparse);

  // A stored model keeps what it is meant for, also where rows are shorter.
  nn::ModelConfig longer = model;
  longer.max_positions = 4 * config.data.length;
  EXPECT_EQ(config.model_config(258, longer).max_positions, 4 * config.data.length);

  config.data.length = 1 << 20;
  expect_error([&] { config.model_config(258, model); }, {"data.length", "yarn_factor"});
}

}  // namespace
}  // namespace gsa::train
