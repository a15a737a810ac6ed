// The loop as a whole: who learns in which phase, resuming, accumulating, packing, guards.
#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "model/errors.h"
#include "nn/device.h"
#include "nn/model_io.h"
#include "train/runs.h"

namespace gsa::train {
namespace {

using gsa::testing::expect_error;
using testing::differences;
using testing::missing_for;
using testing::run_until;
using testing::small_run;
using testing::TemporaryFolder;
using testing::weights_of;
using testing::write_dataset;

bool is_indexer(const std::string& name) { return name.find(".indexer.") != std::string::npos; }

// In each phase exactly what should learn changes, and all of it does.
TEST(Trainer, EachPhaseMovesWhatItShould) {
  const TemporaryFolder folder;
  Trainer trainer(small_run(folder), false);
  auto before = weights_of(trainer);
  for (std::int64_t step = 1; step <= 6; ++step) {
    run_until(trainer, step);
    const auto after = weights_of(trainer);
    const auto changed = differences(before, after);
    std::set<std::string> moved(changed.begin(), changed.end());
    for (const auto& [name, tensor] : after) {
      const bool buffer = name.ends_with("mean_variance");
      const bool learns = step <= 2 ? !is_indexer(name) : step <= 4 ? is_indexer(name) && !buffer : true;
      // Values that the batch does not touch may stay: tokens that do not occur are part of one tensor, so
      // every tensor as a whole moves.
      EXPECT_EQ(moved.contains(name), learns) << name << " in step " << step;
    }
    before = after;
  }
}

// Layers that share a selection: a loss for each indexer, kept mass for each layer, the same bits with
// recomputed activations, and a folder that goes on.
TEST(Trainer, LayersShareASelection) {
  const TemporaryFolder folder;
  std::map<std::string, at::Tensor> ends[2];
  for (const bool again : {false, true}) {
    TrainConfig config = small_run(folder, again ? "again" : "kept");
    config.model.index_every = 2;
    config.checkpoint_activations = again;
    std::vector<StepReport> reports;
    TrainEvents events;
    events.step = [&](const StepReport& report) { reports.push_back(report); };
    Trainer trainer(config, false, events);
    for (const auto& [name, tensor] : weights_of(trainer)) {
      const bool odd =
          name.find("layers.1.") != std::string::npos || name.find("layers.3.") != std::string::npos;
      EXPECT_FALSE(odd && is_indexer(name)) << name;
    }
    auto before = weights_of(trainer);
    run_until(trainer, 2);
    EXPECT_TRUE(reports.back().kl.empty() && reports.back().kl_layers.empty());
    for (std::int64_t step = 3; step <= 6; ++step) {
      run_until(trainer, step);
      EXPECT_EQ(reports.back().kl.size(), 2u);
      EXPECT_EQ(reports.back().kl_layers, (std::vector<std::int64_t>{0, 2}));
      EXPECT_EQ(reports.back().kept.size(), step > 4 ? 4u : 0u);
    }
    ends[again ? 1 : 0] = weights_of(trainer);
    EXPECT_EQ(differences(before, ends[again ? 1 : 0]).size(), before.size());
  }
  EXPECT_TRUE(differences(ends[0], ends[1]).empty());

  TrainConfig next = small_run(folder, "next");
  next.model.preset = "";
  next.model.from = (folder / "kept/latest").string();
  next.model.indexer_init = "random";
  Trainer trainer(next, false);
  EXPECT_EQ(trainer.model()->config().index_layers, (std::vector<std::int64_t>{0, 2}));
  EXPECT_TRUE(trainer.run());
}

// In the sparse phase the indexer's gradient comes from its KL alone and the model's from the language
// model's loss alone: scaling the KL scales the one and leaves the other as it is, bit for bit.
TEST(Trainer, TheIndexerLearnsFromItsLossAloneAndTheModelFromItsOwn) {
  const TemporaryFolder folder;
  const auto gradients = [&](double weight, const char* name) {
    TrainConfig config = small_run(folder, name);
    config.phases.dense = config.phases.warmup = 0;
    config.phases.sparse = 1;
    config.kl_weight = weight;
    std::optional<StepReport> report;
    TrainEvents events;
    events.step = [&](const StepReport& r) { report = r; };
    Trainer trainer(config, false, events);
    trainer.run();
    return *report;
  };
  const StepReport one = gradients(1, "one"), two = gradients(2, "two"), none = gradients(0, "none");
  EXPECT_EQ(one.model_norm, two.model_norm);
  EXPECT_EQ(one.model_norm, none.model_norm);
  EXPECT_EQ(two.indexer_norm, 2 * one.indexer_norm);
  EXPECT_EQ(none.indexer_norm, 0);
  EXPECT_GT(one.indexer_norm, 0);
  EXPECT_EQ(one.loss, two.loss);
}

struct Resumed {
  const char* name;
  const char* precision;
  bool checkpoint_activations;
  const char* device = "cpu";
  const char* kl_support = "all";
  double kl_share = 0.5;
};

class Resume : public ::testing::TestWithParam<Resumed> {};

// Stopped after every possible step, across both switches: the end is the same to the bit, and so is every
// loss.
TEST_P(Resume, IsBitForBit) {
  if (const std::string missing = missing_for(GetParam().device); !missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  std::vector<double> losses, again;
  const auto config_of = [&](const char* name, bool second) {
    TrainConfig config = small_run(folder, name);
    config.precision = GetParam().precision;
    config.device = GetParam().device;
    config.checkpoint_activations = second && GetParam().checkpoint_activations;
    config.guard.window = 8;
    config.kl_support = GetParam().kl_support;
    config.kl_share = GetParam().kl_share;
    config.batch.rows = 1;  // two micro-batches: samples of their own
    return config;
  };
  const auto record = [](std::vector<double>& into) {
    TrainEvents events;
    events.step = [&into](const StepReport& r) {
      into.push_back(r.loss.value_or(0));
      into.push_back(r.model_norm);
      into.push_back(r.indexer_norm);
      for (const double kl : r.kl) into.push_back(kl);
      for (const double kept : r.kept) into.push_back(kept);
    };
    return events;
  };
  Trainer whole(config_of("whole", false), false, record(losses));
  EXPECT_TRUE(whole.run());
  const auto expected = weights_of(whole);
  for (std::int64_t stop = 1; stop < 6; ++stop) {
    Trainer part(config_of("parts", true), stop > 1, record(again));
    EXPECT_EQ(part.step(), stop - 1);
    EXPECT_FALSE(part.run([&] { return part.step() == stop; }));
  }
  Trainer last(config_of("parts", true), true, record(again));
  EXPECT_TRUE(last.run());
  EXPECT_EQ(differences(expected, weights_of(last)), std::vector<std::string>{});
  EXPECT_EQ(losses, again);
}

INSTANTIATE_TEST_SUITE_P(Trainer, Resume,
                         ::testing::Values(Resumed{"fp32", "fp32", false}, Resumed{"bf16", "bf16", false},
                                           Resumed{"recomputed", "fp32", true},
                                           Resumed{"selected", "fp32", false, "cpu", "selected"},
                                           Resumed{"every_query", "fp32", true, "cpu", "all", 1},
                                           Resumed{"cuda", "auto", false, "cuda"},
                                           Resumed{"cuda_recomputed", "bf16", true, "cuda"}),
                         [](const auto& given) { return given.param.name; });

std::vector<StepReport> reports_of(const TrainConfig& config) {
  std::vector<StepReport> reports;
  TrainEvents events;
  events.step = [&](const StepReport& report) { reports.push_back(report); };
  Trainer(config, false, events).run();
  return reports;
}

// The sample of the indexer's loss is another one in every step, micro-batch and layer, and the same in every
// run of the same seed. Nothing learns here, so that only samples differ.
TEST(Trainer, TheIndexersLossIsSampledAnew) {
  const TemporaryFolder folder;
  write_dataset(folder / "data", 1);  // one document over and over
  const auto config_of = [&](const char* name, double share) {
    TrainConfig config = small_run(folder, name);
    config.phases = {0, 3, 3};
    config.data.length = 16;
    config.batch.tokens = 16 * 16;
    config.batch.rows = 8;
    config.optimizer.lr = 0;
    config.kl_share = share;
    return config;
  };
  const auto every = reports_of(config_of("every", 1)), some = reports_of(config_of("some", 0.25));
  const auto again = reports_of(config_of("again", 0.25));
  std::set<double> ratios;
  for (std::size_t i = 0; i < every.size(); ++i) {
    EXPECT_EQ(some[i].kl, again[i].kl) << i;
    for (std::size_t layer = 0; layer < every[i].kl.size(); ++layer) {
      ratios.insert(some[i].kl[layer] / every[i].kl[layer]);
    }
    EXPECT_EQ(every[i].kept.size(), i < 3 ? 0u : 4u);
    EXPECT_EQ(some[i].kept.size(), i < 3 ? 0u : 4u);
    for (const double kept : every[i].kept) {
      EXPECT_GT(kept, 0);
      EXPECT_LT(kept, 1 + 1e-6);
    }
  }
  EXPECT_GT(ratios.size(), 12u);  // of 6 steps and 4 layers; few tiles may repeat by chance
}

// Over the selected keys the loss is that of every query, whatever the share, and there is no kept mass.
TEST(Trainer, TheLossOverSelectedKeysHasNoSample) {
  const TemporaryFolder folder;
  const auto reports = [&](const char* name, const char* support, double share) {
    TrainConfig config = small_run(folder, name);
    config.phases = {0, 0, 2};
    config.kl_support = support;
    config.kl_share = share;
    return reports_of(config);
  };
  const auto whole = reports("whole", "selected", 1), half = reports("half", "selected", 0.5);
  const auto all = reports("all", "all", 1);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i].kl, half[i].kl);
    EXPECT_NE(whole[i].kl, all[i].kl);
    EXPECT_TRUE(whole[i].kept.empty());
    EXPECT_EQ(all[i].kept.size(), 4u);
  }
  EXPECT_EQ(whole[0].loss, all[0].loss);
}

