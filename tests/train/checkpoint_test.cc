#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>

#include "core/file.h"
#include "model/errors.h"
#include "model/temporary_folder.h"

namespace gsa::train {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

NamedTensors tensors(double value) {
  return {{"a", torch::full({300, 100}, value)}, {"b", torch::full({3}, value, torch::kFloat64)}};
}

void save(Checkpoints& checkpoints, std::int64_t step) {
  checkpoints.save(step,
                   [](const std::filesystem::path& folder) {
                     write_text(folder / "config.json", "{}");
                     write_text(folder / "model.safetensors", "weights");
                   },
                   tensors(static_cast<double>(step)), {{"step", step}});
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Checkpoints, GiveBackWhatWasSaved) {
  const TemporaryFolder folder;
  Checkpoints checkpoints(folder / "run", 3);
  EXPECT_EQ(checkpoints.newest(), std::nullopt);
  save(checkpoints, 7);
  EXPECT_EQ(checkpoints.newest(), 7);
  EXPECT_EQ(checkpoints.state(7)["step"], 7);
  const NamedTensors into = tensors(0);
  checkpoints.read_optimizer(7, into);
  for (const auto& [name, tensor] : into) EXPECT_TRUE(tensor.eq(7).all().item<bool>()) << name;
  EXPECT_EQ(read_file(folder / "run/latest/config.json", 100), "{}");
  EXPECT_THROW(save(checkpoints, 7), Error);
}

TEST(Checkpoints, OnlyTheLastAreKept) {
  const TemporaryFolder folder;
  Checkpoints checkpoints(folder / "run", 2);
  for (const std::int64_t step : {1, 2, 30, 400}) save(checkpoints, step);
  EXPECT_EQ(checkpoints.steps(), (std::vector<std::int64_t>{30, 400}));
  EXPECT_EQ(names_in(folder / "run/checkpoints"),
            (std::vector<std::string>{"step-0000000030", "step-0000000400"}));
  EXPECT_EQ(std::filesystem::read_symlink(folder / "run/latest"), "checkpoints/step-0000000400");
}

TEST(Checkpoints, OneRunAtATime) {
  const TemporaryFolder folder;
  {
    const Checkpoints first(folder / "run", 1);
    expect_error([&] { Checkpoints(folder / "run", 1); }, {"run", "training"});
  }
  EXPECT_NO_THROW(Checkpoints(folder / "run", 1));
}

TEST(Checkpoints, LeftOversOfAKilledRunAreRemovedAndNothingElse) {
  const TemporaryFolder folder;
  const auto place = folder / "run/checkpoints";
  for (const char* name : {".step-0000000003.partial", ".step-0000000001.old", ".mine", "notes"}) {
    std::filesystem::create_directories(place / name);
    write_text(place / name / "x", "x");
  }
  const Checkpoints checkpoints(folder / "run", 1);
  EXPECT_EQ(names_in(place), (std::vector<std::string>{".mine", "notes"}));
  EXPECT_TRUE(checkpoints.steps().empty());
}

TEST(Checkpoints, DamageIsNamedAndTheSoundOneToo) {
  const auto damaged = [](const auto& change, std::initializer_list<std::string> parts) {
    const TemporaryFolder folder;
    Checkpoints checkpoints(folder / "run", 3);
    save(checkpoints, 1);
    save(checkpoints, 2);
    change(checkpoints.folder(2));
    EXPECT_EQ(checkpoints.damage(1), "");
    expect_error([&] { checkpoints.newest(); }, parts);
  };
  using Path = std::filesystem::path;
  const std::string sound = "step-0000000001 is sound";
  damaged([](const Path& p) { std::filesystem::remove(p / "manifest.json"); }, {"manifest.json", sound});
  damaged([](const Path& p) { write_text(p / "manifest.json", "{"); }, {"manifest.json", "JSON", sound});
  damaged([](const Path& p) { std::filesystem::resize_file(p / "model.safetensors", 3); },
          {"step-0000000002", "model.safetensors", "3 bytes instead of 7", sound});
  damaged([](const Path& p) { write_text(p / "model.safetensors", "weighty"); },
          {"model.safetensors", "checksum", sound});
  damaged([](const Path& p) { std::filesystem::remove(p / "optimizer.safetensors"); },
          {"optimizer.safetensors", sound});
}

TEST(Checkpoints, TensorsOfAnotherModelAreRefused) {
  const TemporaryFolder folder;
  Checkpoints checkpoints(folder / "run", 1);
  save(checkpoints, 1);
  expect_error([&] { checkpoints.read_optimizer(1, {{"a", torch::zeros({300, 100})}}); }, {"1 tensors", "2"});
  NamedTensors other = tensors(0);
  other[1].second = torch::zeros({4}, torch::kFloat64);
  expect_error([&] { checkpoints.read_optimizer(1, other); }, {"'b'"});
  other[1].first = "c";
  expect_error([&] { checkpoints.read_optimizer(1, other); }, {"'c'"});
}

// A limit on the size of files stands in for a full disk: writing fails in the middle in the same way.
TEST(Checkpoints, AFullDiskKeepsTheLastGoodOne) {
  const TemporaryFolder folder;
  Checkpoints checkpoints(folder / "run", 1);
  save(checkpoints, 1);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = 50'000;  // the optimiser's file has 120,000 bytes
  const auto old = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  expect_error([&] { save(checkpoints, 2); }, {"checkpoint of step 2", "optimizer.safetensors",
                                               "File too large", "newest complete one", "step-0000000001"});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, old);
  EXPECT_EQ(checkpoints.newest(), 1);
  EXPECT_EQ(names_in(folder / "run/checkpoints"), (std::vector<std::string>{"step-0000000001"}));
  save(checkpoints, 2);
  EXPECT_EQ(checkpoints.newest(), 2);
}

}  // namespace
}  // namespace gsa::train
