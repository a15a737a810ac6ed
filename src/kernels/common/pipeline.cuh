// How kernels, and warps of a block, hand work to each other: launches that overlap, barriers in shared
// memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/cuda_check.h"
#include "kernels/common/mma.cuh"

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

// Barriers in shared memory: a phase ends when `count` arrivals have come.
__device__ __forceinline__ void mbarrier_init(std::uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(std::uint64_t* barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier))
               : "memory");
}
// Arrives when all asynchronous copies of this thread so far are done.
__device__ __forceinline__ void cp_async_arrive(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Waits until the phase of this parity has ended.
__device__ __forceinline__ void mbarrier_wait(std::uint64_t* barrier, int parity) {
  unsigned done = 0;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
#endif
  } while (done == 0);
}
// A barrier of some of the block's warps, `threads` in all.
template <int threads>
__device__ __forceinline__ void barrier_of(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(threads) : "memory");
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