TEST(Trainer, PrecisionFollowsTheDevice) {
  const TemporaryFolder folder;
  const Trainer here(small_run(folder, "cpu"), false);
  EXPECT_EQ(here.config().precision, "fp32");
  if (const std::string missing = missing_for("cuda"); !missing.empty()) GTEST_SKIP() << missing;
  TrainConfig config = small_run(folder, "cuda");
  config.device = "cuda";
  Trainer there(config, false);
  EXPECT_EQ(there.config().precision, "bf16");
  for (const at::Tensor& parameter : there.model()->parameters()) {
    ASSERT_EQ(parameter.scalar_type(), torch::kBFloat16);
    ASSERT_TRUE(parameter.is_cuda());
  }
  config.precision = "fp32";
  config.output.folder = (folder / "wide").string();
  expect_error([&] { Trainer(config, false); }, {"precision", "bf16 on a GPU", "fp32"});
}

// Rows of one document each, long enough that dense attention goes the fast way on a GPU.
TEST(Trainer, LearnsOnAGpu) {
  if (const std::string missing = missing_for("cuda"); !missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  write_dataset(folder / "data", 200);
  for (const bool deterministic : {true, false}) {
    TrainConfig config = small_run(folder, deterministic ? "ordered" : "free");
    config.device = "cuda";
    config.deterministic = deterministic;
    config.data.length = 256;
    config.batch.tokens = 2048;
    config.batch.rows = 4;
    config.phases.dense = 20;
    config.phases.warmup = 10;
    config.phases.sparse = 20;
    std::vector<double> losses, kl;
    TrainEvents events;
    events.step = [&](const StepReport& r) {
      if (r.loss) losses.push_back(*r.loss);
      if (!r.kl.empty()) kl.push_back(r.kl[0]);
    };
    Trainer trainer(config, false, events);
    EXPECT_TRUE(trainer.run());
    EXPECT_LT(losses.back(), 0.8 * losses.front());
    EXPECT_LT(kl.back(), kl.front());
  }
}

TEST(Trainer, AFinishedRunResumesToNothing) {
  const TemporaryFolder folder;
  { Trainer(small_run(folder), false).run(); }
  Trainer again(small_run(folder), true);
  EXPECT_EQ(again.step(), 6);
  EXPECT_TRUE(again.run());
}

TEST(Trainer, ResumingUnderOtherOptionsOrDataIsRefused) {
  const TemporaryFolder folder;
  TrainConfig config = small_run(folder);
  expect_error([&] { Trainer(config, true); }, {"--resume", "none"});
  {
    Trainer(config, false).run([] { return true; });
  }
  expect_error([&] { Trainer(config, false); }, {"output.folder", "--resume"});
  TrainConfig other = config;
  other.optimizer.lr = 1e-4;
  expect_error([&] { Trainer(other, true); }, {"optimizer.lr", "0.003", "1e-04"});
  other = config;
  other.output.log_every = 3;
  EXPECT_NO_THROW(Trainer(other, true));
  // The same data may lie elsewhere; other data may not take its place.
  write_dataset(folder / "same");
  write_dataset(folder / "more", 41);
  other.data.train = (folder / "same").string();
  EXPECT_NO_THROW(Trainer(other, true));
  other.data.train = (folder / "more").string();
  expect_error([&] { Trainer(other, true); }, {"more", "dataset of the run"});
}

// Micro-batches give what one batch of all rows gives. Sums over tokens are taken in another order, so
// weights agree to a thousandth of the way they can have gone (steps times rate; the indexer's rate is ten
// times that).
TEST(Trainer, AccumulatingEqualsALargeBatch) {
  const TemporaryFolder folder;
  const auto run = [&](std::int64_t rows, const char* name) {
    TrainConfig config = small_run(folder, name);
    config.batch.tokens = 4 * config.data.length;
    config.batch.rows = rows;
    config.model.budget = "fixed";  // adaptive budgets follow a mean that moves with every micro-batch
    config.optimizer.eps = 1e-4;    // keeps AdamW smooth where gradients are next to nothing
    std::vector<StepReport> reports;
    TrainEvents events;
    events.step = [&](const StepReport& r) { reports.push_back(r); };
    Trainer trainer(config, false, events);
    trainer.run();
    return std::pair(reports, weights_of(trainer));
  };
  const auto [whole, whole_weights] = run(4, "whole");
  for (const std::int64_t rows : {1, 2, 3}) {
    const auto [parts, weights] = run(rows, std::to_string(rows).c_str());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_NEAR(whole[i].loss.value_or(0), parts[i].loss.value_or(0), 2e-5) << rows << " " << i;
      EXPECT_NEAR(whole[i].model_norm, parts[i].model_norm, 1e-4 * (1 + whole[i].model_norm))
          << rows << " " << i;
      for (std::size_t l = 0; l < whole[i].kl.size(); ++l) EXPECT_NEAR(whole[i].kl[l], parts[i].kl[l], 2e-5);
    }
    for (const auto& [name, tensor] : whole_weights) {
      if (name.ends_with("mean_variance")) continue;
      const double way = 6 * 3e-3 * (is_indexer(name) ? 10 : 1);
      EXPECT_LT((tensor - weights.at(name)).abs().max().item<double>(), 1e-3 * way)
          << name << ", rows " << rows;
    }
  }
}

