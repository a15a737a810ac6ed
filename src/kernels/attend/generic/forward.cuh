// The forward kernel of the generic path: one block for a tile of 64 rows, 16 rows a warp, online softmax
// over blocks of keys. Keys of the next block come while values are multiplied, values while keys are.
#pragma once

#include "gsa/error.h"
#include "kernels/attend/generic/tile.cuh"
#include "kernels/common/cuda_check.h"

namespace gsa::cuda::generic {

inline constexpr int kForwardWarps = 4;
inline constexpr int kForwardThreads = 32 * kForwardWarps;
inline constexpr int kForwardRows = kWarpRows * kForwardWarps;

struct ForwardParams {
  Tiling tiling;
  View q, k, v, out;
  float* lse;        // may be null
  int heads;         // of all groups
  float scale_log2;  // of exponents to base 2, above zero
  bool negate;       // of queries
};

template <typename T, int size>
struct ForwardShared {
  static constexpr int kKeys = size <= 128 ? 64 : 32;
  T q[kForwardRows * kStride<size>];
  T k[kKeys * kStride<size>];
  T v[kKeys * kStride<size>];
  int positions[2][kKeys];
  std::uint32_t bad[2];
};

// Running maximum and sum of a lane's two rows. Weights are powers of two relative to `base`, the maximum as
// it was rounded: where the maximum stays, sums are multiplied by exactly one.
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY};
  float base[2] = {0, 0};
  float sum[2] = {0, 0};  // of this lane's columns

  // Turns products into weights in place; returns in `factor` what earlier sums are to be multiplied by.
  template <int tiles>
  __device__ __forceinline__ void advance(float (&s)[tiles][4], const RowMasks& masks, bool whole,
                                          float scale_log2, float (&factor)[2]) {
    const int shift = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint64_t mask = (r == 0 ? masks.upper : masks.lower) >> shift;
      if (!whole) {
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
          if ((mask >> (8 * j) & 1) == 0) s[j][2 * r] = -INFINITY;
          if ((mask >> (8 * j) & 2) == 0) s[j][2 * r + 1] = -INFINITY;
        }
      }
      float largest = top[r];
#pragma unroll
      for (int j = 0; j < tiles; ++j) largest = fmaxf(largest, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 2));
      const float next = largest == -INFINITY ? 0.0f : largest * scale_log2;
      factor[r] = top[r] == -INFINITY ? 0.0f : exp2f_approx(base[r] - next);
      top[r] = largest;
      base[r] = next;
      float added = 0;
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[j][i] = exp2f_approx(__fmaf_rn(s[j][i], scale_log2, -next));
          added += s[j][i];
        }
      }
      sum[r] = __fmaf_rn(sum[r], factor[r], added);
    }
  }

  // The rows' sums over all columns.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(kAll, sum[r], 1);
      sum[r] += __shfl_xor_sync(kAll, sum[r], 2);
    }
  }
};

