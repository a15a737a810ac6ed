// The contract of Parallel, on which the kernels' scratch memory and results rest.
#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace gsa {
namespace {

class ParallelTest : public ::testing::TestWithParam<int> {
 protected:
  // 0 stands for serial().
  ParallelTest() : threads_(std::max(1, GetParam())) {}
  const Parallel& parallel() const { return GetParam() == 0 ? serial() : threads_; }

 private:
  ThreadParallel threads_;
};

TEST_P(ParallelTest, RunsEveryTaskOnce) {
  EXPECT_EQ(parallel().workers(), std::max(1, GetParam()));
  for (const std::int64_t tasks : {0, 1, 2, 3, 7, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
    parallel().run(tasks, [&](std::int64_t task, int) { ++runs[static_cast<std::size_t>(task)]; });
    for (const std::atomic<int>& count : runs) ASSERT_EQ(count, 1) << "of " << tasks << " tasks";
  }
}

TEST_P(ParallelTest, CallsAtTheSameTimeHaveDifferentWorkers) {
  std::vector<std::atomic<int>> busy(static_cast<std::size_t>(parallel().workers()));
  std::atomic<int> collisions = 0, outside = 0;
  parallel().run(200, [&](std::int64_t, int worker) {
    if (worker < 0 || worker >= parallel().workers()) {
      ++outside;
      return;
    }
    std::atomic<int>& mine = busy[static_cast<std::size_t>(worker)];
    if (mine.fetch_add(1) != 0) ++collisions;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    --mine;
  });
  EXPECT_EQ(outside, 0);
  EXPECT_EQ(collisions, 0);
}

TEST_P(ParallelTest, ExceptionsComeOutAndStopTheRest) {
  std::atomic<std::int64_t> runs = 0;
  try {
    parallel().run(1'000'000, [&](std::int64_t task, int) {
      ++runs;
      if (task == 5) throw std::runtime_error("task five");
      // On a busy machine the thread of task five may wait for its turn: the others must not be done by then.
      if (task > 5) std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()), "task five");
  }
  EXPECT_LT(runs, 1'000'000);
  // It works again afterwards.
  std::atomic<int> after = 0;
  parallel().run(10, [&](std::int64_t, int) { ++after; });
  EXPECT_EQ(after, 10);
}

INSTANTIATE_TEST_SUITE_P(Parallel, ParallelTest, ::testing::Values(0, 1, 2, 3, 8),
                         [](const ::testing::TestParamInfo<int>& parameter) {
                           return parameter.param == 0 ? std::string("serial")
                                                       : std::to_string(parameter.param) + "_threads";
                         });

TEST(ThreadParallelTest, UsesItsThreads) {
  const ThreadParallel parallel(2);
  std::atomic<int> inside = 0;
  std::atomic<bool> met = false;
  // Each task waits for the other one, so that both must run at the same time.
  parallel.run(2, [&](std::int64_t, int) {
    ++inside;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (inside < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    if (inside == 2) met = true;
  });
  EXPECT_TRUE(met);
}

TEST(ThreadParallelTest, HasAtLeastOneWorker) {
  EXPECT_EQ(ThreadParallel(0).workers(), 1);
  EXPECT_EQ(ThreadParallel(-3).workers(), 1);
}

}  // namespace
}  // namespace gsa
