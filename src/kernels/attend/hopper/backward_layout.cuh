// Of the Hopper backward kernel: its parameters, where things lie in shared memory, the instructions it needs
// beside those of kernels/common, and masks of rows.
#pragma once

#include <cstdint>

#include "kernels/attend/cuda/weight.cuh"
#include "kernels/attention/union_plan.h"
#include "kernels/common/wgmma.cuh"

namespace gsa::cuda::backward {

constexpr int kRows = 128;  // of a tile
constexpr int kKeys = 128;  // of a step
constexpr int kThreads = 384;
constexpr int kDone = 0x7fffffff;            // of a semaphore: nothing is left
constexpr std::uint32_t kPanel = 128 * 128;  // bytes of a panel: 64 columns of 128 rows

// Rows in global memory, strides in bytes.
struct RowsView {
  char* data;
  std::int64_t token_stride;
  std::int64_t head_stride;
};

struct Params {
  RowsView q, k, v, dout, dq;
  const float* lse;    // [queries, heads]
  const float* delta;  // [queries, heads]
  float* dk;           // [keys, kv_heads, d]
  float* dv;
  const UnionTile* tile;
  const int* keys;            // null: every visible key
  const std::uint64_t* bits;  // of keys
  int capacity;
  int tiles;
  int kv_heads;
  int group_log2;
  float scale;
  float scale_log2;     // scale * log2(e)
  const int* schedule;  // [tiles, kv_heads]: tile * kv_heads + head of each ticket
  int* ticket;          // zero at the start
  int* semaphores;      // [tiles, kv_heads, dV and dK], zero at the start; null: atomic accumulation
};

template <int d>
struct Shared {
  static constexpr std::uint32_t kMatrix = d / 64 * kPanel;  // 128 rows of d
  static constexpr std::uint32_t kQ = 0;
  static constexpr std::uint32_t kDout = kQ + kMatrix;
  static constexpr std::uint32_t kDs = kDout + kMatrix;  // two panels of 64 rows x 128 keys, rows contiguous
  static constexpr std::uint32_t kRing = kDs + 2 * kPanel;        // two matrices: keys and values of a step
  static constexpr std::uint32_t kSums = kRing + 2 * kMatrix;     // float [128 keys, d]: dK or dV of a step
  static constexpr std::uint32_t kStats = kSums + kKeys * d * 4;  // float4 for each two rows: lse, delta
  static constexpr std::uint32_t kBarriers = kStats + kRows / 2 * 16;
  static constexpr std::uint32_t kWords = kBarriers + 10 * 8;
  static constexpr std::uint32_t kKeyLists = kWords + 8 * 4;  // int [2, 64]: keys of sums
  static constexpr std::uint32_t kBytes = kKeyLists + 2 * 64 * 4;
  static constexpr std::uint32_t kAllocated = kBytes + 1024;  // room to align

