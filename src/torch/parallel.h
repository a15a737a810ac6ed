// Kernels run on libtorch's threads: one pool in the process, and torch.set_num_threads() rules it.
#pragma once

#include "core/parallel.h"

namespace gsa::binding {

class TorchParallel final : public Parallel {
 public:
  // Takes as many workers as torch has threads now; one inside a parallel region, where torch would not
  // start more.
  TorchParallel();

  int workers() const override { return workers_; }
  void run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& body) const override;

 private:
  int workers_;
};

}  // namespace gsa::binding
