// How kernels hand work to each other: launches that overlap.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/cuda_check.h"

namespace gsa::cuda {

// Programmatic dependent launch: a kernel may start while the one before it drains. What the one before wrote
// may be read after wait_for_previous(). Without that launch attribute, and before sm_90, nothing happens.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

struct Launch {
  dim3 grid;
  int threads = 0;
  std::size_t shared_bytes = 0;
  int cluster = 1;
  bool overlap = false;  // start while the kernel before drains
};

template <typename Params>
void launch(void (*kernel)(Params), const Params& params, const Launch& how, const Context& context,
            const char* name) {
  cudaLaunchConfig_t config = {};
  config.gridDim = how.grid;
  config.blockDim = dim3(static_cast<unsigned>(how.threads));
  config.dynamicSmemBytes = how.shared_bytes;
  config.stream = stream_of(context.stream);
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (how.cluster > 1) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = static_cast<unsigned>(how.cluster);
    a.val.clusterDim.y = 1;
    a.val.clusterDim.z = 1;
  }
  if (how.overlap && context.device.hopper()) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  if (how.shared_bytes > 48 * 1024) allow_shared_memory(kernel, how.shared_bytes, name);
  check(cudaLaunchKernelEx(&config, kernel, params), name);
}

}  // namespace gsa::cuda
