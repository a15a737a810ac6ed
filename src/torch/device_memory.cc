#include "torch/device_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace gsa::binding {

std::optional<MemoryRoom> device_memory_room(const at::Device& device) {
  if (device.is_cpu()) return memory_room();
  at::empty({1}, at::TensorOptions().device(device));  // the allocator is made with a device's first tensor
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(device.type());
  const auto index = device.has_index() ? device.index() : c10::DeviceIndex(0);
  const auto stats = allocator->getDeviceStats(index);
  const auto unused = stats.reserved_bytes[0].current - stats.allocated_bytes[0].current;  // 0: all pools
  return MemoryRoom{static_cast<std::int64_t>(allocator->getMemoryInfo(index).first) + unused, "the GPU"};
}

}  // namespace gsa::binding
