// Barriers in shared memory that count arrivals (mbarrier), by their shared address or by pointer. A phase
// ends when all expected arrivals have come; a wait names the phase (0, 1, 0, ...) whose end it awaits.
#pragma once

#include <cstdint>

#include "kernels/common/mma.cuh"

namespace gsa::cuda {

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After barrier_init, before the block's __syncthreads, where copies arrive at the barrier. From sm_90 on.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}
// Arrives when all cp.async of this thread so far have landed; counts as one of the expected arrivals.
__device__ __forceinline__ void barrier_arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// From sm_90 on.
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t phase) {
  asm volatile(
      "{.reg .pred done;\n"
      "wait_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait_%=;}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  barrier_init(shared_address(barrier), arrivals);
}
__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  barrier_arrive(shared_address(barrier));
}
__device__ __forceinline__ void barrier_arrive_after_copies(std::uint64_t* barrier) {
  barrier_arrive_after_copies(shared_address(barrier));
}
// On every device. The loop is the compiler's, which schedules other work around it than around the one
// above.
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, std::uint32_t phase) {
  unsigned done = 0;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(phase)
        : "memory");
#else
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(phase)
        : "memory");
#endif
  } while (done == 0);
}

// A barrier among some warps of the block: id 1 .. 15, threads a multiple of 32.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace gsa::cuda