// The loss of a packed row is that of its documents one by one.
TEST(Trainer, PackedDocumentsAreSeparate) {
  const TemporaryFolder folder;
  Trainer trainer(small_run(folder), false);
  const data::Dataset& dataset = trainer.dataset();
  data::Packer packer(dataset, 200, 1, data::Order::as_written);
  const data::Row row = packer.next();
  ASSERT_GT(row.sequences.size(), 2u);
  const Batch packed = make_batch(std::vector<data::Row>{row}, torch::kCPU);
  const torch::NoGradGuard no_grad;
  trainer.model()->eval();
  for (const nn::Phase phase : {nn::Phase::dense, nn::Phase::sparse}) {
    const double together =
        trainer.model()
            ->loss(packed.tokens, packed.targets, {.cu_seqlens = packed.cu_seqlens, .phase = phase})
            .sum.item<double>();
    double apart = 0;
    for (std::size_t i = 0; i + 1 < packed.borders.size(); ++i) {
      const std::int64_t from = packed.borders[i], to = packed.borders[i + 1];
      apart += trainer.model()
                   ->loss(packed.tokens.slice(0, from, to).unsqueeze(0),
                          packed.targets.slice(0, from, to).unsqueeze(0), {.phase = phase})
                   .sum.item<double>();
    }
    EXPECT_NEAR(together, apart, 1e-5 * std::abs(apart));
  }
}

