// The backward kernel of the generic path: one block for a tile of 64 or 128 rows walks the tile's keys
// upwards. dq stays in registers; what a block of keys receives is added to dk and dv in global memory, in
// the order of tickets where accumulation is deterministic (kernels/attend/generic/semaphore.cuh).
//
// Products of a block of keys, all from shared memory:
//   by rows of the tile (16 a warp): s = q k^T, dp = dout v^T, dq += ds k
//   by keys:                         dv = p^T dout, dk = ds^T q
#pragma once

#include "kernels/attend/cuda/weight.cuh"
#include "kernels/attend/generic/semaphore.cuh"
#include "kernels/attend/generic/tile.cuh"
#include "kernels/common/cuda_check.h"

namespace gsa::cuda::generic {

struct BackwardParams {
  Tiling tiling;
  View q, k, v, out, dout, dq;
  const float* lse;
  float* dk;
  float* dv;
  int heads;  // of all groups
  const UnionTile* tile;
  int tiles;  // of this launch
  float scale;
  float scale_log2;     // with the sign of scale
  int* tickets;         // one counter
  const int* schedule;  // cuda/tile_scheduler.h: tile and head of each ticket; head splits follow each other
  bool wide_sums;       // four columns of dk or dv at a time are aligned
  int* semaphores;      // [tiles, kv_heads, head_splits], or null: non-deterministic (atomic) accumulation
};

template <typename T, int size, int warps>
struct BackwardShared {
  static constexpr int kKeys = size <= 128 ? 64 : size <= 192 && warps > 4 ? 32 : 16;
  static constexpr int kRows = kWarpRows * warps;
  static constexpr int kPairStride = kKeys + 8;
  T q[kRows * kStride<size>];
  T dout[kRows * kStride<size>];
  T k[kKeys * kStride<size>];
  T v[kKeys * kStride<size>];
  T p[kRows * kPairStride];
  T ds[kRows * kPairStride];
  float lse_log2[kRows];
  float delta[kRows];
  int positions[2][kKeys];
  std::uint32_t bad[2];
  int ticket;
};

// Adds a row's part of two neighbouring tiles of accumulators, 16 columns of which a lane holds 2 + 2: `to`
// is the first of them, `columns` how many the row has from there on. Neighbouring lanes exchange pairs, so
// that each has four columns side by side: one addition of 16 bytes on a GPU that has it. Where !aligned, and
// on older ones, single additions.
__device__ __forceinline__ void add_columns(float* to, float a0, float a1, float b0, float b1, int columns,
                                            bool valid, bool aligned) {
  const int c = static_cast<int>(threadIdx.x % 4);
#if __CUDA_ARCH__ >= 900
  if (aligned) {
    const bool odd = c % 2 != 0;
    const float other0 = __shfl_xor_sync(kAll, odd ? a0 : b0, 1);
    const float other1 = __shfl_xor_sync(kAll, odd ? a1 : b1, 1);
    const int column = odd ? 8 + 2 * (c - 1) : 2 * c;
    if (!valid || column >= columns) return;
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + column), "f"(odd ? other0 : a0),
                 "f"(odd ? other1 : a1), "f"(odd ? b0 : other0), "f"(odd ? b1 : other1)
                 : "memory");
    return;
  }
#endif
  if (!valid) return;
  if (2 * c < columns) atomicAdd(to + 2 * c, a0);
  if (2 * c + 1 < columns) atomicAdd(to + 2 * c + 1, a1);
  if (2 * c + 8 < columns) atomicAdd(to + 2 * c + 8, b0);
  if (2 * c + 9 < columns) atomicAdd(to + 2 * c + 9, b1);
}

// The part of a [keys, size] sum that a warp computes: 16 keys and kColumns columns.
template <typename T, int size, int warps>
struct KeyPart {
  using Shared = BackwardShared<T, size, warps>;
  static constexpr int kKeyParts = Shared::kKeys / 16;
  static constexpr int kColumns = size * kKeyParts / warps;
  using Sum = float[kColumns / 8][4];
  // Whether dk and dv have room in registers beside dq: the next block then waits less.
  static constexpr bool kBoth = size + 2 * kColumns <= 256;

  int key, column;                        // the first
  std::uint32_t pair_offset, row_offset;  // in bytes, of the lane's address for ldmatrix

