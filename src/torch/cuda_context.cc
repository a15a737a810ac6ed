#include "torch/cuda_context.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace gsa::binding {

CudaContext::CudaContext(const at::Device& device) : guard_(device), device_(device) {
  cuda::use_device(device.index());
  const c10::impl::VirtualGuardImpl guard(device.type());
  context_.stream = guard.getStream(device).native_handle();
  context_.workspace = this;
  context_.device = cuda::current_device();
}

void* CudaContext::allocate(std::size_t bytes) {
  const std::int64_t size = static_cast<std::int64_t>(bytes);
  scratch_.push_back(at::empty({size}, at::TensorOptions().dtype(at::kByte).device(device_)));
  return scratch_.back().mutable_data_ptr();
}

}  // namespace gsa::binding
