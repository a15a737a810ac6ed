// The kernel of hopper/backward.cu.
//
// A block of threads owns a tile: T queries x the G heads of one key/value head = 128 rows, whose q and dout
// stay in shared memory. It walks over the tile's keys in ascending order, 128 at a time. Two warpgroups
// compute, each on 64 of the 128 keys (the M of its products), all products transposed:
//
//   S^T = K Q^T, dP^T = V dO^T    [64 keys, 128 rows], in registers
//   dV = P^T dO                   [64 keys, d], P^T straight from those registers
//   dK = dS^T Q                   [64 keys, d], dS^T through shared memory
//   dQ += dS K                    [64 rows, d]: each warpgroup owns 64 of the rows, over all 128 keys
//
// dQ stays in registers for the whole walk. dK and dV of a step go to shared memory and from there to memory,
// one asynchronous reduction a row, while the next products run. A third warpgroup helps: two warps copy the
// rows of keys and values, half of them each, two issue the reductions and keep their order.
//
// Deterministic accumulation, by semaphores. The tiles of a (sequence, key/value head) form a queue, the last
// tile first. A tile's semaphore says how far the queue has come: a position p such that this tile and all
// before it in the queue have added what they have to add to keys below p. A tile adds to the keys of a step
// when the semaphore of the tile before it is beyond them. All walk in the same direction, so the tiles of a
// queue follow each other like a wave, a step or two apart. Blocks of threads take their tile from a counter,
// which goes through the queues in the order of the tile scheduler (cuda/tile_scheduler.h): whoever a tile
// waits for has started.
//
// What is not finite goes nowhere but to who selected it, though 0 * NaN is NaN. A row of q or dout that is
// not finite counts as zeros in the products, and its P as NaN where the query selects a key. A key or value
// that is not finite shows in its products with any row: its dP is cleared where it is not selected, and the
// key counts as zeros in dQ (where it is selected, dS is NaN).
#pragma once

#include "kernels/attend/hopper/backward_helpers.cuh"
#include "kernels/common/log2e.h"

namespace gsa::cuda::backward {

// Sums of a warp, [16 keys, d], go to shared memory, row after row. So that no two rows of a store meet in a
// bank, row r stores columns 8 (i ^ r % 4) in place of 8 i: this moves them to where store_sums() wants them.
template <int d>
__device__ __forceinline__ void permute_sums(const float (&sum)[d / 2], float (&permuted)[d / 2]) {
  const bool swap1 = threadIdx.x / 4 & 1, swap2 = threadIdx.x / 4 & 2;
#pragma unroll
  for (int i = 0; i < d / 2; i += 16) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float a = sum[i + e], b = sum[i + 4 + e], c = sum[i + 8 + e], f = sum[i + 12 + e];
      const float a1 = swap1 ? b : a, b1 = swap1 ? a : b, c1 = swap1 ? f : c, f1 = swap1 ? c : f;
      permuted[i + e] = swap2 ? c1 : a1;
      permuted[i + 4 + e] = swap2 ? f1 : b1;
      permuted[i + 8 + e] = swap2 ? a1 : c1;
      permuted[i + 12 + e] = swap2 ? b1 : f1;
    }
  }
}
template <int d>
__device__ __forceinline__ void store_sums(const float (&permuted)[d / 2], std::uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x % 32), row = lane / 4;
  to += row * d * 4 + ((row & 3) << 5) + lane % 4 * 8;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t part = to ^ j << 5;
#pragma unroll
    for (int i = 0; i < d / 2; i += 16) {
      const std::uint32_t at = part + i * 8;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(permuted[i + 4 * j]),
                   "f"(permuted[i + 4 * j + 1])
                   : "memory");
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 8 * d * 4), "f"(permuted[i + 4 * j + 2]),
                   "f"(permuted[i + 4 * j + 3])
                   : "memory");
    }
  }
  hopper::fence_async_proxy();
  __syncwarp();
}

// The operand that lies so many bytes further.
__device__ __forceinline__ std::uint64_t further(std::uint64_t operand, std::uint32_t bytes) {
  return operand + (bytes >> 4);
}

// Zeros in a row of a matrix, by four lanes.
template <int d>
__device__ __forceinline__ void clear_row(std::uint32_t matrix, int row, int lane) {
  for (int chunk = lane; chunk < d / 8; chunk += 4) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(matrix + chunk / 8 * kPanel +
                                                                  hopper::swizzled(row, chunk % 8)),
                 "r"(0)
                 : "memory");
  }
}