  __device__ __forceinline__ KeyPart() {
    const int warp = static_cast<int>(threadIdx.x / 32);
    key = warp % kKeyParts * 16;
    column = warp / kKeyParts * kColumns;
    pair_offset = static_cast<std::uint32_t>(2 * (columns_first<Shared::kPairStride>() + key));
    row_offset = static_cast<std::uint32_t>(2 * (rows_first<kStride<size>>() + column));
  }

  // d = pairs^T rows, for pairs [rows of the tile, keys] and rows [rows of the tile, size].
  __device__ __forceinline__ void product(Sum& d, const T* pairs, const T* rows) const {
    const std::uint32_t a = shared_address(pairs) + pair_offset, b = shared_address(rows) + row_offset;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d[j][i] = 0;
    }
#pragma unroll
    for (int step = 0; step < Shared::kRows / 16; ++step) {
      std::uint32_t left[4];
      ldmatrix_x4_trans(left, a + step * 16 * Shared::kPairStride * 2);
#pragma unroll
      for (int pair = 0; pair < kColumns / 16; ++pair) {
        std::uint32_t right[4];
        ldmatrix_x4_trans(right, b + step * 16 * kStride<size> * 2 + pair * 32);
        mma_16x8x16<T>(d[2 * pair], left, right[0], right[1]);
        mma_16x8x16<T>(d[2 * pair + 1], left, right[2], right[3]);
      }
    }
  }

  // target += factor * d
  __device__ __forceinline__ void add(float* target, const Sum& d, float factor, const BackwardParams& p,
                                      const Tile& tile, const int* positions) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const Tiling& t = p.tiling;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = positions[key + lane / 4 + 8 * half];
      const bool valid = position != kNoKey;
      const std::int64_t token = tile.at.k_begin + (valid ? position : 0);
      float* const row = target + (token * t.kv_heads + tile.kv_head) * t.size + column;
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        add_columns(row + j * 8, factor * d[j][2 * half], factor * d[j][2 * half + 1],
                    factor * d[j + 1][2 * half], factor * d[j + 1][2 * half + 1], t.size - column - j * 8,
                    valid, p.wide_sums);
      }
    }
  }
};

// A left factor as it would be loaded from pairs [64, keys] in shared memory; `to` is the lane's first place.
template <int keys, int stride, typename T>
__device__ __forceinline__ void store_pairs(T* to, const std::uint32_t (&a)[keys / 16][4]) {
#pragma unroll
  for (int step = 0; step < keys / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<std::uint32_t*>(to + i % 2 * 8 * stride + step * 16 + i / 2 * 8) = a[step][i];
    }
  }
}

