// Working through a plan with a stub for its steps: cut off anywhere, it goes on and comes to the same.
#include "paper/run.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <random>
#include <set>

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

// Trainings and times are alone; measurements of one system are not.
TEST(PaperRun, MeasurementsRunSideBySide) {
  const TemporaryFolder one, four;
  run_plan(plan(), one.path(), with(done));
  std::mutex mutex;
  std::multiset<Kind> running;
  std::size_t max_running = 0;
  RunOptions options = with([&](const Step& step) {
    {
      const std::lock_guard lock(mutex);
      running.insert(step.kind);
      max_running = std::max(max_running, running.size());
      const bool alone =
          running.contains(Kind::data) || running.contains(Kind::training) || running.contains(Kind::speed);
      EXPECT_TRUE(!alone || running.size() == 1) << step.name;
    }
    ::usleep(5000);
    const std::lock_guard lock(mutex);
    running.erase(running.find(step.kind));
    return true;
  });
  options.jobs = 4;
  const RunReport report = run_plan(plan(), four.path(), options);
  EXPECT_EQ(report.now, plan().size());
  EXPECT_EQ(max_running, 4u);
  EXPECT_EQ(page(four.path()), page(one.path()));
}

TEST(PaperRun, AFailedMeasurementEndsTheRunWhenTheOthersHaveEnded) {
  const TemporaryFolder folder;
  const std::string failing = "seed-1/standard/eval-1";
  std::atomic<bool> begun = false, failed = false;
  RunOptions options = with([&](const Step& step) {
    if (step.name == failing) {
      while (!begun) ::usleep(1000);
      failed = true;
      throw Error("full disk");
    }
    if (step.name == "seed-1/standard/eval-2") {
      begun = true;
      while (!failed) ::usleep(1000);
      ::usleep(20'000);
    }
    return true;
  });
  options.jobs = 2;
  expect_error([&] { run_plan(plan(), folder.path(), options); }, {"full disk"});
  EXPECT_TRUE(std::filesystem::exists(folder / "results/seed-1/standard/eval-2.json"));
  EXPECT_FALSE(std::filesystem::exists(folder / "results" / (failing + ".json")));
  const RunReport rest = run_plan(plan(), folder.path(), with(done));
  EXPECT_EQ(rest.before + rest.now, plan().size());
}

// As `kill -9` at ten random moments.
TEST(PaperRun, KilledAtRandomMomentsEndsWithTheSamePage) {
  const TemporaryFolder whole, killed;
  run_plan(plan(), whole.path(), with(done));
  std::mt19937 random(7);
  int begun[2];  // a byte for each step
  ASSERT_EQ(::pipe(begun), 0);
  // No kill comes too late on any machine: all children together do less than the plan.
  const std::size_t most = plan().size() / 11;
  ASSERT_GE(most, 2u);
  std::size_t performed = 0;
  const auto slowly = with([&](const Step&) {
    if (performed++ == most) ::pause();
    return ::write(begun[1], "", 1) == 1 && ::usleep(8000) == 0;
  });
  for (int kill = 0; kill < 10; ++kill) {
    const pid_t child = ::fork();
    if (child == 0) {
      run_plan(plan(), killed.path(), slowly);
      ::_exit(0);
    }
    // Nor is nothing ever done: where a second step has begun the first one is stored.
    if (kill == 0) {
      char byte = 0;
      for (int step = 0; step < 2; ++step) {
        pollfd wait{.fd = begun[0], .events = POLLIN, .revents = 0};
        ASSERT_EQ(::poll(&wait, 1, 60'000), 1) << "no step has begun";
        ASSERT_EQ(::read(begun[0], &byte, 1), 1);
      }
    }
    ::usleep(static_cast<useconds_t>(random() % 40'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it had ended before kill " << kill + 1;
  }
  const RunReport rest = run_plan(plan(), killed.path(), with(done));
  ::close(begun[0]);
  ::close(begun[1]);
  EXPECT_GT(rest.before, 0u);
  EXPECT_GT(rest.now, 0u);
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

// Leaves of a training what is checked: a checkpoint of this step.
void put_checkpoint(const std::filesystem::path& run, std::int64_t step) {
  std::filesystem::create_directories(run / "latest");
  std::ofstream(run / "latest/manifest.json") << "{\"step\": " << step << "}";
}

void put(const std::filesystem::path& file) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << "x";
}

// The base is trained again as a need, and cut off at half: the next call goes on with it.
TEST(PaperRun, AHalfTrainedModelIsNotAvailable) {
  const TemporaryFolder folder;
  run_plan(plan(), folder.path(), with(done));
  std::filesystem::remove(folder / "results/seed-1/gsa/train.json");
  std::vector<std::string> performed;
  bool cut = true;
  RunOptions options{.perform =
                         [&](const Step& step) {
                           performed.push_back(step.name);
                           if (step.kind == Kind::data) put(folder / kDataDone);
                           if (step.kind == Kind::training)
                             put_checkpoint(folder / step.output, cut ? step.steps / 2 : step.steps);
                           return step.kind == Kind::data || !cut;
                         },
                     .values = made_up};
  EXPECT_EQ(run_plan(plan(), folder.path(), options).ended, Ended::stopped);
  cut = false;
  EXPECT_EQ(run_plan(plan(), folder.path(), options).ended, Ended::all_done);
  EXPECT_EQ(performed, (std::vector<std::string>{"data", "seed-1/base-gated/train", "seed-1/base-gated/train",
                                                 "seed-1/gsa/train"}));
}

TEST(PaperRun, DataThatAreNotWholeAreMadeAgain) {
  const TemporaryFolder folder;
  put(folder / "data/train/dataset.json");
  EXPECT_FALSE(has_output(plan()[0], folder.path()));
  std::ofstream(folder / kDataDone) << "";  // as an earlier version left it
  EXPECT_FALSE(has_output(plan()[0], folder.path()));
  put(folder / kDataDone);
  EXPECT_TRUE(has_output(plan()[0], folder.path()));
}

// `gsa ruler` refuses a folder of other weights.
TEST(PaperRun, WhatWasBegunWithAModelThatIsGoneIsBegunAnew) {
  const TemporaryFolder folder;
  run_plan(plan(), folder.path(), with(done));
  std::filesystem::remove(folder / "results/seed-1/gsa/ruler-1024.json");
  std::filesystem::remove(folder / "results/seed-1/relu/train.json");
  for (const char* name : {"gsa/ruler-1024/run.json", "gsa/ruler/run.json", "relu/checkpoints/a"})
    put(folder / "runs/seed-1" / name);
  std::vector<std::string> made;
  RunOptions options = with([&](const Step& step) {
    made.push_back(step.name);
    if (step.name == "seed-1/gsa/ruler-1024") {
      EXPECT_FALSE(std::filesystem::exists(folder / "runs/seed-1/gsa/ruler-1024"));
      EXPECT_TRUE(std::filesystem::exists(folder / "runs/seed-1/gsa/ruler"));  // it has a result
      EXPECT_FALSE(
          std::filesystem::exists(folder / "runs/seed-1/relu/checkpoints"));  // from the base that was gone
    }
    return true;
  });
  options.available = [&](const Step& step, const auto&) {
    return step.kind != Kind::training || std::find(made.begin(), made.end(), step.name) != made.end();
  };
  run_plan(plan(), folder.path(), options);
  EXPECT_EQ(made, (std::vector<std::string>{"seed-1/base-gated/train", "seed-1/gsa/train",
                                            "seed-1/gsa/ruler-1024", "seed-1/relu/train"}));
}

TEST(PaperRun, FiguresOfAnotherPlanAreRefused) {
  const TemporaryFolder folder;
  run_plan(plan(), folder.path(), with(done));
  EXPECT_NO_THROW(check_results(plan(), folder.path()));
  Scale longer = scale_by_name("smoke");
  longer.rate *= 2;
  expect_error([&] { check_results(make_plan({.scale = longer}), folder.path()); },
               {"results/seed-1/base-standard/train.json", "gsa train --set", "those of another",
                "'optimizer.lr=0.003' instead of 'optimizer.lr=0.006'"});
  std::ofstream(result_file(plan()[1], folder.path())) << "{\"values\": {}}";
  expect_error([&] { check_results(plan(), folder.path()); }, {"the arguments of a step's command"});
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

TEST(PaperRun, ResultsSayWhen) {
  const TemporaryFolder folder;
  EXPECT_EQ(dates_in(plan(), folder.path()), "");
  run_plan(plan(), folder.path(), with(done));
  EXPECT_EQ(dates_in(plan(), folder.path()).size(), std::string("2026-11-18").size());
  const auto set = [&](const Step& step, const std::string& date) {
    const std::filesystem::path file = result_file(step, folder.path());
    Json json = parse_json(read_file(file, 1 << 20), file.string());
    date.empty() ? void(json.erase("date")) : void(json["date"] = date);
    std::ofstream(file) << json.dump();
  };
  for (const Step& step : plan()) set(step, "2026-11-18");
  set(plan()[3], "2026-11-16");
  EXPECT_EQ(dates_in(plan(), folder.path()), "2026-11-16 to 2026-11-18");
  set(plan()[4], "");
  EXPECT_EQ(dates_in(plan(), folder.path()), "2026-11-16 to 2026-11-18 (1 earlier results do not say when)");
}

TEST(PaperRun, ADamagedResultIsNamed) {
  const TemporaryFolder folder;
  run_plan(plan(), folder.path(), with(done));
  std::ofstream(result_file(plan()[1], folder.path())) << "{\"values\": 3}";
  expect_error([&] { read_results(plan(), folder.path()); },
               {plan()[1].name + ".json", "figures as this program writes them"});
}

TEST(PaperFolder, IsOfOneScaleDataAndDevice) {
  const TemporaryFolder folder;
  const std::filesystem::path mine = folder / "out";
  std::filesystem::create_directories(mine);
  const Identity identity{
      .scale = scale_by_name("smoke"), .data = {{"rule", 1}, {"text", "made by rule"}}, .device = "cpu"};
  claim_folder(mine, identity);
  claim_folder(mine, identity);
  std::filesystem::create_directories(mine / "results");
  std::ofstream(mine / "results/data.json") << "{}";
  Identity other = identity;
  other.scale = scale_by_name("small");
  expect_error([&] { claim_folder(mine, other); }, {"a folder of the same scale, data and device", "--output",
                                                    R"(got scale "smoke", not "small")"});
  other.data = {{"rule", 1}, {"text", "a.txt"}, {"checksum", 5}};
  other.device = "cuda";
  expect_error(
      [&] { claim_folder(mine, other); },
      {R"(got data "made by rule", not "a.txt"; device "cpu", not "cuda"; scale "smoke", not "small")"});
  other = identity;
  other.data["rule"] = 2;
  other.scale.length = 1;
  expect_error([&] { claim_folder(mine, other); },
               {"data with another rule: 1, not 2; scale with another length: "});
  EXPECT_EQ(device_of_folder(mine), "cpu");
  EXPECT_EQ(device_of_folder(folder.path()), "");
}

TEST(PaperFolder, IsTakenOverWhereItHasComeToNothing) {
  const TemporaryFolder folder;
  const std::filesystem::path mine = folder / "out";
  const Identity first{
      .scale = scale_by_name("smoke"), .data = {{"rule", 1}, {"text", "no.txt"}}, .device = "cpu"};
  const Identity second{
      .scale = scale_by_name("small"), .data = {{"rule", 1}, {"text", "made by rule"}}, .device = "cuda"};
  std::filesystem::create_directories(mine);
  claim_folder(mine, first);
  std::filesystem::create_directories(mine / "data");
  std::ofstream(mine / "data/half") << "rows";
  std::filesystem::create_directories(mine / "results/seed-1");
  claim_folder(mine, second);
  EXPECT_EQ(device_of_folder(mine), "cuda");
  EXPECT_FALSE(std::filesystem::exists(mine / "data"));
  // A model that was begun is work.
  std::filesystem::create_directories(mine / "runs/seed-1/gsa");
  expect_error([&] { claim_folder(mine, first); }, {"device \"cuda\", not \"cpu\""});
  std::filesystem::remove_all(mine / "runs");
  std::ofstream(mine / "results/seed-1/train.json") << "{}";
  expect_error([&] { claim_folder(mine, first); }, {"scale \"small\""});
}

TEST(PaperFolder, OfOthersIsRefused) {
  const TemporaryFolder folder;
  std::ofstream(folder / "precious.txt") << "mine";
  expect_error(
      [&] { claim_folder(folder.path(), {.scale = scale_by_name("smoke"), .data = {}, .device = "cpu"}); },
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
