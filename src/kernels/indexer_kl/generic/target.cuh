// p, the attention averaged over its heads, for the tiles of a chunk: the price of indexer_kl.
//
// A block has a tile of queries and 256 entries; each of its warps keeps 32 of them, as fragments of one
// key/value head at a time, in registers. The queries stream past in steps of 64 rows (64 queries of one
// head, or 32 queries of two), three stages deep, and p is summed over the heads in registers. Half of a
// step's rows is multiplied while the exponentials of the half before are taken, so that tensor cores and the
// special-function unit work at the same time.
#pragma once

#include "kernels/common/cuda_check.h"
#include "kernels/indexer_kl/cuda/device.cuh"

namespace gsa::cuda::kl {

template <int kSize, bool kListed>
struct TargetShape {
  static constexpr int kQueries = tile_queries(kListed);
  static constexpr int kWarps = kSize == 256 ? 4 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kWarpKeys = kSize == 256 ? 16 : 32;
  static constexpr int kEntries = kWarps * kWarpKeys;
  static constexpr int kRows = kTargetRows;  // of a step
  static constexpr int kStepHeads = kRows / kQueries;
  static constexpr int kKeyBytes = kEntries * kSize * 2;
  static constexpr int kStepBytes = kRows * kSize * 2;
  static_assert(kEntries == target_entries(kSize));
  // Keys, stages of queries, stages of their log-sum-exp, list of keys.
  static constexpr int shared_bytes(int stages) {
    static_assert(target_shared_bytes(kSize, 3) == kKeyBytes + 3 * (kStepBytes + kRows * 4) + kEntries * 4);
    return target_shared_bytes(kSize, stages);
  }
};

template <typename T, int kSize, bool kListed, int kStages>
__global__ void __launch_bounds__(TargetShape<kSize, kListed>::kThreads)
    target_kernel(const Attention attention, const Chunk chunk) {
  using Shape = TargetShape<kSize, kListed>;
  constexpr int kQueries = Shape::kQueries, kWarpKeys = Shape::kWarpKeys, kStepHeads = Shape::kStepHeads;
  constexpr int kSteps = kSize / 16, kBlocks = kWarpKeys / 8, kChunks = kSize / 8;
  extern __shared__ __align__(128) unsigned char shared[];
  // The split or (listed) slot, and where in it the block's entries begin.
  Split split;
  int first_entry;
  if constexpr (kListed) {
    constexpr int kBlocks = kSlot / Shape::kEntries;
    const int slot = static_cast<int>(blockIdx.x) / kBlocks;
    if (slot >= chunk.range->slots) return;
    split = listed_split(chunk.slot[slot], slot);
    first_entry = static_cast<int>(blockIdx.x) % kBlocks * Shape::kEntries;
  } else {
    split = dense_row(chunk, static_cast<int>(blockIdx.x));
    first_entry = static_cast<int>(blockIdx.y) * Shape::kEntries;
  }
  if (first_entry >= split.entries) return;
  const UnionTile& tile = split.tile;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const std::uint32_t keys_at = shared_address(shared) + warp * (kWarpKeys * kSize * 2);
  const std::uint32_t steps_at = shared_address(shared) + Shape::kKeyBytes;
  float* const lse_at = reinterpret_cast<float*>(shared + Shape::kKeyBytes + kStages * Shape::kStepBytes);
  int* const list = reinterpret_cast<int*>(lse_at + kStages * Shape::kRows) + warp * kWarpKeys;
  const int warp_entry = first_entry + warp * kWarpKeys;
  const bool active = warp_entry < split.entries;

  if (lane < kWarpKeys) {
    const int entry = warp_entry + lane;
    int key = -1;
    if (entry < split.entries) key = tile.k_begin + (kListed ? chunk.keys[split.list + entry] : entry);
    list[lane] = key;
  }
  __syncwarp();

  const auto copy_keys = [&](int kv_head) {
    for (int c = lane; c < kWarpKeys * kChunks; c += 32) {
      const int row = c / kChunks, part = c % kChunks, key = list[row];
      copy_chunk(keys_at + tile_offset<kSize>(row, part), row_of<T>(attention.k, key < 0 ? 0 : key, kv_head),
                 8 * part, attention.k.size, key >= 0, attention.k.aligned);
    }
  };
  const auto copy_step = [&](int kv_head, int first_head, int slot) {
    for (int c = thread; c < Shape::kRows * kChunks; c += Shape::kThreads) {
      const int row = c / kChunks, part = c % kChunks, query = row % kQueries;
      const int head = first_head + row / kQueries;
      const bool valid = query < tile.queries && head < attention.group;
      copy_chunk(steps_at + slot * Shape::kStepBytes + tile_offset<kSize>(row, part),
                 row_of<T>(attention.q, tile.first_query + (valid ? query : 0),
                           kv_head * attention.group + (valid ? head : 0)),
                 8 * part, attention.q.size, valid, attention.q.aligned);
    }
    if (thread < Shape::kRows) {
      const int query = thread % kQueries, head = first_head + thread / kQueries;
      const bool valid = query < tile.queries && head < attention.group;
      const std::int64_t row = tile.first_query + (valid ? query : 0);
      copy_word(shared_address(lse_at + slot * Shape::kRows + thread),
                attention.lse + row * attention.heads + kv_head * attention.group + (valid ? head : 0),
                valid);
    }
  };

  const int steps_each = (attention.group + kStepHeads - 1) / kStepHeads;  // of a key/value head
  const int steps = attention.kv_heads * steps_each;
  int next_kv = 0, next_part = 0, next_slot = 0;  // of the step to be copied next
  const auto copy_next = [&] {
    if (next_kv < attention.kv_heads) copy_step(next_kv, next_part * kStepHeads, next_slot);
    if (++next_part == steps_each) next_part = 0, ++next_kv;
    if (++next_slot == kStages) next_slot = 0;
  };
  if (active) copy_keys(0);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    copy_next();
    cp_async_commit();
  }