// Log-sum-exp and delta of every row. Elements of q and dout that are not finite are taken out, because
// products over rows would carry them to keys that the row did not select; the row's log-sum-exp becomes NaN
// instead, and with it all that the row gives to its own keys.
template <typename T, int size, int warps>
__device__ __forceinline__ void prepare_rows(BackwardShared<T, size, warps>& shared, const BackwardParams& p,
                                             const Tile& tile) {
  const Tiling& t = p.tiling;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  for (int row = warp * 16; row < warp * 16 + 16; ++row) {
    if (!tile.holds(row, t.heads_shift)) {
      if (lane == 0) shared.lse_log2[row] = shared.delta[row] = 0;
      continue;
    }
    const int query = tile.query(row, t.heads_shift), head = tile.head(row, t.heads_shift);
    const T* const out = p.out.row<T>(query, head);
    T* const q = shared.q + row * kStride<size>;
    T* const dout = shared.dout + row * kStride<size>;
    float sum = 0;
    bool clean = true;
    for (int c = lane; c < t.size; c += 32) {
      const float d = to_float(dout[c]);
      // out is NaN where the query has no keys, which counts only if somebody asks for its gradient.
      if (d != 0) sum = __fmaf_rn(d, to_float(out[c]), sum);
      if (!finite(d)) dout[c] = from_float<T>(0.0f), clean = false;
      if (!finite(to_float(q[c]))) q[c] = from_float<T>(0.0f), clean = false;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
    clean = __all_sync(kAll, clean);
    if (lane == 0) {
      const float lse = p.lse[static_cast<std::int64_t>(query) * p.heads + head];
      shared.lse_log2[row] = clean ? lse * kLog2E : NAN;
      shared.delta[row] = sum;
    }
  }
}

template <typename T, int size, int warps>
__global__ __launch_bounds__(32 * warps, size <= 128 && warps == 4
                                             ? 2
                                             : 1) void attend_backward_kernel(BackwardParams p) {
  using Shared = BackwardShared<T, size, warps>;
  constexpr int kKeys = Shared::kKeys;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const Tiling& t = p.tiling;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;

  // The order of a queue: its tiles, the last of the sequence first, and the head splits of each.
  const int ticket = take_ticket(p.tickets, &shared.ticket);
  const int place = p.schedule[ticket / t.head_splits], split = ticket % t.head_splits;
  const int number = place / t.kv_heads, kv_head = place % t.kv_heads;
  const UnionTile at = p.tile[number];
  // Nobody of this launch stands before it in the queue.
  const bool leads = split == 0 && (number == p.tiles - 1 || p.tile[number + 1].sequence != at.sequence);
  const Tile tile = make_tile(t, at, kv_head, split);
  int* const own = p.semaphores != nullptr ? p.semaphores + place * t.head_splits + split : nullptr;
  const int* const before = p.semaphores == nullptr || leads ? nullptr
                            : split > 0                      ? own - 1
                                                             : own + (t.kv_heads + 1) * t.head_splits - 1;
  const std::size_t list_begin = static_cast<std::size_t>(number) * static_cast<std::size_t>(t.plan.capacity);
  const int* const list = t.plan.tile != nullptr ? t.plan.keys + list_begin : nullptr;
  const std::uint64_t* const bits = t.plan.tile != nullptr ? t.plan.bits + list_begin : nullptr;
  const int blocks = (at.count + kKeys - 1) / kKeys;

  load_rows<T, size, warps>(shared.q, p.q, tile, t);
  load_rows<T, size, warps>(shared.dout, p.dout, tile, t);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  prepare_rows<T, size, warps>(shared, p, tile);

  const int first_row = warp * 16;
  const std::uint32_t q_at =
      shared_address(shared.q + first_row * kStride<size> + rows_first<kStride<size>>());
  const std::uint32_t dout_at =
      shared_address(shared.dout + first_row * kStride<size> + rows_first<kStride<size>>());
  const std::uint32_t k_at = shared_address(shared.k + columns_first<kStride<size>>());
  const std::uint32_t v_at = shared_address(shared.v + columns_first<kStride<size>>());
  const std::uint32_t k_columns_at = shared_address(shared.k + rows_first<kStride<size>>());
  const int pair_at = (first_row + lane / 4) * Shared::kPairStride + lane % 4 * 2;
  using Part = KeyPart<T, size, warps>;
  const Part part;

  float dq[size / 8][4];
  for (bool fallback = false;; fallback = true) {  // the second time for dq alone
#pragma unroll
    for (int j = 0; j < size / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) dq[j][i] = 0;
    }
    if (thread < kKeys) shared.positions[0][thread] = key_at(list, tile, thread);
    __syncthreads();
    if (blocks > 0) {
      load_keys<T, size, kKeys, warps>(shared.k, p.k, tile, shared.positions[0], t.size);
      load_keys<T, size, kKeys, warps>(shared.v, p.v, tile, shared.positions[0], t.size);
    }
    cp_async_commit();
    const float lse[2] = {shared.lse_log2[first_row + lane / 4], shared.lse_log2[first_row + lane / 4 + 8]};
    const float delta[2] = {shared.delta[first_row + lane / 4], shared.delta[first_row + lane / 4 + 8]};

    int reached = 0;  // positions below this are in the blocks so far
    for (int block = 0; block < blocks; ++block) {
      const int first = block * kKeys;
      const int* const positions = shared.positions[block % 2];
      const int next = thread < kKeys ? key_at(list, tile, first + kKeys + thread) : kNoKey;
      std::uint64_t first_bits = 0, second_bits = 0;
      if (bits != nullptr) {
        if (lane < kKeys) first_bits = bits[first + lane];
        if constexpr (kKeys > 32) second_bits = bits[first + 32 + lane];
      }
      cp_async_wait<0>();
      __syncthreads();  // keys and values are here; the sums before are on their way
      if (own != nullptr && thread == 0 && block > 0 && !fallback) semaphore_release(own, reached);
      const RowMasks masks = block_masks<kKeys>(t, tile, first, first_bits, second_bits);
      const bool any = __any_sync(kAll, (masks.upper | masks.lower) != 0);
      std::uint32_t ds[kKeys / 16][4];
      if (any) {
        float s[kKeys / 8][4] = {}, dp[kKeys / 8][4] = {};
        product_rows<T, size, kKeys / 8>(s, q_at, k_at);
        product_rows<T, size, kKeys / 8>(dp, dout_at, v_at);
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const std::uint64_t mask = i < 2 ? masks.upper : masks.lower;
            const bool chosen = (mask >> (lane % 4 * 2) >> (8 * j + i % 2) & 1) != 0;
            const float weight = rebuilt_weight(__fmaf_rn(s[j][i], p.scale_log2, -lse[i / 2]));
            s[j][i] = chosen ? weight : 0.0f;
            dp[j][i] = chosen ? weight * (dp[j][i] - delta[i / 2]) : 0.0f;
          }
        }
        std::uint32_t weights[kKeys / 16][4];
        as_left<T>(weights, s);
        as_left<T>(ds, dp);
        store_pairs<kKeys, Shared::kPairStride>(shared.p + pair_at, weights);
      } else {
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
          for (int i = 0; i < 4; ++i) ds[step][i] = 0;
        }
        store_pairs<kKeys, Shared::kPairStride>(shared.p + pair_at, ds);
      }
      store_pairs<kKeys, Shared::kPairStride>(shared.ds + pair_at, ds);
      if (fallback) {
        __syncthreads();
        if (thread < 2) shared.bad[thread] = 0;
        __syncthreads();
        take_out<T, size, kKeys, warps>(shared.k, shared.bad);
        __syncthreads();
      }
      if (any) {
        product_columns<T, size, kKeys>(dq, ds, k_columns_at);
        if (fallback) put_back<T, size, kKeys>(dq, p.k, tile, positions, shared.bad, masks, t.size);
      }
      if (thread < kKeys) shared.positions[(block + 1) % 2][thread] = next;
      __syncthreads();  // weights are here, keys and values are free
      if (block + 1 < blocks) {
        load_keys<T, size, kKeys, warps>(shared.k, p.k, tile, shared.positions[(block + 1) % 2], t.size);
        load_keys<T, size, kKeys, warps>(shared.v, p.v, tile, shared.positions[(block + 1) % 2], t.size);
      }
      cp_async_commit();
      if (!fallback) {
        reached = positions[min(kKeys, at.count - first) - 1] + 1;
        typename Part::Sum dv, dk;
        part.product(dv, shared.p, shared.dout);
        if constexpr (Part::kBoth) part.product(dk, shared.ds, shared.q);
        if (before != nullptr) semaphore_wait(before, reached);
        part.add(p.dv, dv, 1.0f, p, tile, positions);
        if constexpr (!Part::kBoth) part.product(dk, shared.ds, shared.q);
        part.add(p.dk, dk, p.scale, p, tile, positions);
      }
    }
    cp_async_wait<0>();
    const bool clean = __syncthreads_or(!all_finite(dq)) == 0;
    if (own != nullptr && thread == 0 && !fallback) {
      // Who comes next has no keys beyond this tile's.
      if (before != nullptr) semaphore_wait(before, at.first_position + at.queries);
      semaphore_release(own, kAllPositions);
    }
    if (clean || fallback) break;
  }

  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + lane / 4 + 8 * r;
    const float lse = shared.lse_log2[row];
    factor[r] = isnan(lse) && shared.delta[row] != 0 ? lse : p.scale;
  }
  stage_rows<T, size>(shared.q, dq, factor[0], factor[1]);
  __syncwarp();
  store_rows<T, size>(p.dq, shared.q, tile, t);
}