TEST(Trainer, LearnsToPredict) {
  const TemporaryFolder folder;
  TrainConfig config = small_run(folder);
  config.phases.dense = 40;
  config.phases.warmup = 10;
  config.phases.sparse = 20;
  config.data.validation = config.data.train;
  config.output.validate_every = 40;
  std::vector<double> validation;
  std::optional<double> first_kl, last_warmup_kl;
  TrainEvents events;
  events.validation = [&](std::int64_t, double loss) { validation.push_back(loss); };
  events.step = [&](const StepReport& r) {
    EXPECT_GT(r.floating_point, 0);
    if (r.phase != nn::Phase::warmup) return;
    double sum = 0;
    for (const double kl : r.kl) sum += kl;
    if (!first_kl) first_kl = sum;
    last_warmup_kl = sum;
  };
  Trainer trainer(config, false, events);
  const double before = trainer.validation_loss();
  EXPECT_NEAR(before, std::log(258.0), 0.3);
  trainer.run();
  ASSERT_EQ(validation.size(), 2u);
  EXPECT_LT(validation[0], before - 1);
  EXPECT_LT(validation[1], validation[0]);
  EXPECT_LT(*last_warmup_kl, *first_kl);
}

// ---- Guards

TEST(Trainer, NotFiniteStopsBeforeTheStepAndNamesTheCulprit) {
  const auto poisoned = [](const char* parameter, std::int64_t dense,
                           std::initializer_list<std::string> parts) {
    const TemporaryFolder folder;
    TrainConfig config = small_run(folder);
    config.phases.dense = dense;
    config.phases.warmup = 3 - dense;
    Trainer trainer(config, false);
    run_until(trainer, 1);
    {
      const torch::NoGradGuard no_grad;
      for (auto& item : trainer.model()->named_parameters()) {
        if (item.key() == parameter) item.value().flatten()[0].fill_(std::numeric_limits<float>::infinity());
      }
    }
    const auto before = weights_of(trainer);
    try {
      trainer.run();
      ADD_FAILURE() << "went on";
    } catch (const NotFinite& error) {
      const std::string text = error.what();
      for (const std::string& part : parts)
        EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
    }
    EXPECT_EQ(trainer.step(), 1);
    EXPECT_EQ(differences(before, weights_of(trainer)), std::vector<std::string>{});
  };
  poisoned("model.layers.2.mlp.up_proj.weight", 3,
           {"step 2", "language model's loss", "layer 2", "those of step 1"});
  poisoned("model.layers.1.self_attn.indexer.wq.weight", 0, {"step 2", "layer 1"});
}