// Which queries of the tile select the keys of the thread's two rows.
struct Queries {
  std::uint64_t upper, lower;
};
__device__ __forceinline__ Queries load_queries(const UnionTile& tile, const std::uint64_t* bits, int step) {
  const auto queries = [&](int at) -> std::uint64_t {
    return at >= tile.count ? 0 : bits != nullptr ? bits[at] : visible_from(at, tile);
  };
  const int upper = step * kKeys + static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4);
  return {queries(upper), queries(upper + 8)};
}

// And which of its 2 x 32 values count.
struct Selected {
  std::uint32_t upper, lower;
};
__device__ __forceinline__ Selected select_rows(const Queries& queries, int group_log2) {
  const int column = static_cast<int>(threadIdx.x % 4);
  return {row_bits(queries.upper, column, group_log2), row_bits(queries.lower, column, group_log2)};
}

template <typename T, int d>
__device__ __forceinline__ void compute(const Params& p, const UnionTile& tile, const std::uint64_t* bits,
                                        int kv_head, std::uint32_t shared) {
  using namespace hopper;
  using Layout = Shared<d>;
  // By a shuffle, so that the compiler knows it to be the same in all lanes: descriptors of operands are then
  // computed in uniform registers.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0), group = warp / 4;
  const int thread = static_cast<int>(threadIdx.x % 128), lane = static_cast<int>(threadIdx.x % 32);
  const std::uint32_t q = shared + Layout::kQ, dout = shared + Layout::kDout;
  const std::uint32_t stats = shared + Layout::kStats + thread % 4 * 16;
  const std::uint32_t sums = shared + Layout::kSums + warp * 16 * d * 4;
  const std::uint32_t full_sums = shared + Layout::kFullSums + 8 * group;
  const std::uint32_t free_sums = shared + Layout::kFreeSums + 8 * group;
  // Where this lane's row of four 8 x 8 matrices of dS goes, in the first panel.
  const std::uint32_t ds =
      shared + Layout::kDs + (16 * warp + (lane & 15)) * 128 + (((lane >> 4) ^ (lane & 7)) << 4);
  // Operands of the products: *_rows where the reduction runs along rows, *_columns where it runs across
  // them.
  const std::uint64_t q_rows = k_major(q), q_columns = mn_major(q, kPanel);
  const std::uint64_t dout_rows = k_major(dout), dout_columns = mn_major(dout, kPanel);
  const std::uint64_t ds_columns = mn_major(shared + Layout::kDs + group * kPanel, kPanel);
  const std::uint64_t ds_rows_of_keys = k_major(shared + Layout::kDs + group * 64 * 128);
  const int steps = (tile.count + kKeys - 1) / kKeys;

  float dq[d / 2];
#pragma unroll
  for (int i = 0; i < d / 2; ++i) dq[i] = 0;
  float permuted[d / 2];  // dV or dK of a step, on its way to shared memory
  const auto store = [&](int parity) {
    barrier_wait(free_sums, parity ^ 1);
    store_sums<d>(permuted, sums);
    if (lane == 0) barrier_arrive(full_sums);
  };
  Selected selected = select_rows(load_queries(tile, bits, 0), p.group_log2);
  for (int step = 0; step < steps; ++step) {
    const std::uint32_t phase = step & 1;
    const std::uint32_t k = shared + Layout::kRing + phase * Layout::kMatrix;
    const std::uint32_t v = shared + Layout::kRing + (phase ^ 1) * Layout::kMatrix;
    const std::uint64_t k_rows = k_major(k + group * 64 * 128), k_columns = mn_major(k, kPanel);
    const std::uint64_t v_rows = k_major(v + group * 64 * 128);
    const Queries next = load_queries(tile, bits, step + 1);  // in good time

    float s[kRows / 2], dp[kRows / 2], sum[d / 2];  // sum: dV, then dK
    barrier_wait(shared + Layout::kFullK, phase);
    keep(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < d / 16; ++i) {
      const std::uint32_t offset = i / 4 * kPanel + i % 4 * 32;
      wgmma<T, kRows, Major::k, Major::k>(s, further(k_rows, offset), further(q_rows, offset), i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    keep(s);
    // A key that is not finite makes all its products so, whatever the row (rows are finite).
    const bool upper_bad = !isfinite(s[0]), lower_bad = !isfinite(s[2]);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float4 row = load_shared_float4(stats + j * 64);
      s[4 * j] = rebuilt_weight(fmaf(s[4 * j], p.scale_log2, -row.x));
      s[4 * j + 1] = rebuilt_weight(fmaf(s[4 * j + 1], p.scale_log2, -row.y));
      s[4 * j + 2] = rebuilt_weight(fmaf(s[4 * j + 2], p.scale_log2, -row.x));
      s[4 * j + 3] = rebuilt_weight(fmaf(s[4 * j + 3], p.scale_log2, -row.y));
    }
    keep(s);                 // all of them now: dV takes as long to leave the memory that dK wants
    if (step > 0) store(1);  // dK of the step before
    barrier_wait(shared + Layout::kFullV, phase);
    keep(dp);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < d / 16; ++i) {
      const std::uint32_t offset = i / 4 * kPanel + i % 4 * 32;
      wgmma<T, kRows, Major::k, Major::k>(dp, further(v_rows, offset), further(dout_rows, offset), i > 0);
    }
    wgmma_commit();
    if (__any_sync(0xffffffffu, (selected.upper & selected.lower) != 0xffffffffu)) {
#pragma unroll
      for (int i = 0; i < kRows / 4; ++i) {
        s[i / 2 * 4 + i % 2] = selected.upper >> i & 1 ? s[i / 2 * 4 + i % 2] : 0.f;
        s[i / 2 * 4 + i % 2 + 2] = selected.lower >> i & 1 ? s[i / 2 * 4 + i % 2 + 2] : 0.f;
      }
    }
    wgmma_wait<0>();
    keep(dp);
    if (lane == 0) barrier_arrive(shared + Layout::kFreeV);
    if (__any_sync(0xffffffffu, !isfinite(dp[0]) || !isfinite(dp[2]))) {  // 0 * NaN is no 0
#pragma unroll
      for (int i = 0; i < kRows / 4; ++i) {
        dp[i / 2 * 4 + i % 2] = selected.upper >> i & 1 ? dp[i / 2 * 4 + i % 2] : 0.f;
        dp[i / 2 * 4 + i % 2 + 2] = selected.lower >> i & 1 ? dp[i / 2 * 4 + i % 2 + 2] : 0.f;
      }
    }
    // dS, and both as operands: four registers for 16 rows.
    std::uint32_t p_rows[kRows / 16][4], ds_rows[kRows / 16][4];
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float4 row = load_shared_float4(stats + j * 64);
      std::uint32_t* const p_part = p_rows[j / 2] + j % 2 * 2;
      std::uint32_t* const ds_part = ds_rows[j / 2] + j % 2 * 2;
      p_part[0] = pack<T>(s[4 * j], s[4 * j + 1]);
      p_part[1] = pack<T>(s[4 * j + 2], s[4 * j + 3]);
      ds_part[0] = pack<T>(s[4 * j] * fmaf(dp[4 * j], p.scale, -row.z),
                           s[4 * j + 1] * fmaf(dp[4 * j + 1], p.scale, -row.w));
      ds_part[1] = pack<T>(s[4 * j + 2] * fmaf(dp[4 * j + 2], p.scale, -row.z),
                           s[4 * j + 3] * fmaf(dp[4 * j + 3], p.scale, -row.w));
    }

    barrier_wait(shared + Layout::kFreeDs, phase ^ 1);
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      store_matrix_x4((ds + i / 4 * kPanel) ^ (i % 4 << 5), ds_rows[i]);
    }
    if (__any_sync(0xffffffffu, upper_bad || lower_bad)) {
      const int row = 16 * warp + lane / 4;
      if (upper_bad) clear_row<d>(k, row, lane % 4);
      if (lower_bad) clear_row<d>(k, row + 8, lane % 4);
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + Layout::kFullDs);
    keep(sum);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      wgmma<T, d, Major::mn>(sum, p_rows[i], further(dout_columns, i * 2048), i > 0);
    }
    wgmma_commit();

    barrier_wait(shared + Layout::kFullDs, phase);
    keep(dq);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      wgmma<T, d, Major::mn, Major::mn>(dq, further(ds_columns, i * 2048), further(k_columns, i * 2048), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    keep(sum);
    permute_sums<d>(sum, permuted);
    keep(permuted);
    keep(sum);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const std::uint32_t offset = i / 4 * kPanel + i % 4 * 32;
      wgmma<T, d, Major::k, Major::mn>(sum, further(ds_rows_of_keys, offset), further(q_columns, i * 2048),
                                       i > 0);
    }
    wgmma_commit();
    store(0);  // dV, while dQ and dK run
    wgmma_wait<1>();
    keep(dq);
    barrier_arrive(shared + Layout::kFreeK);
    selected = select_rows(next, p.group_log2);
    wgmma_wait<0>();
    keep(sum);
    if (lane == 0) barrier_arrive(shared + Layout::kFreeDs);
    permute_sums<d>(sum, permuted);
  }
  if (steps > 0) store(1);

  // dq, through shared memory of dS, which the other warpgroup must have read for the last time.
  if (steps > 0) barrier_wait(shared + Layout::kFreeDs, (steps - 1) & 1);
  const std::uint32_t dq_rows = shared + Layout::kDs + group * kPanel + thread / 32 * 16 * d * 2;
