#include "core/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace gsa {

struct TaskQueue::State {
  State(std::int64_t task_count, const std::function<void(std::int64_t, int)>& task_body)
      : tasks(task_count), body(task_body) {}

  std::int64_t tasks;
  const std::function<void(std::int64_t, int)>& body;
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
};

TaskQueue::TaskQueue(std::int64_t tasks, const std::function<void(std::int64_t, int)>& body)
    : state_(new State(tasks, body)) {}

TaskQueue::~TaskQueue() { delete state_; }

void TaskQueue::work(int worker) noexcept {
  for (;;) {
    const std::int64_t task = state_->next.fetch_add(1, std::memory_order_relaxed);
    if (task >= state_->tasks) return;
    try {
      state_->body(task, worker);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      if (!state_->error) state_->error = std::current_exception();
      state_->next.store(state_->tasks, std::memory_order_relaxed);
      return;
    }
  }
}

void TaskQueue::rethrow() const {
  if (state_->error) std::rethrow_exception(state_->error);
}

namespace {

class Serial final : public Parallel {
 public:
  int workers() const override { return 1; }
  void run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& body) const override {
    for (std::int64_t task = 0; task < tasks; ++task) body(task, 0);
  }
};

}  // namespace

const Parallel& serial() {
  static const Serial instance;
  return instance;
}

ThreadParallel::ThreadParallel(int workers) : workers_(std::max(1, workers)) {}

void ThreadParallel::run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& body) const {
  const int threads = static_cast<int>(std::min<std::int64_t>(workers_, tasks));
  TaskQueue queue(tasks, body);
  std::vector<std::thread> pool;
  try {
    for (int w = 1; w < threads; ++w) pool.emplace_back([&queue, w] { queue.work(w); });
  } catch (const std::system_error&) {
    // No more threads to be had: those that started share the work.
  }
  queue.work(0);
  for (std::thread& thread : pool) thread.join();
  queue.rethrow();
}

}  // namespace gsa
