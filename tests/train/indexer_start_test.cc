// How the indexer of a run starts: from the attention, at random, or as the folder has it.
#include "train/indexer_start.h"

#include <gtest/gtest.h>

#include "model/errors.h"
#include "nn/indexer_start.h"
#include "nn/model_io.h"
#include "train/runs.h"

namespace gsa::train {
namespace {

using gsa::testing::expect_error;
using testing::differences;
using testing::run_until;
using testing::small_run;
using testing::TemporaryFolder;
using testing::weights_of;

using Notes = std::vector<std::pair<std::int64_t, std::string>>;

TrainEvents noting(Notes& notes) {
  TrainEvents events;
  events.note = [&notes](std::int64_t step, const std::string& text) { notes.emplace_back(step, text); };
  return events;
}

TEST(IndexerStart, IsChosenByWhatThereIs) {
  TrainConfig config;
  nn::ModelConfig dense = nn::ModelConfig::preset("tiny"), sparse = dense;
  apply(dense, nn::System::gated_only);
  EXPECT_EQ(indexer_start(config, std::nullopt), IndexerStart::random);
  EXPECT_EQ(indexer_start(config, dense), IndexerStart::attention);
  EXPECT_EQ(indexer_start(config, sparse), IndexerStart::kept);
  config.phases.dense = 1;
  EXPECT_EQ(indexer_start(config, std::nullopt), IndexerStart::attention);
  EXPECT_EQ(indexer_start(config, sparse), IndexerStart::kept);
  config.model.indexer_init = "random";
  EXPECT_EQ(indexer_start(config, std::nullopt), IndexerStart::random);
  EXPECT_EQ(indexer_start(config, sparse), IndexerStart::random);
  config.model.indexer_init = "attention";
  config.phases.dense = 0;
  EXPECT_EQ(indexer_start(config, std::nullopt), IndexerStart::attention);
  EXPECT_EQ(indexer_start(config, sparse), IndexerStart::attention);
}

// With a rate of 0 for the indexer its weights stay as they start, and the base is frozen in warm-up: after
// the first step of warm-up they are what the definition says, in either precision.
TEST(IndexerStart, HappensBeforeTheFirstStepOfWarmUp) {
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    const TemporaryFolder folder;
    TrainConfig config = small_run(folder);
    config.precision = precision;
    config.optimizer.indexer_lr_multiplier = 0;
    Notes notes;
    Trainer trainer(config, false, noting(notes));
    run_until(trainer, 2);
    EXPECT_TRUE(notes.empty());
    const auto before = weights_of(trainer);
    run_until(trainer, 3);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_EQ(notes[0].first, 3);
    EXPECT_NE(notes[0].second.find("q_proj"), std::string::npos) << notes[0].second;
    const auto after = weights_of(trainer);
    const std::string layer = "model.layers.1.self_attn.";
    at::Tensor wq = before.at(layer + "indexer.wq.weight").to(torch::kFloat32).clone();
    at::Tensor wk = before.at(layer + "indexer.wk.weight").to(torch::kFloat32).clone();
    nn::start_from_attention(trainer.model()->config().attention,
                             before.at(layer + "q_proj.weight").to(torch::kFloat32),
                             before.at(layer + "k_proj.weight").to(torch::kFloat32), wq, wk);
    const auto near = [&](const char* name, const at::Tensor& expected) {
      const at::Tensor got = after.at(layer + name).to(torch::kFloat32);
      // In bf16 the start is made from masters that have more digits.
      EXPECT_LT((got - expected).abs().max().item<double>(), precision[0] == 'f' ? 1e-9 : 2e-3) << name;
      EXPECT_GT((got - before.at(layer + name).to(torch::kFloat32)).abs().max().item<double>(), 0.01) << name;
    };
    near("indexer.wq.weight", wq);
    near("indexer.wk.weight", wk);
    EXPECT_TRUE(after.at(layer + "indexer.weights_proj.weight")
                    .equal(before.at(layer + "indexer.weights_proj.weight")));
    run_until(trainer, 6);
    EXPECT_EQ(notes.size(), 1u);
  }
}

// A checkpoint at the boundary starts the indexer again, to the same bits; a later one does not. (Resume in
// trainer_test.cc stops a run after every step.) Where the base learns on, a second start would differ.
TEST(IndexerStart, ResumesBitForBitAcrossTheBoundary) {
  const TemporaryFolder folder;
  for (const std::int64_t warmup : {2, 0}) {
    const auto config_of = [&](const std::string& name) {
      TrainConfig config = small_run(folder, concat(name, warmup));
      config.precision = "bf16";
      config.phases.warmup = warmup;
      return config;
    };
    Notes whole_notes;
    Trainer whole(config_of("whole"), false, noting(whole_notes));
    EXPECT_TRUE(whole.run());
    EXPECT_EQ(whole_notes.size(), 1u);
    for (const std::int64_t stop : {2, 3}) {
      const std::string name = concat("stop", stop, "-");
      Notes notes;
      {
        Trainer part(config_of(name), false, noting(notes));
        run_until(part, stop);
        EXPECT_EQ(notes.size(), stop > 2 ? 1u : 0u) << stop;
      }
      Trainer rest(config_of(name), true, noting(notes));
      EXPECT_TRUE(rest.run());
      EXPECT_EQ(notes, whole_notes) << stop;
      EXPECT_EQ(differences(weights_of(whole), weights_of(rest)), std::vector<std::string>{}) << stop;
    }
  }
}

TEST(IndexerStart, RandomLeavesItAlone) {
  const TemporaryFolder folder;
  TrainConfig config = small_run(folder);
  config.model.indexer_init = "random";
  config.optimizer.indexer_lr_multiplier = 0;
  Notes notes;
  Trainer trainer(config, false, noting(notes));
  const auto before = weights_of(trainer);
  run_until(trainer, 4);
  EXPECT_TRUE(notes.empty());
  const std::string name = "model.layers.0.self_attn.indexer.wq.weight";
  EXPECT_TRUE(before.at(name).equal(weights_of(trainer).at(name)));
}

// From a folder with an indexer: it goes on, unless a new one is asked for by name.
TEST(IndexerStart, AFoldersIndexerGoesOnUnlessANewOneIsAskedFor) {
  const TemporaryFolder folder;
  { Trainer(small_run(folder, "first"), false).run(); }
  const std::string wk = "model.layers.0.self_attn.indexer.wk.weight";
  const std::string mean = "model.layers.0.self_attn.indexer.mean_variance";
  const nn::Model stored = nn::load_model(folder / "first/latest").model;
  const auto next = [&](const char* init) {
    TrainConfig config = small_run(folder, concat("next", init));
    config.model.preset = "";
    config.model.from = (folder / "first/latest").string();
    config.model.indexer_init = init;
    return config;
  };
  Trainer kept(next(""), false);
  EXPECT_TRUE(kept.notes().empty());
  EXPECT_TRUE(weights_of(kept).at(wk).equal(stored->model->layers[0]->self_attn->indexer->wk->weight));
  Notes notes;
  for (const char* init : {"random", "attention"}) {
    Trainer renewed(next(init), false, noting(notes));
    ASSERT_EQ(renewed.notes().size(), 1u);
    EXPECT_NE(renewed.notes()[0].find("model.indexer_init"), std::string::npos);
    EXPECT_FALSE(weights_of(renewed).at(wk).equal(weights_of(kept).at(wk)));
    EXPECT_EQ(weights_of(renewed).at(mean).item<double>(), -1);
    EXPECT_TRUE(renewed.run());
    EXPECT_EQ(notes.size(), std::string(init) == "attention" ? 1u : 0u);
  }
}

TEST(IndexerStart, IsRefusedWhereItSaysNothing) {
  const TemporaryFolder folder;
  TrainConfig config = small_run(folder);
  config.model.indexer_init = "attention";
  config.phases.warmup = config.phases.sparse = 0;
  expect_error([&] { Trainer(config, false); }, {"model.indexer_init", "warm-up or sparse steps"});
  config.model.indexer_init = "random";
  config.model.k_base = config.model.k_min = config.model.k_max = 0;
  config.model.system = "standard";
  expect_error([&] { Trainer(config, false); }, {"model.system", "model.indexer_init"});
}

// A dense folder that becomes gsa: budgets by the length, and a line that says so.
TEST(Conversion, SaysWhatItChose) {
  const TemporaryFolder folder;
  TrainConfig dense = small_run(folder, "dense");
  dense.model.system = "gated-only";
  dense.model.k_base = dense.model.k_min = dense.model.k_max = 0;
  dense.phases.warmup = dense.phases.sparse = 0;
  {
    Trainer trainer(dense, false);
    EXPECT_TRUE(trainer.notes().empty());
    trainer.run();
  }
  TrainConfig next = small_run(folder, "next");
  next.model = {};
  next.model.from = (folder / "dense/latest").string();
  next.model.system = "gsa";
  next.model.index_head_size = 16;
  {
    Trainer trainer(next, false);
    const nn::AttentionConfig& attention = trainer.model()->config().attention;
    EXPECT_EQ(attention.budget.base, 6);  // of rows of 48
    ASSERT_EQ(trainer.notes().size(), 1u);
    for (const char* part :
         {"4 heads of 16", "inverse", "k_base 6 (an eighth of data.length)", "k_min 1", "k_max 12"}) {
      EXPECT_NE(trainer.notes()[0].find(part), std::string::npos) << trainer.notes()[0];
    }
    EXPECT_TRUE(trainer.run());
  }
  EXPECT_TRUE(Trainer(next, true).notes().empty());
}

}  // namespace
}  // namespace gsa::train