  constexpr int kRowTiles = kQueries / 16;
  float p[kRowTiles][kBlocks][4] = {};
  std::uint32_t keys[kSteps][kBlocks][2];
  float logits[2][2][kBlocks][4] = {};  // of the halves of a step, 2 x 16 rows each
  // Of the half whose exponentials are still to be taken; at first there is none, and e^-inf adds nothing.
  float lse[2][2] = {{INFINITY, INFINITY}, {INFINITY, INFINITY}};
  constexpr int kValues = 2 * kBlocks * 4, kValuesEach = kValues / kSteps;
  // Takes value i of a half; its rows are those of p's row tiles from `tile` on.
  const auto take = [&](const float(&half)[2][kBlocks][4], int tile, int i) {
    const int m = i / (4 * kBlocks), n = i / 4 % kBlocks, r = i % 4;
    p[(tile + m) % kRowTiles][n][r] += weight_in_place(fmaf(half[m][n][r], attention.scale, -lse[m][r / 2]));
  };

  int part = 0, slot = 0, kv_head = 0;
  for (int step = 0; step < steps; ++step) {
    // The keys of the next head were asked for in the first step of this one.
    if (steps_each > kStages - 2) {
      cp_async_wait<kStages - 2>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    if (part == 0 && active) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int n = 0; n < kBlocks; n += 2) {
          std::uint32_t b[4];
          load_b<kSize>(b, keys_at, 8 * n, k, lane);
          keys[k][n][0] = b[0], keys[k][n][1] = b[1];
          keys[k][n + 1][0] = b[2], keys[k][n + 1][1] = b[3];
        }
      }
      __syncwarp();
      if (kv_head + 1 < attention.kv_heads) copy_keys(kv_head + 1);
    }
    copy_next();
    cp_async_commit();
    if (active) {
      const std::uint32_t rows_at = steps_at + slot * Shape::kStepBytes;
      const float* const lse_rows = lse_at + slot * Shape::kRows;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
            for (int r = 0; r < 4; ++r) logits[half][m][n][r] = 0.0f;
          }
        }
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          std::uint32_t a[2][4];
          load_a<kSize>(a[0], rows_at, 32 * half, k, lane);
          load_a<kSize>(a[1], rows_at, 32 * half + 16, k, lane);
#pragma unroll
          for (int n = 0; n < kBlocks; ++n) {
            mma_16x8x16<T>(logits[half][0][n], a[0], keys[k][n][0], keys[k][n][1]);
            mma_16x8x16<T>(logits[half][1][n], a[1], keys[k][n][0], keys[k][n][1]);
          }
#pragma unroll
          for (int i = k * kValuesEach; i < (k + 1) * kValuesEach; ++i) {
            take(logits[1 - half], 2 - 2 * half, i);
          }
        }
        const bool there = part * kStepHeads + 32 * half / kQueries < attention.group;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            lse[m][r] = there ? kLog2E * lse_rows[32 * half + 16 * m + 8 * r + (lane >> 2)] : INFINITY;
          }
        }
      }
    }
    if (++part == steps_each) part = 0, ++kv_head;
    if (++slot == kStages) slot = 0;
  }
  if (!active) return;
#pragma unroll
  for (int i = 0; i < kValues; ++i) take(logits[1], 2, i);
  const float share = 1.0f / static_cast<float>(attention.heads);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * m + 8 * r + (lane >> 2);
      float* const to = chunk.p + split.p + row * split.stride + warp_entry + 2 * (lane & 3);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
        *reinterpret_cast<float2*>(to + 8 * n) =
            make_float2(share * p[m][n][2 * r], share * p[m][n][2 * r + 1]);
      }
    }
  }
}

template <typename T, int kSize, bool kListed, int kStages>
void launch_target(const Attention& attention, const Chunk& chunk, const Context& context) {
  using Shape = TargetShape<kSize, kListed>;
  constexpr int kBytes = Shape::shared_bytes(kStages);
  const auto kernel = target_kernel<T, kSize, kListed, kStages>;
  allow_shared_memory(kernel, kBytes, "indexer_kl target");
  dim3 grid(static_cast<unsigned>(chunk.tiles),
            static_cast<unsigned>((chunk.entries + Shape::kEntries - 1) / Shape::kEntries));
  if (kListed) grid = dim3(static_cast<unsigned>(chunk.slots * (kSlot / Shape::kEntries)));
  kernel<<<grid, Shape::kThreads, kBytes, stream_of(context.stream)>>>(attention, chunk);
  check_launch("indexer_kl target");
}

}  // namespace gsa::cuda::kl
