// Semaphores for deterministic accumulation: blocks of one launch add to the same memory in a fixed order,
// without waiting for each other's whole work.
//
// Blocks form a queue and all walk the same positions upwards, each over some of them. Every block has a
// semaphore that says how far it has come: a value of p means that this block, and all before it in the
// queue, are done with positions below p. A block that is about to add to positions below p waits until the
// semaphore of the one before it is at least p. Hence each address receives its sums in the order of the
// queue.
//
// A block may only wait for one that runs already. Blocks start in no promised order, so each takes a ticket
// when it starts, and its place in the queue comes from the ticket: who stands before it has started before
// it.
#pragma once

#include <climits>

namespace gsa::cuda {

// At a block's end: nothing more comes from it.
inline constexpr int kAllPositions = INT_MAX;

// For all threads of the block; `slot` is in shared memory. The counter starts at 0. Ends with a barrier.
__device__ __forceinline__ int take_ticket(int* counter, int* slot) {
  if (threadIdx.x == 0) *slot = atomicAdd(counter, 1);
  __syncthreads();
  return *slot;
}

// For every thread that adds. semaphore: of the block before, 0 at the start.
__device__ __forceinline__ void semaphore_wait(const int* semaphore, int position) {
  while (true) {
    int seen;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(semaphore) : "memory");
    if (seen >= position) return;
    __nanosleep(32);
  }
}

// For one thread, after a barrier that follows the block's additions.
__device__ __forceinline__ void semaphore_release(int* semaphore, int position) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(semaphore), "r"(position) : "memory");
}

}  // namespace gsa::cuda