#pragma unroll
  for (int i = 0; i < d / 16; ++i) {
    const std::uint32_t part[4] = {pack<T>(dq[8 * i], dq[8 * i + 1]), pack<T>(dq[8 * i + 2], dq[8 * i + 3]),
                                   pack<T>(dq[8 * i + 4], dq[8 * i + 5]),
                                   pack<T>(dq[8 * i + 6], dq[8 * i + 7])};
    const int row = lane & 15, chunk = 2 * i + (lane >> 4);
    store_matrix_x4(dq_rows + row * d * 2 + ((chunk ^ (row & 7)) << 4), part);
  }
  __syncwarp();
  constexpr int kLanes = d / 8;
#pragma unroll
  for (int i = 0; i < 16 * kLanes / 32; ++i) {
    const int row = i * (32 / kLanes) + lane / kLanes, chunk = lane % kLanes;
    const int of_tile = group * 64 + thread / 32 * 16 + row;
    const int query = of_tile >> p.group_log2, head = of_tile & ((1 << p.group_log2) - 1);
    if (query >= tile.queries) continue;
    const std::int64_t token = tile.first_query + query;
    const int all_head = (kv_head << p.group_log2) + head;
    uint4 value = load_shared_uint4(dq_rows + row * d * 2 + ((chunk ^ (row & 7)) << 4));
    // A query without keys has no gradient, NaN in both types, unless nobody asks for it: delta is then 0.
    const std::int64_t entry = token * (p.kv_heads << p.group_log2) + all_head;
    if (isnan(p.lse[entry]) && p.delta[entry] != 0) {
      value = {0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu};
    }
    *reinterpret_cast<uint4*>(p.dq.data + token * p.dq.token_stride + all_head * p.dq.head_stride +
                              chunk * 16) = value;
  }
}