template <typename T, int size, int warps>
void launch_backward(const BackwardParams& params, cudaStream_t stream) {
  const auto kernel = attend_backward_kernel<T, size, warps>;
  constexpr std::size_t kShared = sizeof(BackwardShared<T, size, warps>);
  static_assert(warps > 4 || kShared <= 99 << 10, "four warps are for devices with as little as there is");
  allow_shared_memory(kernel, kShared, "attend_backward");
  const unsigned blocks = static_cast<unsigned>(params.tiles) *
                          static_cast<unsigned>(params.tiling.head_splits * params.tiling.kv_heads);
  kernel<<<blocks, 32 * warps, kShared, stream>>>(params);
  check_launch("attend_backward");
}

template <typename T>
void launch_backward(const BackwardParams& params, int warps, cudaStream_t stream) {
  with_padded_size(params.tiling.size, [&](auto size) {
    if (warps == 8) {
      launch_backward<T, decltype(size)::value, 8>(params, stream);
    } else {
      launch_backward<T, decltype(size)::value, 4>(params, stream);
    }
  });
}

// One file each.
void launch_backward_bf16(const BackwardParams& params, int warps, cudaStream_t stream);
void launch_backward_f16(const BackwardParams& params, int warps, cudaStream_t stream);

}  // namespace gsa::cuda::generic
