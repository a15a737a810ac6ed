#include "serve/core/worker.h"

#include <cassert>
#include <utility>

namespace gsa::serve {

Worker::Worker() : thread_([this] { run(); }) {}

Worker::~Worker() { assert(!thread_.joinable()); }

void Worker::post(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      jobs_.push_back(std::move(job));
      changed_.notify_one();
      return;
    }
  }
  job();
}

void Worker::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closed_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    {
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      try {
        job();
      } catch (...) {  // no memory for an answer: its reply, let go of, says so
      }
    }  // what it holds is let go of without the lock
    lock.lock();
  }
}

}  // namespace gsa::serve