TEST(Trainer, SpikesAreCountedAndSkippedIfAsked) {
  for (const bool skip : {false, true}) {
    const TemporaryFolder folder;
    TrainConfig config = small_run(folder);
    config.phases.dense = 20;
    config.phases.warmup = config.phases.sparse = 0;
    config.optimizer.lr = 1e-4;
    config.guard.window = 8;
    config.guard.skip_spikes = skip;
    std::optional<StepReport> last;
    TrainEvents events;
    events.step = [&](const StepReport& r) { last = r; };
    Trainer trainer(config, false, events);
    run_until(trainer, 12);
    EXPECT_EQ(last->spikes, 0);
    {
      const torch::NoGradGuard no_grad;
      trainer.model()->model->norm->weight.mul_(100);  // logits, and so the loss, far too large
    }
    const auto before = weights_of(trainer);
    run_until(trainer, 13);
    EXPECT_EQ(last->spikes, 1);
    EXPECT_NE(last->spike.find("loss"), std::string::npos) << last->spike;
    EXPECT_EQ(last->skipped, skip);
    EXPECT_EQ(differences(before, weights_of(trainer)).empty(), skip);
  }
}

// ---- Starting points

TEST(Trainer, StartsFromAFolderAsTheFunctionItWas) {
  const TemporaryFolder folder;
  TrainConfig dense = small_run(folder, "dense");
  dense.model.system = "standard";
  dense.model.k_base = dense.model.k_min = dense.model.k_max = 0;
  dense.phases.dense = 3;
  dense.phases.warmup = dense.phases.sparse = 0;
  dense.data.validation = dense.data.train;
  double before = 0;
  {
    Trainer trainer(dense, false);
    trainer.run();
    before = trainer.validation_loss();
  }
  TrainConfig next = small_run(folder, "next");
  next.model.preset = "";
  next.model.from = (folder / "dense/latest").string();
  next.model.system = "gsa";
  next.data.validation = next.data.train;
  Trainer trainer(next, false);
  EXPECT_FALSE(trainer.initialised().empty());
  EXPECT_TRUE(trainer.model()->config().attention.sparse);
  EXPECT_EQ(trainer.model()->config().attention.budget.base, 12);
  EXPECT_NEAR(trainer.validation_loss(), before, 0.02);  // new gates are one half only on average
  EXPECT_TRUE(trainer.run());
  // What it wrote is a model folder like any other, with its tokenizer.
  EXPECT_NO_THROW(nn::load_model(folder / "next/latest"));
  EXPECT_EQ(data::load_tokenizer(folder / "next/latest")->kind(), "bytes");
}

