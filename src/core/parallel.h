// Threads come from outside: a process must have one thread pool (libtorch brings its own), so kernels
// ask a Parallel for workers and never start threads themselves.
#pragma once

#include <cstdint>
#include <functional>

namespace gsa {

class Parallel {
 public:
  virtual ~Parallel() = default;

  // How many workers run() may use: worker indices lie in [0, workers()).
  virtual int workers() const = 0;

  // Calls body(task, worker) once for each task in [0, tasks), in any order. Two calls that run at the same
  // time carry different worker indices, so scratch memory may be kept per worker. An exception thrown by
  // body stops the remaining tasks and is thrown again here.
  virtual void run(std::int64_t tasks,
                   const std::function<void(std::int64_t task, int worker)>& body) const = 0;
};

// Runs everything on the calling thread.
const Parallel& serial();

// Starts its own std::threads at each run: for programs without a pool (tests, small tools).
class ThreadParallel final : public Parallel {
 public:
  explicit ThreadParallel(int workers);
  int workers() const override { return workers_; }
  void run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& body) const override;

 private:
  int workers_;
};

// The shared part of every Parallel: workers draw tasks from one counter, so that uneven tasks (causal
// attention) balance. An implementation constructs one and calls work(w) from each of its threads.
class TaskQueue {
 public:
  TaskQueue(std::int64_t tasks, const std::function<void(std::int64_t, int)>& body);
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  void work(int worker) noexcept;
  void rethrow() const;  // throws what a body threw, if any did

 private:
  struct State;
  State* state_;
};

}  // namespace gsa
