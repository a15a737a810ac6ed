#include "torch/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>

// at::parallel_for is a template: compiled without OpenMP it runs on one thread and says nothing.
#if AT_PARALLEL_OPENMP && !defined(_OPENMP)
#error "this file needs the compiler's OpenMP flag (and torch's own OpenMP runtime, not a second one)"
#endif

namespace gsa::binding {

TorchParallel::TorchParallel()
    : workers_(at::in_parallel_region() ? 1 : std::max(1, at::get_num_threads())) {}

void TorchParallel::run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& body) const {
  TaskQueue queue(tasks, body);
  const std::int64_t threads = std::min<std::int64_t>(workers_, tasks);
  // Each index is a worker, not a task: the queue balances uneven tasks. Torch may give two indices to one
  // thread, one after the other; the second then finds the queue empty.
  at::parallel_for(0, threads, 1, [&queue](std::int64_t begin, std::int64_t end) {
    for (std::int64_t worker = begin; worker < end; ++worker) queue.work(static_cast<int>(worker));
  });
  queue.rethrow();
}

}  // namespace gsa::binding
