// Of the Hopper backward kernel: the warps that bring keys and values, and those that add sums to memory and
// keep their order.
#pragma once

#include "kernels/attend/hopper/backward_layout.cuh"

namespace gsa::cuda::backward {

// Where the rows of a sequence's keys or values begin, and how many bytes they are apart.
struct Source {
  const char* rows;
  std::uint32_t stride;
};

// Two warps copy the rows of keys and values, each its half of the 128 rows of a step: no place in shared
// memory has two writers. Keys of step i lie in matrix i % 2 of the ring and its values in the other one:
// keys come when the values of step i - 1 are used up, values when the keys of step i - 1 are.
template <int d>
__device__ __forceinline__ void gather(Source key_rows, Source value_rows, const int* keys, int count,
                                       int half, std::uint32_t shared) {
  using namespace hopper;
  using Layout = Shared<d>;
  constexpr int kLanes = d / 8;         // of a row
  constexpr int kAtOnce = 32 / kLanes;  // rows of an instruction
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int chunk = lane % kLanes, sub = lane / kLanes;
  key_rows.rows += chunk * 16;
  value_rows.rows += chunk * 16;
  std::uint32_t columns[4];  // where the chunk lies in rows j * kAtOnce + sub, modulo 8
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    columns[j] =
        half * 64 * 128 + chunk / 8 * kPanel + sub * 128 + ((chunk % 8 ^ (j * kAtOnce + sub) % 8) << 4);
    asm("" : "+r"(columns[j]));  // once, not for each copy
  }
  const auto key_at = [&](int at) { return keys != nullptr && at < count ? keys[at] : at; };
  const std::uint64_t policy = evict_first_policy();
  int upper = key_at(64 * half + lane), lower = key_at(64 * half + 32 + lane);
  const int copies = 2 * ((count + kKeys - 1) / kKeys);  // keys and values of each step
  for (int copy = 0; copy < copies; ++copy) {
    const bool of_values = copy & 1;
    const int step = copy / 2;
    const Source from = of_values ? value_rows : key_rows;
    std::uint32_t to = shared + Layout::kRing + ((step ^ copy) & 1) * Layout::kMatrix;
    if (step > 0) barrier_wait(shared + (of_values ? Layout::kFreeK : Layout::kFreeV), (step - 1) & 1);
    int valid = count - step * kKeys - 64 * half - sub;
#pragma unroll 1
    for (int part = 0; part < 2; ++part, to += 32 * 128, valid -= 32) {
      const int mine = part == 0 ? upper : lower;
#pragma unroll
      for (int i = 0; i < 32; i += 4 * kAtOnce) {
        std::uint32_t key[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) key[j] = __shfl_sync(0xffffffffu, mine, i + j * kAtOnce + sub);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = i + j * kAtOnce;
          copy_16(to + row * 128 + columns[j], from.rows + std::uint64_t(key[j]) * from.stride, row < valid,
                  policy);
        }
      }
    }
    cp_async_commit();
    const auto hand_over = [&](std::uint32_t full) {
      fence_async_proxy();
      barrier_arrive(shared + full);
    };
    if (of_values) {
      const int next = (step + 1) * kKeys + 64 * half + lane;
      upper = key_at(next);
      lower = key_at(next + 32);
    }
    if (copy == 0) continue;  // the first values do not wait for the first keys
    if (copy == 1) {
      cp_async_wait<1>();
      hand_over(Layout::kFullK);
    }
    cp_async_wait<0>();
    hand_over(of_values ? Layout::kFullV : Layout::kFullK);
  }
}

// One warp for each computing warpgroup adds the warpgroup's sums to memory, dV, then dK of a step, one
// reduction a row, and keeps the order. mine: the tile's semaphores (of dV, and next to it of dK), released
// by one of the two warps for both: releases are what determinism costs; null: atomic accumulation. before:
// the semaphores of the tile before, null for none.
template <int d>
__device__ __forceinline__ void add_sums(const Params& p, const UnionTile& tile, const int* keys, int kv_head,
                                         int group, std::uint32_t shared, int* key_list, int* mine,
                                         const int* before) {
  using namespace hopper;
  using Layout = Shared<d>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::uint32_t full = shared + Layout::kFullSums + 8 * group;
  const std::uint32_t free = shared + Layout::kFreeSums + 8 * group;
  const std::uint32_t rows = shared + Layout::kSums + 64 * group * d * 4;
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
    key_list[lane] = upper;
    key_list[lane + 32] = lower;
    __syncwarp();
    const int last = __reduce_max_sync(0xffffffffu, max(upper, lower));
    const int next = key_at((step + 1) * kKeys, kDone);
    const int count = min(max(tile.count - begin, 0), 64);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      barrier_wait(full, which);
      if (limits[which] <= last) {
        do limits[which] = load_acquire(before + which);
        while (limits[which] <= last);
        fence_async_global();
      }
      float* const to = (which == 0 ? p.dv : p.dk) + std::int64_t(tile.k_begin) * stride + kv_head * d;
      if (elect_one()) {
        const auto add = [&](int row, int key) {
          reduce_add(to + std::int64_t(key) * stride, rows + row * d * 4, d * 4, policy);
        };
        int row = 0;
#pragma unroll 4
        for (; row + 4 <= count; row += 4) {
          const int4 four = *reinterpret_cast<const int4*>(key_list + row);
          add(row, four.x);
          add(row + 1, four.y);
          add(row + 2, four.z);
          add(row + 3, four.w);
        }
        for (; row < count; ++row) add(row, key_list[row]);
        bulk_commit();
        bulk_wait_read();
        barrier_arrive(free);
        if (mine != nullptr) bulk_wait();
      }
      __syncwarp();
      if (mine != nullptr) {
        named_barrier(1, 64);
        if (group == 0 && elect_one()) store_release(mine + which, min(limits[which], next));
      }
    }
  }
  if (elect_one()) bulk_wait();
  __syncwarp();
  if (mine != nullptr) {
    named_barrier(1, 64);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      while (limits[which] != kDone) limits[which] = load_acquire(before + which);
      if (group == 0 && elect_one()) store_release(mine + which, kDone);
    }
  }
}

}  // namespace gsa::cuda::backward