TEST(Trainer, SystemsWithoutAnIndexerHaveDenseStepsOnly) {
  const TemporaryFolder folder;
  for (const char* system : {"standard", "gated-only"}) {
    TrainConfig config = small_run(folder, system);
    config.model.system = system;
    config.model.k_base = config.model.k_min = config.model.k_max = 0;
    expect_error([&] { Trainer(config, false); }, {"phases", "no indexer", "2 warm-up and 2 sparse"});
    config.phases.warmup = config.phases.sparse = 0;
    EXPECT_TRUE(Trainer(config, false).run());
  }
}

TEST(Trainer, OtherSystemsTrain) {
  const TemporaryFolder folder;
  TrainConfig config = small_run(folder, "sparse-only");
  config.model.system = "sparse-only";
  EXPECT_TRUE(Trainer(config, false).run());
}

TEST(Trainer, ADeviceThatIsNotThereIsRefused) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "there is a GPU";
  const TemporaryFolder folder;
  TrainConfig config = small_run(folder);
  config.device = "cuda";
  expect_error([&] { Trainer(config, false); }, {"device", "GPU", "none"});
  EXPECT_TRUE(nn::device_by_name("auto").is_cpu());
}

TEST(Trainer, SamplesAreSeeded) {
  const TemporaryFolder folder;
  std::vector<std::string> texts;
  for (const char* name : {"a", "b"}) {
    TrainConfig config = small_run(folder, name);
    config.output.sample_every = 3;
    config.output.sample_prompt = "lamp ";
    config.output.sample_tokens = 8;
    TrainEvents events;
    events.sample = [&](std::int64_t, const std::string& text) { texts.push_back(text); };
    Trainer(config, false, events).run();
  }
  ASSERT_EQ(texts.size(), 4u);
  EXPECT_TRUE(texts[0].starts_with("lamp "));
  EXPECT_EQ(texts[0], texts[2]);
  EXPECT_EQ(texts[1], texts[3]);
  EXPECT_NE(texts[0], texts[1]);
}

}  // namespace
}  // namespace gsa::train
