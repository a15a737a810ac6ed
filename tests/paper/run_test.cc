// Working through a plan with a stub for its steps: cut off anywhere, it goes on and comes to the same.
#include "paper/run.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>

#include "core/file.h"
#include "model/errors.h"
#include "model/temporary_folder.h"
#include "paper/child.h"
#include "paper/page.h"

namespace gsa::paper {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;

// Figures that follow from the step's name.
Values made_up(const Step& step, const std::filesystem::path&) {
  const double number = static_cast<double>(std::hash<std::string>()(step.name) % 1000) / 100;
  return {{"perplexity", number}, {"loss", number}, {"512", number}, {"prefill", number}};
}

bool done(const Step&) { return true; }

RunOptions with(std::function<bool(const Step&)> perform) {
  return {.perform = std::move(perform), .values = made_up, .available = [](const Step&, const auto&) {
            return true;
          }};
}

std::vector<Step> plan() { return make_plan({.scale = scale_by_name("smoke")}); }

std::string page(const std::filesystem::path& folder) {
  const PageOptions options{.tables = {.scale = scale_by_name("smoke")}, .data = "none", .machine = ""};
  return markdown_page(options, make_tables(options.tables, read_results(plan(), folder)));
}

TEST(PaperRun, DoesEverythingOnce) {
  const TemporaryFolder folder;
  std::vector<std::string> performed;
  const auto perform = [&](const Step& step) {
    performed.push_back(step.name);
    return true;
  };
  const RunReport first = run_plan(plan(), folder.path(), with(perform));
  EXPECT_EQ(first.ended, Ended::all_done);
  EXPECT_EQ(first.now, plan().size());
  EXPECT_EQ(performed.size(), plan().size());
  const RunReport second = run_plan(plan(), folder.path(), with(perform));
  EXPECT_EQ(second.before, plan().size());
  EXPECT_EQ(second.now, 0u);
  EXPECT_EQ(performed.size(), plan().size());
}

TEST(PaperRun, GoesOnWhereItWasStoppedOrFailed) {
  const TemporaryFolder folder;
  int calls = 0;
  const RunReport stopped = run_plan(plan(), folder.path(), with([&](const Step&) { return ++calls < 5; }));
  EXPECT_EQ(stopped.ended, Ended::stopped);
  EXPECT_EQ(stopped.now, 4u);
  EXPECT_THROW(run_plan(plan(), folder.path(), with([](const Step&) -> bool { throw Error("full disk"); })),
               Error);
  const RunReport rest = run_plan(plan(), folder.path(), with(done));
  EXPECT_EQ(rest.before, 4u);
  EXPECT_EQ(rest.now, plan().size() - 4);
}

// As `kill -9` at a random moment, again and again, until it has come through.
TEST(PaperRun, KilledAtRandomMomentsEndsWithTheSamePage) {
  const TemporaryFolder whole, killed;
  run_plan(plan(), whole.path(), with(done));
  std::mt19937 random(7);
  int kills = 0;
  for (bool ended = false; !ended;) {
    const pid_t child = ::fork();
    if (child == 0) {
      run_plan(plan(), killed.path(), with([](const Step&) { return ::usleep(1000) == 0; }));
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(random() % 20'000));
    if (kills < 10) kills += ::kill(child, SIGKILL) == 0 ? 1 : 0;
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  EXPECT_EQ(page(killed.path()), page(whole.path()));
  EXPECT_EQ(read_results(plan(), killed.path()).size(), plan().size());
}

// As where the folder comes back without its weights.
TEST(PaperRun, AModelThatIsGoneIsTrainedAgainWhereItIsNeeded) {
  const TemporaryFolder folder;
  run_plan(plan(), folder.path(), with(done));
  std::filesystem::remove(folder / "results/seed-1/relu/train.json");
  const std::string base = read_file(folder / "results/seed-1/base-gated/train.json", 10'000);
  std::vector<std::string> performed;
  RunOptions options = with([&](const Step& step) {
    performed.push_back(step.name);
    return true;
  });
  options.available = [&](const Step& step, const auto&) {
    return std::find(performed.begin(), performed.end(), step.name) != performed.end();
  };
  const RunReport report = run_plan(plan(), folder.path(), options);
  EXPECT_EQ(performed, (std::vector<std::string>{"data", "seed-1/base-gated/train", "seed-1/relu/train"}));
  EXPECT_EQ(report.now, 1u);
  EXPECT_EQ(read_file(folder / "results/seed-1/base-gated/train.json", 10'000), base);
}

TEST(PaperRun, MoreSeedsKeepWhatThereIs) {
  const TemporaryFolder folder;
  run_plan(plan(), folder.path(), with(done));
  const std::vector<Step> two = make_plan({.scale = scale_by_name("smoke"), .seeds = 2});
  const RunReport report = run_plan(two, folder.path(), with(done));
  EXPECT_EQ(report.before, plan().size());
  EXPECT_EQ(report.now, two.size() - plan().size());
  EXPECT_EQ(seeds_in(folder.path()), 2);
  EXPECT_EQ(seeds_in(folder / "none"), 0);
}

TEST(PaperRun, ADamagedResultIsNamed) {
  const TemporaryFolder folder;
  run_plan(plan(), folder.path(), with(done));
  std::ofstream(result_file(plan()[1], folder.path())) << "{\"values\": 3}";
  expect_error([&] { read_results(plan(), folder.path()); },
               {plan()[1].name + ".json", "figures as this program writes them"});
}

TEST(PaperFolder, IsOfOneScaleAndData) {
  const TemporaryFolder folder;
  const std::filesystem::path mine = folder / "out";
  std::filesystem::create_directories(mine);
  claim_folder(mine, scale_by_name("smoke"), {{"text", "made by rule"}});
  claim_folder(mine, scale_by_name("smoke"), {{"text", "made by rule"}});
  expect_error(
      [&] {
        claim_folder(mine, scale_by_name("small"), {{"text", "made by rule"}});
      },
      {"a folder of the same scale and data", "--output", "scale with another"});
  expect_error(
      [&] {
        claim_folder(mine, scale_by_name("smoke"), {{"text", "a.txt"}});
      },
      {"data with another text", "made by rule", "a.txt"});
}

TEST(PaperFolder, OfOthersIsRefused) {
  const TemporaryFolder folder;
  std::ofstream(folder / "precious.txt") << "mine";
  expect_error([&] { claim_folder(folder.path(), scale_by_name("smoke"), {}); },
               {"an empty folder", "precious.txt in it"});
  EXPECT_FALSE(std::filesystem::exists(folder / "paper.json"));
}

TEST(PaperChild, StatusLogAndFolder) {
  const TemporaryFolder folder;
  const auto shell = [&](const std::string& command, bool append = false) {
    return run_child({.program = "/bin/sh",
                      .arguments = {"-c", command},
                      .folder = folder.path(),
                      .log = folder / "logs/a/b.log",
                      .append = append});
  };
  EXPECT_EQ(shell("echo one; echo two >&2; exit 3"), 3);
  EXPECT_EQ(shell("pwd >where; echo three", true), 0);
  EXPECT_EQ(read_file(folder / "logs/a/b.log", 1000), "one\ntwo\nthree\n");
  EXPECT_EQ(read_file(folder / "where", 1000), std::filesystem::canonical(folder.path()).string() + "\n");
  EXPECT_EQ(shell("kill -9 $$"), 128 + 9);
  EXPECT_EQ(read_file(folder / "logs/a/b.log", 1000), "");
}

TEST(PaperChild, IsAskedOnceToEnd) {
  const TemporaryFolder folder;
  int watched = 0;
  const int status = run_child({.program = "/bin/sh",
                                .arguments = {"-c", "trap 'exit 75' TERM; while true; do sleep 0.05; done"},
                                .folder = folder.path(),
                                .log = folder / "log",
                                .stop = [&] { return watched > 3; },
                                .watch = [&] { ++watched; }});
  EXPECT_EQ(status, 75);
}

TEST(PaperChild, AProgramThatIsNotThere) {
  const TemporaryFolder folder;
  EXPECT_EQ(
      run_child(
          {.program = folder / "none", .arguments = {}, .folder = folder.path(), .log = folder / "log"}),
      127);
}

}  // namespace
}  // namespace gsa::paper
