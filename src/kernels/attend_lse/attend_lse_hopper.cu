// Parts of the log-sum-exp by wgmma, for aligned heads of 64 and 128: a block takes 64 queries with up to
// four heads of one key/value head, and a split of the keys. Each of its two warpgroups has two of the heads:
// the products of the second run while the exponentials of the first are taken.
#include "kernels/attend_lse/attend_lse_kernels.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/wgmma.cuh"

namespace gsa::cuda::lse {
namespace {

constexpr int kGroups = 2, kThreads = 128 * kGroups;  // warpgroups
constexpr int kHeadsEach = 2, kHeads = kGroups * kHeadsEach;
constexpr int kKeys = 128;  // of a step
constexpr int kStages = 3;

template <int kSize>
struct Layout {
  static constexpr int kPanels = kSize / 64;
  static constexpr int kRowPanel = kQueries * 128, kKeyPanel = kKeys * 128;
  static constexpr int kRows = kPanels * kRowPanel, kStage = kPanels * kKeyPanel;
  static constexpr int kBytes = kHeads * kRows + kStages * kStage + 1024;
};

template <typename T, int kSize>
__global__ __launch_bounds__(kThreads, 1) void hopper_lse_kernel(const __grid_constant__ Params p) {
#ifdef GSA_HOPPER_CODE
  using L = Layout<kSize>;
  using namespace hopper;
  extern __shared__ __align__(1024) char memory[];
  const int tile_index = static_cast<int>(blockIdx.x), split = static_cast<int>(blockIdx.z);
  const Tile tile = p.tile[tile_index];
  const int begin = split * kSplitKeys, end = min(tile.visible(), begin + kSplitKeys);
  if (begin >= end) return;
  const int blocks_each = (p.group + kHeads - 1) / kHeads;  // of a key/value head
  const int kv_head = static_cast<int>(blockIdx.y) / blocks_each;
  const int first_head = static_cast<int>(blockIdx.y) % blocks_each * kHeads;  // within the group
  const int thread = static_cast<int>(threadIdx.x), own = thread / 128, lane = thread % 32;
  const std::uint32_t rows_at = (shared_address(memory) + 1023) / 1024 * 1024;
  const std::uint32_t keys_at = rows_at + kHeads * L::kRows;

  constexpr int kChunks = kSize / 8, kRowsAtOnce = kThreads / kChunks;
  const int chunk = thread % kChunks, row = thread / kChunks;
  const std::uint32_t panel = swizzled(row, chunk % 8);
  // Rows that do not exist repeat the last one: what is computed from them goes nowhere.
  for (int h = 0; h < kHeads; ++h) {
    const int head = min(first_head + h, p.group - 1) + kv_head * p.group;
    const T* const base = static_cast<const T*>(p.q) + head * p.q_head + 8 * chunk;
#pragma unroll
    for (int i = 0; i < kQueries / kRowsAtOnce; ++i) {
      const long long query = tile.first_query + min(row + i * kRowsAtOnce, tile.queries - 1);
      cp_async_16(rows_at + h * L::kRows + chunk / 8 * L::kRowPanel + panel + i * kRowsAtOnce * 128,
                  base + query * p.q_token);
    }
  }
  const T* const keys = static_cast<const T*>(p.k) + kv_head * p.k_head + 8 * chunk;
  const auto load = [&](int step, int slot) {
#pragma unroll
    for (int i = 0; i < kKeys / kRowsAtOnce; ++i) {
      const long long key = min(begin + step * kKeys + row + i * kRowsAtOnce, end - 1) + tile.k_begin;
      cp_async_16(keys_at + slot * L::kStage + chunk / 8 * L::kKeyPanel + panel + i * kRowsAtOnce * 128,
                  keys + key * p.k_token);
    }
  };
  const int steps = (end - begin + kKeys - 1) / kKeys;
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < steps) load(i, i);
    cp_async_commit();
  }

  float logits[kHeadsEach][kKeys / 2];
  RowState state[kHeadsEach][2];
  const int query = thread / 32 % 4 * 16 + lane / 4;  // the lane's upper row
  const int last[2] = {tile.first_position + query, tile.first_position + query + 8};
  int slot = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<kStages - 2>();
    fence_async_proxy();
    __syncthreads();  // the keys have landed, and everyone is done with those before
    const std::uint32_t b = keys_at + slot * L::kStage;
#pragma unroll
    for (int h = 0; h < kHeadsEach; ++h) {
      const std::uint32_t a = rows_at + (own + kGroups * h) * L::kRows;
      keep(logits[h]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kSize / 16; ++k) {
        wgmma<T, kKeys, Major::k, Major::k>(logits[h], k_major(a + k / 4 * L::kRowPanel + k % 4 * 32),
                                            k_major(b + k / 4 * L::kKeyPanel + k % 4 * 32), k > 0);
      }
      wgmma_commit();
    }
    if (step + kStages - 1 < steps) load(step + kStages - 1, slot == 0 ? kStages - 1 : slot - 1);
    cp_async_commit();
    const int first = begin + step * kKeys + 2 * (lane % 4);
    const bool whole = begin + (step + 1) * kKeys <= min(end, tile.first_position + 1);
#pragma unroll
    for (int h = 0; h < kHeadsEach; ++h) {
      h + 1 < kHeadsEach ? wgmma_wait<1>() : wgmma_wait<0>();
      keep(logits[h]);
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const bool seen = whole || first + i / 4 * 8 + i % 2 <= last[i / 2 % 2];
        logits[h][i] = seen ? logits[h][i] * p.scale : -INFINITY;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        state[h][r].template add<kKeys / 4>([&](int i) { return logits[h][i / 2 * 4 + 2 * r + i % 2]; });
      }
    }
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  cp_async_wait<0>();
#pragma unroll
  for (int h = 0; h < kHeadsEach; ++h) {
    const int head = first_head + own + kGroups * h;
    if (head >= p.group) continue;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      store_part(p, tile_index, query + 8 * r, kv_head * p.group + head, split, state[h][r]);
    }
  }
#endif
}

template <typename T, int kSize>
void launch(const Params& p, int tiles, const Context& context) {
  const auto kernel = &hopper_lse_kernel<T, kSize>;
  allow_shared_memory(kernel, Layout<kSize>::kBytes, "hopper_lse_kernel");
  const int blocks_each = (p.group + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(p.heads / p.group * blocks_each),
                  static_cast<unsigned>(p.splits));
  kernel<<<grid, kThreads, Layout<kSize>::kBytes, stream_of(context.stream)>>>(p);
  check_launch("hopper_lse_kernel");
}

}  // namespace

void launch_hopper(DType dtype, const Params& p, int tiles, const Context& context) {
  const auto size = [&]<typename T>() {
    p.size == 64 ? launch<T, 64>(p, tiles, context) : launch<T, 128>(p, tiles, context);
  };
  dtype == DType::bf16 ? size.template operator()<__nv_bfloat16>() : size.template operator()<__half>();
}

}  // namespace gsa::cuda::lse
