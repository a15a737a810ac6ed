// Of the Hopper backward kernel: the warps that bring keys and values, and those that add sums to memory and
// keep their order.
#pragma once

#include "kernels/attend/attend_backward_layout.cuh"

namespace gsa::cuda::backward {

// One warp copies the rows of keys of every step, one those of values. Keys of step i lie in matrix i % 2 of
// the ring and its values in the other one: values of step i come when the keys of step i - 1 are used up,
// and keys of step i + 1 when the values of step i are. from: the row of position 0; to: the matrix of step
// 0; full, free: what the copy ends, and what it waits for from step 1 on.
template <int d>
__device__ __forceinline__ void gather(const char* from, std::uint32_t stride, const int* keys, int count,
                                       std::uint32_t to, std::uint32_t other, std::uint32_t full,
                                       std::uint32_t free) {
  constexpr int kLanes = d / 8;         // of a row
  constexpr int kAtOnce = 32 / kLanes;  // rows of an instruction
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int chunk = lane % kLanes, sub = lane / kLanes;
  from += chunk * 16;
  std::uint32_t columns[4];  // where the chunk lies in rows j * kAtOnce + sub, modulo 8
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    columns[j] = chunk / 8 * kPanel + sub * 128 + ((chunk % 8 ^ (j * kAtOnce + sub) % 8) << 4);
    asm("" : "+r"(columns[j]));  // once, not for each copy
  }
  asm("" : "+l"(from));
  const auto key_at = [&](int at) { return keys != nullptr && at < count ? keys[at] : at; };
  const std::uint64_t policy = evict_first_policy();
  int ahead = key_at(lane);
  std::uint32_t phase = 1;
  for (int begin = 0; begin < count;) {
    if (begin > 0) hopper::barrier_wait(free, phase);
#pragma unroll 1
    for (int part = 0; part < kKeys / 32; ++part, begin += 32) {
      const int mine = ahead;
      ahead = key_at(begin + 32 + lane);
      const std::uint32_t rows = to + part * 32 * 128;
      const int valid = count - begin - sub;
#pragma unroll
      for (int i = 0; i < 32; i += 4 * kAtOnce) {
        std::uint32_t key[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) key[j] = __shfl_sync(0xffffffffu, mine, i + j * kAtOnce + sub);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = i + j * kAtOnce;
          copy_16(rows + row * 128 + columns[j], from + std::uint64_t(key[j]) * stride, row < valid, policy);
        }
      }
    }
    cp_async_commit();
    cp_async_wait<0>();
    hopper::fence_async_proxy();
    __syncwarp();
    if (lane == 0) hopper::barrier_arrive(full);
    phase ^= 1;
    const std::uint32_t swap = to;
    to = other;
    other = swap;
  }
}

// How far the tile before has come: the lesser of what its two warpgroups have published.
__device__ __forceinline__ int reached(const int* before) {
  const int position = load_acquire(before + (threadIdx.x & 1));
  return __reduce_min_sync(0xffffffffu, position);
}

// After this thread's, and its warp's, additions are performed.
__device__ __forceinline__ void publish(int* to, int position) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    __threadfence();
    store_relaxed(to, position);
  }
}

// One warp for each computing warpgroup adds the warpgroup's sums to memory, dV and dK of a step in turn, one
// reduction a row, and keeps the order. mine: where this warpgroup's progress is published (of dV, and two
// further that of dK), null for no order; before: the progress of the tile before, null for none.
template <int d>
__device__ __forceinline__ void add_sums(const Params& p, const UnionTile& tile, const int* keys, int kv_head,
                                         int group, std::uint32_t shared, int* mine, const int* before) {
  using namespace hopper;
  using Layout = Shared<d>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::uint32_t full = shared + Layout::kFullSums + 8 * group;
  const std::uint32_t free = shared + Layout::kFreeSums + 8 * group;
  const std::uint32_t rows = shared + Layout::kSums + (64 * group + lane) * d * 4;
  const int stride = p.kv_heads * d;
  const std::uint64_t policy = evict_last_policy();
  const auto key_at = [&](int at, int none) {
    return at >= tile.count ? none : keys != nullptr ? keys[at] : at;
  };
  int limits[2];
  limits[0] = limits[1] = before == nullptr ? kDone : 0;
  int begin = 64 * group;
  for (int step = 0; step * kKeys < tile.count; ++step, begin += kKeys) {
    const int upper = key_at(begin + lane, -1), lower = key_at(begin + 32 + lane, -1);
    const int last = __reduce_max_sync(0xffffffffu, max(upper, lower));
    const int next = key_at(begin + kKeys, kDone);
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      barrier_wait(full, turn);
      while (limits[turn] <= last) limits[turn] = reached(before + 2 * turn);
      float* const to = (turn == 0 ? p.dv : p.dk) + kv_head * d;
      if (upper >= 0) reduce_add(to + std::int64_t(tile.k_begin + upper) * stride, rows, d * 4, policy);
      if (lower >= 0) {
        reduce_add(to + std::int64_t(tile.k_begin + lower) * stride, rows + 32 * d * 4, d * 4, policy);
      }
      bulk_commit();
      bulk_wait_read();
      __syncwarp();
      if (lane == 0) barrier_arrive(free);
      if (mine != nullptr) {
        bulk_wait();
        publish(mine + 2 * turn, min(limits[turn], next));
      }
    }
  }
  bulk_wait();
  if (mine != nullptr) {
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      while (limits[turn] != kDone) limits[turn] = reached(before + 2 * turn);
      publish(mine + 2 * turn, kDone);
    }
  }
}

}  // namespace gsa::cuda::backward