template <typename T, int size>
__global__ __launch_bounds__(kForwardThreads, size <= 128 ? 3 : 2) void attend_kernel(ForwardParams p) {
  using Shared = ForwardShared<T, size>;
  constexpr int kKeys = Shared::kKeys;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const Tiling& t = p.tiling;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;

  // Tiles with the most keys first.
  const int number = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int kv_head = static_cast<int>(blockIdx.y) / t.head_splits;
  const UnionTile at =
      t.plan.tile != nullptr ? t.plan.tile[number] : dense_tile(t.sequences, t.queries, number);
  if (at.queries == 0) return;
  const Tile tile = make_tile(t, at, kv_head, static_cast<int>(blockIdx.y) % t.head_splits);
  const std::size_t list_begin = static_cast<std::size_t>(number) * static_cast<std::size_t>(t.plan.capacity);
  const int* const list = t.plan.tile != nullptr ? t.plan.keys + list_begin : nullptr;
  const std::uint64_t* const bits = t.plan.tile != nullptr ? t.plan.bits + list_begin : nullptr;
  const int blocks = (at.count + kKeys - 1) / kKeys;

  load_rows<T, size, kForwardWarps>(shared.q, p.q, tile, t);
  cp_async_commit();
  if (p.negate) {
    cp_async_wait<0>();
    __syncthreads();
    for (int i = thread; i < kForwardRows * size; i += kForwardThreads) {
      T& element = shared.q[i / size * kStride<size> + i % size];
      element = -element;
    }
  }
  const std::uint32_t q_at =
      shared_address(shared.q + warp * 16 * kStride<size> + rows_first<kStride<size>>());
  const std::uint32_t k_at = shared_address(shared.k + columns_first<kStride<size>>());
  const std::uint32_t v_at = shared_address(shared.v + rows_first<kStride<size>>());

  float o[size / 8][4];
  Softmax softmax;
  for (bool fallback = false;; fallback = true) {
#pragma unroll
    for (int j = 0; j < size / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[j][i] = 0;
    }
    softmax = Softmax();
    if (thread < kKeys) shared.positions[0][thread] = key_at(list, tile, thread);
    __syncthreads();
    if (blocks > 0)
      load_keys<T, size, kKeys, kForwardWarps>(shared.k, p.k, tile, shared.positions[0], t.size);
    cp_async_commit();

    for (int block = 0; block < blocks; ++block) {
      const int first = block * kKeys;
      const int* const positions = shared.positions[block % 2];
      const int next = thread < kKeys ? key_at(list, tile, first + kKeys + thread) : kNoKey;
      std::uint64_t first_bits = 0, second_bits = 0;
      if (bits != nullptr) {
        first_bits = bits[first + lane];
        if constexpr (kKeys > 32) second_bits = bits[first + 32 + lane];
      }
      cp_async_wait<0>();
      __syncthreads();  // keys are here, values are free
      load_keys<T, size, kKeys, kForwardWarps>(shared.v, p.v, tile, positions, t.size);
      cp_async_commit();

      const RowMasks masks = block_masks<kKeys>(t, tile, first, first_bits, second_bits);
      constexpr std::uint64_t kWhole = ~std::uint64_t(0) >> (64 - kKeys);
      const bool any = __any_sync(kAll, (masks.upper | masks.lower) != 0);
      const bool whole = __all_sync(kAll, (masks.upper & masks.lower) == kWhole);
      std::uint32_t weights[kKeys / 16][4];
      float factor[2];
      if (any) {
        float s[kKeys / 8][4] = {};
        if (p.negate && block == 0) {
        }
        product_rows<T, size, kKeys / 8>(s, q_at, k_at);
        softmax.advance(s, masks, whole, p.scale_log2, factor);
        as_left<T>(weights, s);
      }
      if (thread < kKeys) shared.positions[(block + 1) % 2][thread] = next;
      if (thread < 2) shared.bad[thread] = 0;
      cp_async_wait<0>();
      __syncthreads();  // values are here, keys are free
      if (block + 1 < blocks) {
        load_keys<T, size, kKeys, kForwardWarps>(shared.k, p.k, tile, shared.positions[(block + 1) % 2],
                                                 t.size);
      }
      cp_async_commit();
      if (fallback) {
        take_out<T, size, kKeys, kForwardWarps>(shared.v, shared.bad);
        __syncthreads();
      }
      if (any) {
#pragma unroll
        for (int j = 0; j < size / 8; ++j) {
          o[j][0] *= factor[0], o[j][1] *= factor[0];
          o[j][2] *= factor[1], o[j][3] *= factor[1];
        }
        product_columns<T, size, kKeys>(o, weights, v_at);
        if (fallback) {
          put_back<T, size, kKeys>(o, p.v, tile, positions, shared.bad, masks, t.size);
        }
      }
    }
    cp_async_wait<0>();
    if (__syncthreads_or(!all_finite(o)) == 0 || fallback) break;
  }

  constexpr float kLn2 = 0.6931471805599453f;
  softmax.finish();
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool empty = softmax.sum[r] == 0;
    factor[r] = empty ? NAN : 1.0f / softmax.sum[r];
    const int row = warp * 16 + lane / 4 + 8 * r;
    if (p.lse != nullptr && lane % 4 == 0 && tile.holds(row, t.heads_shift)) {
      p.lse[static_cast<std::int64_t>(tile.query(row, t.heads_shift)) * p.heads +
            tile.head(row, t.heads_shift)] =
          empty ? NAN : __fmaf_rn(softmax.base[r], kLn2, logf(softmax.sum[r]));
    }
  }
  stage_rows<T, size>(shared.q, o, factor[0], factor[1]);
  __syncwarp();
  store_rows<T, size>(p.out, shared.q, tile, t);
}

template <typename T, int size>
void launch_forward(const ForwardParams& params, int tiles, cudaStream_t stream) {
  const auto kernel = attend_kernel<T, size>;
  constexpr std::size_t kShared = sizeof(ForwardShared<T, size>);
  static_assert(kShared <= 99 << 10, "what every device from sm_80 on has");
  allow_shared_memory(kernel, kShared, "attend");
  const int columns = params.tiling.kv_heads * params.tiling.head_splits;
  if (columns > 65535) {
    bad_argument("attend", "shape.heads", "at most 65535 splits of 16 heads on a CUDA device",
                 concat(columns));
  }
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(columns));
  kernel<<<grid, kForwardThreads, kShared, stream>>>(params);
  check_launch("attend");
}

template <typename T>
void launch_forward(const ForwardParams& params, int tiles, cudaStream_t stream) {
  with_padded_size(params.tiling.size,
                   [&](auto size) { launch_forward<T, decltype(size)::value>(params, tiles, stream); });
}

// One file each.
void launch_forward_bf16(const ForwardParams& params, int tiles, cudaStream_t stream);
void launch_forward_f16(const ForwardParams& params, int tiles, cudaStream_t stream);

}  // namespace gsa::cuda::generic