// Rows of q or dout of a tile, zero beyond its queries.
template <int d>
__device__ __forceinline__ void load_rows(const RowsView& rows, const UnionTile& tile, int kv_head,
                                          int group_log2, std::uint32_t to) {
  constexpr int kLanes = d / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kLanes; i += kThreads) {
    const int row = i / kLanes, chunk = i % kLanes;
    const int query = row >> group_log2, head = row & ((1 << group_log2) - 1);
    const bool valid = query < tile.queries;
    const char* const from = rows.data + (tile.first_query + (valid ? query : 0)) * rows.token_stride +
                             ((kv_head << group_log2) + head) * rows.head_stride + chunk * 16;
    cp_async_16(to + chunk / 8 * kPanel + hopper::swizzled(row, chunk % 8), from, valid);
  }
}

// Notes the rows, of those this thread has copied, that hold an infinity or NaN.
template <typename T, int d>
__device__ __forceinline__ void find_bad_rows(std::uint32_t rows, unsigned* bad) {
  constexpr int kLanes = d / 8;
  constexpr std::uint32_t kExponent = is_bf16<T> ? 0x7f80 : 0x7c00;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kLanes; i += kThreads) {
    const int row = i / kLanes, chunk = i % kLanes;
    const uint4 x = load_shared_uint4(rows + chunk / 8 * kPanel + hopper::swizzled(row, chunk % 8));
    const auto not_finite = [](std::uint32_t two) {
      return (two & kExponent) == kExponent || (two >> 16 & kExponent) == kExponent;
    };
    if (not_finite(x.x) || not_finite(x.y) || not_finite(x.z) || not_finite(x.w)) {
      atomicOr(bad + row / 32, 1u << row % 32);
    }
  }
}

