// Device code that the stages of decode share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/mma.cuh"
#include "kernels/common/pipeline.cuh"
#include "kernels/decode/cuda/stages.h"

namespace gsa::cuda::decoding {

// Keys of sequence n.
__device__ __forceinline__ int keys_of(const Cache& cache, int n) {
  const int length = cache.length[n];
  return length > cache.max_length ? 0 : length;
}
// Keys that query i of a sequence with so many keys sees; none where its position would be negative.
__device__ __forceinline__ int visible_to(const Cache& cache, int keys, int i) {
  return max(0, keys == 0 ? 0 : keys - cache.queries + i + 1);
}

// Keys that a row attends to.
__device__ __forceinline__ int count_of(const Kept& kept, const Cache& cache, int row) {
  if (!kept.dense) return min(kept.counts[row], kept.max_count);
  return visible_to(cache, keys_of(cache, row / cache.queries), row % cache.queries);
}

}  // namespace gsa::cuda::decoding
