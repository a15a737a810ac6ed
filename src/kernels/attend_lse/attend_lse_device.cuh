// What the kernels of attend_lse share.
#pragma once

#include <cfloat>

#include "kernels/attend_lse/attend_lse_plan.h"
#include "kernels/common/shared_tile.cuh"

namespace gsa::cuda::lse {

struct Tile {
  int first_query = 0;  // row among all queries
  int queries = 0;
  int first_position = 0;
  int k_begin = 0;  // row of the sequence's first key among all keys

  __device__ __forceinline__ int visible() const { return first_position + queries; }  // to the last query
};

struct Params {
  const void* q = nullptr;
  const void* k = nullptr;
  long long q_token = 0, q_head = 0, k_token = 0, k_head = 0;  // strides
  int heads = 0, group = 0, size = 0;
  float scale = 0;             // times log2(e)
  bool aligned = false;        // rows can be read 16 bytes at a time
  const Tile* tile = nullptr;  // [tiles]
  int splits = 0;              // of the longest tile
  float2* part = nullptr;      // [tiles, kQueries, heads, splits]: maximum and sum of 2^(a - maximum)
};

// Maximum and sum of 2^(x - maximum) of the logits that a lane has seen of one row.
struct RowState {
  float maximum = -INFINITY, sum = 0;

  // x: logits times log2(e); -inf where a key is not visible.
  template <int count, class At>
  __device__ __forceinline__ void add(At at) {
    float high = maximum;
#pragma unroll
    for (int i = 0; i < count; ++i) high = fmaxf(high, at(i));
    const float shift = high == -INFINITY ? 0.0f : high;
    float more = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) more += power_of_two(at(i) - shift);
    sum = fmaf(sum, power_of_two(maximum - shift), more);
    maximum = high;
  }
  // Of the four lanes that share a row; all of them get the result.
  __device__ __forceinline__ void join() {
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
      const float other_maximum = __shfl_xor_sync(~0u, maximum, step);
      const float other_sum = __shfl_xor_sync(~0u, sum, step);
      const float high = fmaxf(maximum, other_maximum);
      const float shift = high == -INFINITY ? 0.0f : high;
      sum = sum * power_of_two(maximum - shift) + other_sum * power_of_two(other_maximum - shift);
      maximum = high;
    }
  }
};

// What a lane holds of 16 rows after a product: rows lane / 4 and + 8 of its warp's 16.
__device__ __forceinline__ void store_part(const Params& p, int tile, int query, int head, int split,
                                           RowState state) {
  state.join();
  if (threadIdx.x % 4 != 0) return;
  const long long row = static_cast<long long>(tile) * kQueries + query;
  p.part[(row * p.heads + head) * p.splits + split] = make_float2(state.maximum, state.sum);
}

}  // namespace gsa::cuda::lse