template <typename T, int d>
__global__ __launch_bounds__(kThreads, 1) void backward_kernel(const __grid_constant__ Params p) {
#ifdef GSA_HOPPER_CODE
  using namespace hopper;
  using Layout = Shared<d>;
  extern __shared__ char raw[];
  const std::uint32_t shared = (shared_address(raw) + 1023) & ~1023u;
  char* const generic = raw + (shared - shared_address(raw));
  const int warp = static_cast<int>(threadIdx.x / 32);
  int* const ticket = reinterpret_cast<int*>(generic + Layout::kTicket);
  if (threadIdx.x == 0) {
    *ticket = atomicAdd(p.ticket, 1);
    // Whoever writes to the ring arrives for itself (keys that are not finite are cleared there): so
    // compute-sanitizer can follow.
    barrier_init(shared + Layout::kFullK, 64);
    barrier_init(shared + Layout::kFullV, 64);
    barrier_init(shared + Layout::kFreeK, 256);
    barrier_init(shared + Layout::kFreeV, 8);
    barrier_init(shared + Layout::kFullDs, 8);
    barrier_init(shared + Layout::kFreeDs, 8);
    for (int group = 0; group < 2; ++group) {
      barrier_init(shared + Layout::kFullSums + 8 * group, 4);
      barrier_init(shared + Layout::kFreeSums + 8 * group, 1);
    }
    barrier_init_fence();
  }
  unsigned* const bad = reinterpret_cast<unsigned*>(generic + Layout::kBad);
  if (threadIdx.x < 4) bad[threadIdx.x] = 0;
  __syncthreads();
  const int place = p.schedule[*ticket];
  const int index = place / p.kv_heads, kv_head = place % p.kv_heads;
  const UnionTile tile = p.tile[index];
  const bool first =
      p.semaphores == nullptr || index + 1 == p.tiles || p.tile[index + 1].sequence != tile.sequence;
  const int* const before = first ? nullptr : p.semaphores + ((index + 1) * p.kv_heads + kv_head) * 2;
  load_rows<d>(p.q, tile, kv_head, p.group_log2, shared + Layout::kQ);
  load_rows<d>(p.dout, tile, kv_head, p.group_log2, shared + Layout::kDout);
  cp_async_commit();
  float* const stats = reinterpret_cast<float*>(generic + Layout::kStats);
  if (threadIdx.x < kRows) {
    const int row = static_cast<int>(threadIdx.x), query = row >> p.group_log2;
    float lse = INFINITY, delta = 0;
    if (query < tile.queries) {
      const std::int64_t entry = (static_cast<std::int64_t>(tile.first_query + query) * p.kv_heads + kv_head)
                                     << p.group_log2 |
                                 (row & ((1 << p.group_log2) - 1));
      lse = p.lse[entry] * kLog2E;
      delta = p.delta[entry] * p.scale;
      if (!isfinite(delta)) {  // P is then NaN where the query selects a key, and 0 elsewhere
        lse = NAN;
        delta = 0;
      }
    }
    stats[row / 2 * 4 + row % 2] = lse;
    stats[row / 2 * 4 + row % 2 + 2] = delta;
  }
  cp_async_wait<0>();
  find_bad_rows<T, d>(shared + Layout::kQ, bad);
  find_bad_rows<T, d>(shared + Layout::kDout, bad);
  fence_async_proxy();
  __syncthreads();
  if ((bad[0] | bad[1] | bad[2] | bad[3]) != 0) {
    // Rows that are not finite: zeros in the products, and NaN as P where the query selects a key.
    for (int row = warp; row < kRows; row += kThreads / 32) {
      if ((bad[row / 32] >> row % 32 & 1) == 0) continue;
      if (threadIdx.x % 32 < 4) {
        clear_row<d>(shared + Layout::kQ, row, threadIdx.x % 32);
        clear_row<d>(shared + Layout::kDout, row, threadIdx.x % 32);
      }
      stats[row / 2 * 4 + row % 2] = NAN;
      stats[row / 2 * 4 + row % 2 + 2] = 0;
    }
    fence_async_proxy();
    __syncthreads();
  }

  const int* const keys =
      p.keys == nullptr ? nullptr : p.keys + static_cast<std::int64_t>(index) * p.capacity;
  const std::uint64_t* const bits =
      p.bits == nullptr ? nullptr : p.bits + static_cast<std::int64_t>(index) * p.capacity;
  if (warp >= 8) {
    give_registers<56>();
    if (warp < 10) {
      const auto source = [&](const RowsView& rows) -> Source {
        return {rows.data + tile.k_begin * rows.token_stride + kv_head * rows.head_stride,
                static_cast<std::uint32_t>(rows.token_stride)};
      };
      gather<d>(source(p.k), source(p.v), keys, tile.count, warp - 8, shared);
    } else {
      int* const mine = p.semaphores == nullptr ? nullptr : p.semaphores + (index * p.kv_heads + kv_head) * 2;
      int* const key_list = reinterpret_cast<int*>(generic + Layout::kKeyLists) + 64 * (warp - 10);
      add_sums<d>(p, tile, keys, kv_head, warp - 10, shared, key_list, mine, before);
    }
  } else {
    take_registers<224>();
    compute<T, d>(p, tile, bits, kv_head, shared);
  }
#endif
}

}  // namespace gsa::cuda::backward