  static constexpr std::uint32_t kFullK = kBarriers;
  static constexpr std::uint32_t kFullV = kBarriers + 8;
  static constexpr std::uint32_t kFreeK = kBarriers + 16;
  static constexpr std::uint32_t kFreeV = kBarriers + 24;
  static constexpr std::uint32_t kFullDs = kBarriers + 32;
  static constexpr std::uint32_t kFreeDs = kBarriers + 40;
  static constexpr std::uint32_t kFullSums = kBarriers + 48;  // of the first warpgroup; the second's is next
  static constexpr std::uint32_t kFreeSums = kBarriers + 64;
  static constexpr std::uint32_t kTicket = kWords;
  static constexpr std::uint32_t kBad = kWords + 4;  // a bit for each row that is not finite
};

// ---- small wrappers

// What leaves the L2 cache first, and what last.
__device__ __forceinline__ std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ std::uint64_t evict_last_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// 16 bytes to shared memory, asynchronously; where !valid, zeros.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, bool valid,
                                        std::uint64_t policy) {
  asm volatile(
      "{.reg .pred ignored; setp.eq.s32 ignored, %2, 0;\n"
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, ignored, %3;}" ::"r"(to),
      "l"(from), "r"(static_cast<int>(valid)), "l"(policy)
      : "memory");
}
// Adds `bytes` of floats in shared memory to memory, asynchronously; both 16-byte aligned.
__device__ __forceinline__ void reduce_add(float* to, std::uint32_t from, int bytes, std::uint64_t policy) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, %3;" ::"l"(
          to),
      "r"(from), "r"(bytes), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until the sources of this thread's reductions may be overwritten; until they are performed.
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ int load_acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(int* to, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
// What was acquired comes before asynchronous operations on memory.
__device__ __forceinline__ void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// True in one lane of the warp, always the same. Instructions that take their operands from uniform registers
// run once under it; under `lane == 0` the compiler puts each into a loop over lanes.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t elected;
  asm volatile("{.reg .pred one; elect.sync _|one, 0xffffffff; selp.u32 %0, 1, 0, one;}" : "=r"(elected));
  return elected != 0;
}
__device__ __forceinline__ float4 load_shared_float4(std::uint32_t from) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(from));
  return value;
}
__device__ __forceinline__ uint4 load_shared_uint4(std::uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ void store_matrix_x4(std::uint32_t to, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// Keeps every fourth (or second, ...) bit pair of x together: bits 4 i of x to bits 2 i.
__device__ __forceinline__ std::uint32_t squeeze_4_to_2(std::uint64_t x) {
  x = (x | x >> 2) & 0x0505050505050505ull;
  x = (x | x >> 4) & 0x0055005500550055ull;
  x = (x | x >> 8) & 0x0000555500005555ull;
  return static_cast<std::uint32_t>(x | x >> 16);
}
// Bits i of x (16 of them) to bits 2 i.
__device__ __forceinline__ std::uint32_t spread_1_to_2(std::uint32_t x) {
  x = (x | x << 8) & 0x00ff00ffu;
  x = (x | x << 4) & 0x0f0f0f0fu;
  x = (x | x << 2) & 0x33333333u;
  return (x | x << 1) & 0x55555555u;
}

// Which of a thread's 32 values of a key count: bit 2 j + e stands for row 8 j + 2 column + e, which belongs
// to query row / G; bit i of `queries` says whether query i of the tile selects the key.
__device__ __forceinline__ std::uint32_t row_bits(std::uint64_t queries, int column, int group_log2) {
  std::uint32_t even;
  switch (group_log2) {
    case 0: {  // rows 0 .. 63 only: bits 8 j + 2 column + e
      const std::uint64_t x = queries >> 2 * column;
      std::uint64_t pairs = x & 0x0303030303030303ull;
      pairs = (pairs | pairs >> 6) & 0x000f000f000f000full;
      pairs = (pairs | pairs >> 12) & 0x000000ff000000ffull;
      return static_cast<std::uint32_t>((pairs | pairs >> 24) & 0xffffu);
    }
    case 1:
      even = squeeze_4_to_2(queries >> column & 0x1111111111111111ull);
      break;
    case 2:
      even = static_cast<std::uint32_t>(queries) >> (column >> 1) & 0x55555555u;
      break;
    case 3:
      even = spread_1_to_2(static_cast<std::uint32_t>(queries) & 0xffffu);
      break;
    default: {
      std::uint32_t x = static_cast<std::uint32_t>(queries) & 0xffu;  // bits i to 4 i and 4 i + 2
      x = (x | x << 12) & 0x000f000fu;
      x = (x | x << 6) & 0x03030303u;
      x = (x | x << 3) & 0x11111111u;
      even = x | x << 2;
      break;
    }
  }
  return even | even << 1;
}

// Queries of the tile that see position p; without a mask.
__device__ __forceinline__ std::uint64_t visible_from(int p, const UnionTile& tile) {
  const int first = max(p - tile.first_position, 0);
  const std::uint64_t all = ~std::uint64_t(0) >> (64 - tile.queries);
  return first >= 64 ? 0 : all >> first << first;
}

}  // namespace gsa::cuda::backward
