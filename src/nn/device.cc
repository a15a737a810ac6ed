#include "nn/device.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <fstream>

#include "gsa/error.h"
#include "nn/torch.h"
#include "torch/ops.h"

namespace gsa::nn {

at::Device device_by_name(const std::string& name) {
  if (name == "cpu") return torch::kCPU;
  const bool gpu = torch::cuda::is_available(), operators = ops::built_with_cuda();
  if (name == "cuda" && !gpu)
    throw Error("option 'device': expected a GPU that torch sees for cuda, got none");
  if (name == "cuda" && !operators) {
    throw Error(
        "option 'device': expected a build with the CUDA operators for cuda (configured where nvcc and a "
        "torch "
        "for CUDA are), got one without");
  }
  return gpu && operators ? torch::Device(torch::kCUDA, 0) : torch::Device(torch::kCPU);
}

std::string precision_on(const std::string& precision, at::Device device) {
  if (precision != "auto") return precision;
  return device.is_cuda() ? "bf16" : "fp32";
}

std::int64_t memory_in_use(at::Device device) {
  if (!device.is_cpu()) {
    const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
    return stats.allocated_bytes[0].peak;  // 0: all pools together
  }
  std::int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace gsa::nn
