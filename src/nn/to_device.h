// Numbers made on the host, on their way to a device.
#pragma once

#include "nn/torch.h"

namespace gsa::nn {

// On a GPU the copy is enqueued like everything else: it goes through pinned memory, because a copy from
// ordinary memory would wait for all that was enqueued before.
inline at::Tensor to_device(const at::Tensor& host, const at::Device& device) {
  return device.is_cuda() ? host.pin_memory().to(device, /*non_blocking=*/true) : host.to(device);
}

}  // namespace gsa::nn
