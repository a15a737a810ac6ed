// Schedules, guards, the optimiser, batches, and the two logs.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "core/crc32c.h"
#include "core/file.h"
#include "train/guard.h"
#include "train/metrics_log.h"
#include "train/runs.h"
#include "train/schedule.h"
#include "train/tensorboard.h"

namespace gsa::train {
namespace {

using testing::TemporaryFolder;

TEST(Schedule, Cosine) {
  const Schedule s{.shape = ScheduleShape::cosine, .steps = 101, .warmup_steps = 20, .min_ratio = 0.1};
  EXPECT_DOUBLE_EQ(s.at(0), 1.0 / 20);
  EXPECT_DOUBLE_EQ(s.at(9), 0.5);
  EXPECT_DOUBLE_EQ(s.at(19), 1);
  EXPECT_DOUBLE_EQ(s.at(20), 1);
  EXPECT_NEAR(s.at(60), 0.55, 1e-12);  // half way
  EXPECT_NEAR(s.at(100), 0.1, 1e-12);
  for (int step = 20; step < 100; ++step) EXPECT_GT(s.at(step), s.at(step + 1));
}

TEST(Schedule, Wsd) {
  const Schedule s{
      .shape = ScheduleShape::wsd, .steps = 100, .warmup_steps = 10, .decay_steps = 20, .min_ratio = 0};
  EXPECT_DOUBLE_EQ(s.at(4), 0.5);
  for (int step = 10; step < 80; ++step) EXPECT_EQ(s.at(step), 1);
  EXPECT_NEAR(s.at(80), 0.95, 1e-12);
  EXPECT_NEAR(s.at(89), 0.5, 1e-12);
  EXPECT_NEAR(s.at(99), 0, 1e-12);
  const Schedule tenth{.shape = ScheduleShape::wsd, .steps = 100};
  EXPECT_EQ(tenth.at(89), 1);
  EXPECT_NEAR(tenth.at(90), 0.9, 1e-12);
}

TEST(Schedule, ConstantAndEdges) {
  const Schedule s{.shape = ScheduleShape::constant, .steps = 5, .warmup_steps = 2};
  EXPECT_EQ(s.at(0), 0.5);
  EXPECT_EQ(s.at(4), 1);
  for (const auto shape : {ScheduleShape::cosine, ScheduleShape::wsd, ScheduleShape::constant}) {
    const Schedule one{.shape = shape, .steps = 1, .min_ratio = 0.1};
    EXPECT_TRUE(std::isfinite(one.at(0)));
    const Schedule all_warmup{.shape = shape, .steps = 3, .warmup_steps = 3};
    EXPECT_EQ(all_warmup.at(2), 1);
  }
  EXPECT_THROW(schedule_shape_by_name("cosin"), Error);
}

TEST(SpikeGuard, NeedsAFullWindow) {
  SpikeGuard guard(8, 6);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(guard.bar(), std::numeric_limits<double>::infinity());
    guard.take(i % 2 == 0 ? 1 : 3);
  }
  EXPECT_NEAR(guard.bar(), 2 + 6 * 1, 1e-6);  // mean 2, deviation 1
}

TEST(SpikeGuard, OneSpikeHardlyMovesTheBarButAChangeGetsThrough) {
  SpikeGuard guard(128, 6);
  for (int i = 0; i < 128; ++i) guard.take(i % 2 == 0 ? 1 : 3);
  const double before = guard.bar();
  guard.take(1e9);
  EXPECT_LT(guard.bar(), before * 1.25);
  int spikes = 0;
  for (int i = 0; i < 128; ++i) {
    spikes += 100.0 > guard.bar() ? 1 : 0;
    guard.take(100);
  }
  EXPECT_GT(spikes, 3);
  EXPECT_LT(spikes, 40);
}

TEST(SpikeGuard, EqualValuesAreNoSpike) {
  SpikeGuard guard(128, 6);
  for (int i = 0; i < 300; ++i) {
    EXPECT_FALSE(0.1 > guard.bar());
    guard.take(0.1);
  }
}

TEST(SpikeGuard, IsKept) {
  SpikeGuard a(8, 2), b(8, 2);
  for (int i = 0; i < 20; ++i) a.take(std::sin(i));
  b.restore(a.history());
  EXPECT_EQ(a.bar(), b.bar());
}

// ---- AdamW

nn::ParameterGroup group(nn::ParameterKind kind, bool decay, const std::string& name, at::Tensor parameter) {
  return {.kind = kind, .decay = decay, .names = {name}, .parameters = {std::move(parameter)}};
}

at::Tensor parameter(std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn({5, 7}).requires_grad_(true);
}

TEST(AdamW, MatchesTorch) {
  at::Tensor ours = parameter(1), theirs = ours.detach().clone().requires_grad_(true);
  AdamW optimizer({group(nn::ParameterKind::base, true, "w", ours)}, {.weight_decay = 0.1}, false);
  torch::optim::AdamW reference(
      {theirs}, torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
  for (int step = 0; step < 20; ++step) {
    const at::Tensor gradient = torch::randn({5, 7});
    ours.mutable_grad() = gradient.clone();
    theirs.mutable_grad() = gradient.clone();
    optimizer.gather_gradients();
    optimizer.step(1e-2, {1, 1});
    optimizer.zero_gradients();
    reference.step();
    // Both in fp32, in different orders: a few units in the last place of weights around 1.
    EXPECT_LT((ours - theirs).abs().max().item<double>(), 2e-6);
  }
}

TEST(AdamW, GroupsHaveTheirRatesAndDecay) {
  const AdamWOptions options{.weight_decay = 0.5, .indexer_lr_multiplier = 10, .gate_lr_multiplier = 3};
  at::Tensor base = torch::ones({4, 4}).requires_grad_(true), norm = torch::ones({4}).requires_grad_(true);
  at::Tensor indexer = torch::ones({4, 4}).requires_grad_(true), gate = torch::ones({4}).requires_grad_(true);
  AdamW optimizer({group(nn::ParameterKind::base, true, "base", base),
                   group(nn::ParameterKind::base, false, "norm", norm),
                   group(nn::ParameterKind::indexer, true, "indexer", indexer),
                   group(nn::ParameterKind::gate, false, "gate", gate)},
                  options, false);
  for (at::Tensor* p : {&base, &norm, &indexer, &gate}) p->mutable_grad() = torch::ones_like(*p);
  optimizer.gather_gradients();
  optimizer.step(0.01, {1, 1});
  // A first step moves by the rate, against the gradient's sign.
  const auto first = [](const at::Tensor& t) { return t.flatten()[0].item<double>(); };
  EXPECT_NEAR(first(base), 1 - 0.01 - 0.01 * 0.5, 1e-6);
  EXPECT_NEAR(first(norm), 1 - 0.01, 1e-6);
  EXPECT_NEAR(first(indexer), 1 - 0.1 - 0.1 * 0.5, 1e-6);
  EXPECT_NEAR(first(gate), 1 - 0.03, 1e-6);
}

TEST(AdamW, WhatHasNoGradientIsFrozen) {
  at::Tensor a = parameter(1), b = parameter(2);
  const at::Tensor before = b.detach().clone();
  AdamW optimizer(
      {group(nn::ParameterKind::base, true, "a", a), group(nn::ParameterKind::indexer, true, "b", b)}, {},
      false);
  a.mutable_grad() = torch::ones_like(a);
  optimizer.gather_gradients();
  optimizer.step(0.1, {1, 1});
  EXPECT_TRUE(b.equal(before));
  for (const auto& [name, tensor] : optimizer.state()) {
    if (name.ends_with(".steps")) {
      EXPECT_EQ(tensor.item<double>(), name == "a.steps" ? 1 : 0);
    }
  }
}

// Steps too small for bf16 are not lost, nor are small gradients of many micro-batches.
TEST(AdamW, MastersKeepWhatNarrowWeightsCannot) {
  torch::nn::Linear module(torch::nn::LinearOptions(4, 4).bias(false));
  torch::NoGradGuard no_grad;
  module->weight.fill_(1);
  AdamW optimizer({group(nn::ParameterKind::base, true, "w", module->weight)}, {.weight_decay = 0}, true);
  module->to(torch::kBFloat16);
  for (int step = 0; step < 100; ++step) {
    module->weight.mutable_grad() = torch::ones_like(module->weight);
    optimizer.gather_gradients();
    optimizer.step(1e-4, {1, 1});  // bf16 near 1 has steps of 1/128
    optimizer.zero_gradients();
  }
  EXPECT_EQ(module->weight.scalar_type(), torch::kBFloat16);
  EXPECT_NEAR(module->weight[0][0].item<double>(), 0.99, 4e-3);
  EXPECT_NEAR(optimizer.state()[0].second[0][0].item<double>(), 0.99, 1e-5);

  for (int part = 0; part < 1025; ++part) {
    module->weight.mutable_grad() = torch::full_like(module->weight, part == 0 ? 1.0 : 1.0 / 1024);
    optimizer.gather_gradients();
  }
  // 16 elements of 2 each; a bf16 sum would stay at 1.
  EXPECT_NEAR(optimizer.gradient_norms()[0].item<double>(), 8, 1e-5);
}

TEST(AdamW, NamesWhatIsNotFinite) {
  at::Tensor a = parameter(1), b = parameter(2);
  AdamW optimizer(
      {group(nn::ParameterKind::base, true, "a", a), group(nn::ParameterKind::indexer, true, "b", b)}, {},
      false);
  a.mutable_grad() = torch::ones_like(a);
  b.mutable_grad() = torch::ones_like(b);
  EXPECT_EQ(optimizer.not_finite(), "");
  EXPECT_NEAR(optimizer.gradient_norms()[1].item<double>(), std::sqrt(35.0), 1e-6);
  b.mutable_grad()[3][3] = NAN;
  EXPECT_EQ(optimizer.not_finite(), "b");
  EXPECT_TRUE(std::isnan(optimizer.gradient_norms()[1].item<double>()));
  EXPECT_FALSE(std::isnan(optimizer.gradient_norms()[0].item<double>()));
}

// ---- Batches

TEST(Batch, RowsStandEndToEnd) {
  const std::vector<data::Row> rows = {{{1, 2, 3}, {2, -100, -100}, {0, 2}}, {{4, 5, 6}, {5, 6, 7}, {0}}};
  const Batch batch = make_batch(rows, torch::kCPU);
  EXPECT_TRUE(batch.tokens.equal(torch::tensor({1, 2, 3, 4, 5, 6}, torch::kInt64)));
  EXPECT_TRUE(batch.targets.equal(torch::tensor({2, -100, -100, 5, 6, 7}, torch::kInt64)));
  EXPECT_TRUE(batch.cu_seqlens.equal(torch::tensor({0, 2, 3, 6}, torch::kInt64)));
  EXPECT_EQ(batch.predictions, 4);
}

// ---- Logs

std::string file_text(const std::filesystem::path& path) { return read_file(path, 1 << 20); }

TEST(MetricsLog, DropsWhatWillBeWrittenAgain) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  {
    MetricsLog log(path, 0);
    for (int step = 1; step <= 3; ++step) log.add({{"step", step}, {"loss", 0.5}});
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 4, \"lo";  // a crash
  MetricsLog log(path, 2);
  log.add({{"step", 3}, {"text", "\xff"}});
  EXPECT_EQ(file_text(path),
            "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.5}\n{\"step\":3,\"text\":\"\uFFFD\"}\n");
}

struct Record {
  std::string payload;
  std::size_t size = 0;
};

// A record of TFRecord's framing, checksums verified.
Record read_record(const std::string& bytes, std::size_t at) {
  const auto word = [&](std::size_t place) {
    std::uint32_t value;
    std::memcpy(&value, bytes.data() + place, 4);
    return value;
  };
  const auto masked = [&](std::size_t place, std::size_t size) {
    const std::uint32_t crc = crc32c(std::as_bytes(std::span(bytes.data() + place, size)));
    return std::rotr(crc, 15) + 0xa282ead8u;
  };
  std::uint64_t size;
  std::memcpy(&size, bytes.data() + at, 8);
  EXPECT_EQ(word(at + 8), masked(at, 8));
  EXPECT_EQ(word(at + 12 + size), masked(at + 12, size));
  return {bytes.substr(at + 12, size), 16 + size};
}

TEST(TensorBoard, RecordsAreFramedAndChecked) {
  const TemporaryFolder folder;
  std::filesystem::path path;
  {
    TensorBoard board(folder / "tb", 0);
    board.add(7, {{"train/loss", 1.5}, {"x", -2}});
    path = board.path();
  }
  const std::string bytes = file_text(path);
  const Record version = read_record(bytes, 0);
  EXPECT_NE(version.payload.find("brain.Event:2"), std::string::npos);
  const Record event = read_record(bytes, version.size);
  EXPECT_EQ(bytes.size(), version.size + event.size);
  // wall time (fixed64, field 1), step (varint, field 2) = 7, summary (field 5)
  EXPECT_EQ(event.payload[0], '\x09');
  EXPECT_EQ(event.payload.substr(9, 3), std::string("\x10\x07\x2a"));
  const std::size_t tag = event.payload.find("train/loss");
  ASSERT_NE(tag, std::string::npos);
  float value;
  std::memcpy(&value, event.payload.data() + tag + std::strlen("train/loss") + 1, 4);
  EXPECT_EQ(value, 1.5f);
}

}  // namespace
}  // namespace gsa::train
