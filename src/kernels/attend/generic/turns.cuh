// Turns: blocks of one launch add to the same memory in a fixed order, without waiting for each other's whole
// work.
//
// Blocks stand in a line and all walk the same positions upwards, each over some of them. Every block
// publishes how far it has come: a published p means that this block, and all before it in the line, are done
// with positions below p. A block that is about to add to positions below p waits until the one before it has
// published at least p. Hence each address receives its sums in the order of the line.
//
// A block may only wait for one that runs already. Blocks start in no promised order, so each takes a ticket
// when it starts, and its place in the line comes from the ticket: who stands before it has started before
// it.
#pragma once

#include <climits>

namespace gsa::cuda {

// Published at a block's end: nothing more comes from it.
inline constexpr int kAllPositions = INT_MAX;

// For all threads of the block; `slot` is in shared memory. The counter starts at 0. Ends with a barrier.
__device__ __forceinline__ int take_ticket(int* counter, int* slot) {
  if (threadIdx.x == 0) *slot = atomicAdd(counter, 1);
  __syncthreads();
  return *slot;
}

// For every thread that adds. progress: of the block before, 0 at the start.
__device__ __forceinline__ void wait_for_turn(const int* progress, int position) {
  while (true) {
    int seen;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(progress) : "memory");
    if (seen >= position) return;
    __nanosleep(32);
  }
}

// For one thread, after a barrier that follows the block's additions.
__device__ __forceinline__ void pass_turn(int* progress, int position) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(progress), "r"(position) : "memory");
}

}  // namespace gsa::cuda
