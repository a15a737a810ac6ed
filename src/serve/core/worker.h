// A thread for what takes too long on the one that computes: large answers become JSON there. No torch header.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace gsa::serve {

class Worker {
 public:
  Worker();
  ~Worker();  // close() comes first
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Jobs run one after another in the order in which they came. What one throws ends it alone.
  void post(std::function<void()> job);
  // Does what waits and ends the thread. What is posted later runs on its caller's thread: nothing gets lost. Not from
  // a job.
  void close();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace gsa::serve
