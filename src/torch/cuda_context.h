// torch's side of a CUDA launch: current stream, device guard, scratch memory from the caching allocator.
// Goes through c10's device-independent interfaces, so that nothing here links torch's CUDA libraries.
#pragma once

#include <c10/core/DeviceGuard.h>

#include <vector>

#include "core/cuda_context.h"
#include "torch/tensor_checks.h"

namespace gsa::binding {

// The device is the current one while this lives.
class CudaContext final : public cuda::Workspace {
 public:
  explicit CudaContext(const at::Device& device);
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  void* allocate(std::size_t bytes) override;

  // Calls op(context). Scratch memory goes back afterwards: the allocator gives it out again in the order of
  // the stream, so that work already enqueued keeps it.
  template <typename Op>
  void run(const Op& op) {
    op(context_);
    scratch_.clear();
  }

  const cuda::Device& device() const { return context_.device; }

 private:
  c10::DeviceGuard guard_;
  at::Device device_;
  cuda::Context context_;
  std::vector<Tensor> scratch_;
};

}  // namespace gsa::binding
