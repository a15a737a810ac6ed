// What the forward and the backward kernel of the generic path share: tiles of 64 or 128 rows (queries x
// heads of a group), rows of keys gathered into shared memory, per-row masks, and the products of fragments.
//
// Tiles in shared memory are row-major with 16 bytes of padding a row: an odd number of 16-byte chunks, so
// that any eight rows of one column of chunks lie in different banks.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "kernels/attend/attend.h"
#include "kernels/attention/union_plan.h"
#include "kernels/common/aligned_rows.h"
#include "kernels/common/log2e.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/tile_slots.h"

namespace gsa::cuda::generic {

inline constexpr int kWarpRows = 16;      // of a tile: each warp has its own
inline constexpr int kMaxTileHeads = 16;  // a larger group is split
inline constexpr unsigned kAll = 0xffffffffu;
inline constexpr int kNoKey = -1;

template <int size>
inline constexpr int kStride = size + 8;  // of a row in shared memory, in elements

// Rows of a tensor [tokens, heads, size]; 16 bytes at a time where `aligned`.
struct View {
  const void* data;
  std::int64_t token_stride;
  std::int64_t head_stride;
  bool aligned;

  template <typename T>
  __device__ __forceinline__ const T* row(int token, int head) const {
    return static_cast<const T*>(data) + token * token_stride + head * head_stride;
  }
};

inline View view_of(const ConstRows& rows) {
  return {rows.data, rows.token_stride, rows.head_stride, aligned_rows(rows)};
}

// How the rows of all queries and heads are cut into tiles.
struct Tiling {
  DeviceSequences sequences;
  UnionPlan plan;   // plan.tile null: every visible key
  int queries;      // of a tile, a power of two
  int heads_shift;  // a tile has room for 1 << heads_shift heads
  int head_splits;  // tiles that share a group's heads among them
  int group;        // heads of a key/value head
  int kv_heads;
  int size;  // of a head
};

// Tiles of 16 rows a warp.
inline Tiling tiling_of(const AttendShape& shape, const DeviceSequences& sequences, int warps) {
  Tiling t{};
  t.sequences = sequences;
  t.group = static_cast<int>(shape.heads / shape.kv_heads);
  t.head_splits = (t.group + kMaxTileHeads - 1) / kMaxTileHeads;
  while ((1 << t.heads_shift) < (t.head_splits > 1 ? kMaxTileHeads : t.group)) ++t.heads_shift;
  t.queries = kWarpRows * warps >> t.heads_shift;
  t.kv_heads = static_cast<int>(shape.kv_heads);
  t.size = static_cast<int>(shape.head_size);
  return t;
}

// Head sizes are padded to one of a few; calls body with it.
template <typename Body>
void with_padded_size(int size, const Body& body) {
  if (size <= 64) {
    body(std::integral_constant<int, 64>());
  } else if (size <= 96) {
    body(std::integral_constant<int, 96>());
  } else if (size <= 128) {
    body(std::integral_constant<int, 128>());
  } else if (size <= 192) {
    body(std::integral_constant<int, 192>());
  } else {
    body(std::integral_constant<int, 256>());
  }
}

// The factor of logits in exponents to base 2, without its sign. Not zero, so that the logit of an unselected
// pair stays -infinity times a positive number.
inline float scale_log2_of(const AttendShape& shape) {
  return std::max(static_cast<float>(std::abs(shape.scale) * kLog2EDouble), FLT_MIN);
}

// Without a mask, tiles are found from their number alone. They are cut at positions: two spare slots a sequence.
inline constexpr int kSpareSlots = 2;
inline int dense_slots(const DeviceSequences& sequences, int tile_queries) {
  return first_slot<kSpareSlots>(sequences.total_queries, sequences.count, tile_queries);
}

// Its queries are 0 where the slot is empty.
__device__ __forceinline__ UnionTile dense_tile(const DeviceSequences& s, int tile_queries, int slot) {
  const int n =
      sequence_of_slot<kSpareSlots>(slot, s.count, tile_queries, [&](int i) { return s.q_begin(i); });
  const int index = slot - first_slot<kSpareSlots>(s.q_begin(n), n, tile_queries);
  const int first = s.first_position(n), end = first + s.queries(n);
  const int tile_begin = (first / tile_queries + index) * tile_queries;
  const int begin = max(tile_begin, first), until = min(tile_begin + tile_queries, end);
  UnionTile tile;
  tile.queries = max(until - begin, 0);
  tile.first_query = s.q_begin(n) + begin - first;
  tile.first_position = begin;
  tile.k_begin = s.k_begin(n);
  tile.count = until;
  tile.sequence = n;
  return tile;
}

// A tile with the heads that it treats.
struct Tile {
  UnionTile at;
  int kv_head;
  int first_head;
  int heads;

  // Row r of the tile: its query (row among all queries) and head.
  __device__ __forceinline__ bool holds(int row, int shift) const {
    return (row >> shift) < at.queries && (row & ((1 << shift) - 1)) < heads;
  }
  __device__ __forceinline__ int query(int row, int shift) const { return at.first_query + (row >> shift); }
  __device__ __forceinline__ int head(int row, int shift) const {
    return first_head + (row & ((1 << shift) - 1));
  }
};

__device__ __forceinline__ Tile make_tile(const Tiling& t, const UnionTile& at, int kv_head, int split) {
  const int first = split << t.heads_shift;
  return {at, kv_head, kv_head * t.group + first, min(t.group - first, 1 << t.heads_shift)};
}

// ---- copies

// `count` elements (at most 8; the rest is zero) into 16 bytes of shared memory.
template <typename T>
__device__ __forceinline__ void copy_chunk(T* to, const T* from, int count, bool aligned) {
  count = max(0, min(count, 8));
  if (aligned) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(2 * count)
                 : "memory");
  } else {
    const auto* const words = reinterpret_cast<const std::uint16_t*>(from);
    std::uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t lower = 2 * i < count ? words[2 * i] : 0u;
      const std::uint32_t upper = 2 * i + 1 < count ? words[2 * i + 1] : 0u;
      pair[i] = lower | upper << 16;
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
  }
}

// The tile's rows of a tensor that has heads.
template <typename T, int size, int warps>
__device__ __forceinline__ void load_rows(T* to, const View& from, const Tile& tile, const Tiling& t) {
  constexpr int kChunks = size / 8;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kWarpRows * warps * kChunks; i += 32 * warps) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const bool valid = tile.holds(row, t.heads_shift);
    const T* source = from.row<T>(valid ? tile.query(row, t.heads_shift) : tile.at.first_query,
                                  valid ? tile.head(row, t.heads_shift) : tile.first_head);
    copy_chunk(to + row * kStride<size> + column, source + (valid ? column : 0), valid ? t.size - column : 0,
               from.aligned);
  }
}

// Rows of keys (or values) at the given positions of the tile's sequence; zeros for kNoKey.
template <typename T, int size, int keys, int warps>
__device__ __forceinline__ void load_keys(T* to, const View& from, const Tile& tile, const int* positions,
                                          int head_size) {
  constexpr int kChunks = size / 8, kThreads = 32 * warps;
  static_assert(keys * kChunks % kThreads == 0);
  const T* const base = from.row<T>(tile.at.k_begin, tile.kv_head);
  const auto copy = [&](int i, bool aligned) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const int position = positions[row];
    const bool valid = position != kNoKey;
    copy_chunk(to + row * kStride<size> + column,
               base + (valid ? position : 0) * from.token_stride + (valid ? column : 0),
               valid ? head_size - column : 0, aligned);
  };
  const int thread = static_cast<int>(threadIdx.x);
  if (from.aligned) {
#pragma unroll 4
    for (int n = 0; n < keys * kChunks / kThreads; ++n) copy(n * kThreads + thread, true);
  } else {
#pragma unroll 1
    for (int n = 0; n < keys * kChunks / kThreads; ++n) copy(n * kThreads + thread, false);
  }
}

// The position of entry i of the tile's list.
__device__ __forceinline__ int key_at(const int* list, const Tile& tile, int i) {
  if (i >= tile.at.count) return kNoKey;
  return list == nullptr ? i : list[i];
}

// The tile's 16 rows of this warp, from its own rows of shared memory (staged by the same warp) to the
// tensor.
template <typename T, int size>
__device__ __forceinline__ void store_rows(const View& to, const T* from, const Tile& tile, const Tiling& t) {
  constexpr int kChunks = size / 8;
  const int lane = static_cast<int>(threadIdx.x % 32), first = static_cast<int>(threadIdx.x / 32) * 16;
  for (int i = lane; i < 16 * kChunks; i += 32) {
    const int row = first + i / kChunks, column = i % kChunks * 8;
    if (!tile.holds(row, t.heads_shift) || column >= t.size) continue;
    T* const target =
        const_cast<T*>(to.row<T>(tile.query(row, t.heads_shift), tile.head(row, t.heads_shift))) + column;
    const T* const source = from + row * kStride<size> + column;
    if (to.aligned && column + 8 <= t.size) {
      *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
    } else {
      for (int c = 0; c < min(8, t.size - column); ++c) target[c] = source[c];
    }
  }
}

// ---- masks: bit j of a row's mask says that its query selected entry j of the block

struct RowMasks {
  std::uint64_t upper, lower;  // of rows lane / 4 and lane / 4 + 8 of the warp
};

// From the list's bits (lane l holds those of entries l and 32 + l).
template <int keys>
__device__ __forceinline__ RowMasks list_masks(std::uint64_t first, std::uint64_t second, int heads_shift) {
  const int warp_row = static_cast<int>(threadIdx.x / 32) * 16;
  const int row = warp_row + static_cast<int>(threadIdx.x % 32) / 4;
  const int upper = row >> heads_shift, lower = (row + 8) >> heads_shift;
  const int begin = warp_row >> heads_shift, end = (warp_row + 15) >> heads_shift;
  RowMasks masks{0, 0};
  for (int i = begin; i <= end; ++i) {
    std::uint64_t who = __ballot_sync(kAll, (first >> i & 1) != 0);
    if constexpr (keys > 32) {
      who |= static_cast<std::uint64_t>(__ballot_sync(kAll, (second >> i & 1) != 0)) << 32;
    }
    if (i == upper) masks.upper = who;
    if (i == lower) masks.lower = who;
  }
  return masks;
}

// Entries first .. of all visible keys, up to the row's own position.
template <int keys>
__device__ __forceinline__ RowMasks causal_masks(const Tile& tile, int first, int heads_shift) {
  const int row = static_cast<int>(threadIdx.x / 32) * 16 + static_cast<int>(threadIdx.x % 32) / 4;
  const auto mask = [&](int r) -> std::uint64_t {
    const int query = r >> heads_shift;
    const int count = tile.at.first_position + query + 1 - first;  // visible from `first` on
    if (count <= 0) return 0;
    const std::uint64_t every = keys == 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << (keys % 64)) - 1;
    return count >= keys ? every : (std::uint64_t(1) << count) - 1;
  };
  return {mask(row), mask(row + 8)};
}

// The masks of a block that begins at entry `first`: rows without a query or head have none.
template <int keys>
__device__ __forceinline__ RowMasks block_masks(const Tiling& t, const Tile& tile, int first,
                                                std::uint64_t first_bits, std::uint64_t second_bits) {
  RowMasks masks = t.plan.tile != nullptr ? list_masks<keys>(first_bits, second_bits, t.heads_shift)
                                          : causal_masks<keys>(tile, first, t.heads_shift);
  const int row = static_cast<int>(threadIdx.x / 32) * 16 + static_cast<int>(threadIdx.x % 32) / 4;
  if (!tile.holds(row, t.heads_shift)) masks.upper = 0;
  if (!tile.holds(row + 8, t.heads_shift)) masks.lower = 0;
  return masks;
}

__device__ __forceinline__ float exp2f_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- fragments

// Where a lane's row of a 16x16 block begins for ldmatrix_x4.
//   rows_first:    matrices 0, 1 lie below each other (a of a product; b with .trans)
//   columns_first: matrices 0, 1 lie side by side (b from rows; a with .trans)
template <int stride>
__device__ __forceinline__ int rows_first() {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return (lane % 16) * stride + lane / 16 * 8;
}
template <int stride>
__device__ __forceinline__ int columns_first() {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
}

// d [16, 8 n] += a [16, size] b^T: a and b in shared memory, both with rows of `size`; b has 8 n rows.
template <typename T, int size, int tiles>
__device__ __forceinline__ void product_rows(float (&d)[tiles][4], std::uint32_t a, std::uint32_t b) {
#pragma unroll
  for (int step = 0; step < size / 16; ++step) {
    std::uint32_t left[4];
    ldmatrix_x4(left, a + step * 32);
#pragma unroll
    for (int pair = 0; pair < tiles / 2; ++pair) {
      std::uint32_t right[4];
      ldmatrix_x4(right, b + pair * 16 * kStride<size> * 2 + step * 32);
      mma_16x8x16<T>(d[2 * pair], left, right[0], right[1]);
      mma_16x8x16<T>(d[2 * pair + 1], left, right[2], right[3]);
    }
  }
}

// d [16, size] += a [16, keys] b: a in registers, b [keys, size] in shared memory.
template <typename T, int size, int keys>
__device__ __forceinline__ void product_columns(float (&d)[size / 8][4],
                                                const std::uint32_t (&a)[keys / 16][4], std::uint32_t b) {
#pragma unroll
  for (int step = 0; step < keys / 16; ++step) {
#pragma unroll
    for (int pair = 0; pair < size / 16; ++pair) {
      std::uint32_t right[4];
      ldmatrix_x4_trans(right, b + step * 16 * kStride<size> * 2 + pair * 32);
      mma_16x8x16<T>(d[2 * pair], a[step], right[0], right[1]);
      mma_16x8x16<T>(d[2 * pair + 1], a[step], right[2], right[3]);
    }
  }
}

// The accumulators of a [16, 8 n] product as the left factor of the next one.
template <typename T, int tiles>
__device__ __forceinline__ void as_left(std::uint32_t (&a)[tiles / 2][4], const float (&d)[tiles][4]) {
#pragma unroll
  for (int step = 0; step < tiles / 2; ++step) {
    a[step][0] = pack<T>(d[2 * step][0], d[2 * step][1]);
    a[step][1] = pack<T>(d[2 * step][2], d[2 * step][3]);
    a[step][2] = pack<T>(d[2 * step + 1][0], d[2 * step + 1][1]);
    a[step][3] = pack<T>(d[2 * step + 1][2], d[2 * step + 1][3]);
  }
}

// The warp's 16 rows, d times a factor a row, into its own rows of shared memory.
template <typename T, int size>
__device__ __forceinline__ void stage_rows(T* to, const float (&d)[size / 8][4], float upper, float lower) {
  const int lane = static_cast<int>(threadIdx.x % 32),
            row = static_cast<int>(threadIdx.x / 32) * 16 + lane / 4;
  T* const at = to + row * kStride<size> + lane % 4 * 2;
  // A sum of -0 or +0 is +0 here, whether or not blocks without keys of this row were added to it.
#pragma unroll
  for (int j = 0; j < size / 8; ++j) {
    *reinterpret_cast<std::uint32_t*>(at + j * 8) =
        pack<T>(__fmaf_rn(d[j][0], upper, 0.0f), __fmaf_rn(d[j][1], upper, 0.0f));
    *reinterpret_cast<std::uint32_t*>(at + 8 * kStride<size> + j * 8) =
        pack<T>(__fmaf_rn(d[j][2], lower, 0.0f), __fmaf_rn(d[j][3], lower, 0.0f));
  }
}

// ---- values that are not finite
//
// A product multiplies unselected pairs by zero, and zero times NaN is NaN. So tiles are computed as if all
// were finite; where a result is not, a fallback computes the tile with the offending elements taken out of
// shared memory, and put back for those rows that selected them. For all other rows that leaves the bits of a
// tile without such elements.

__device__ __forceinline__ bool finite(float x) { return fabsf(x) <= 3.402823466e38f; }

template <int tiles>
__device__ __forceinline__ bool all_finite(const float (&d)[tiles][4]) {
  float sum = 0;  // 0 or NaN
#pragma unroll
  for (int j = 0; j < tiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum = __fmaf_rn(d[j][i], 0.0f, sum);
  }
  return sum == 0;
}

// Takes what is not finite out of a block of keys; bit j of `bad` is set where row j had such an element. For
// all threads; barriers stand around it.
template <typename T, int size, int keys, int warps>
__device__ __forceinline__ void take_out(T* block, std::uint32_t* bad) {
  for (int i = static_cast<int>(threadIdx.x); i < keys * size; i += 32 * warps) {
    const int row = i / size;
    T& element = block[row * kStride<size> + i % size];
    if (finite(to_float(element))) continue;
    element = from_float<T>(0.0f);
    atomicOr(bad + row / 32, 1u << (row % 32));
  }
}

template <typename T, int size, int keys>
__device__ __forceinline__ void put_back(float (&d)[size / 8][4], const View& from, const Tile& tile,
                                         const int* positions, const std::uint32_t* bad,
                                         const RowMasks& masks, int head_size) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int row = 0; row < keys; ++row) {
    if ((bad[row / 32] >> (row % 32) & 1) == 0) continue;
    const T* const source = from.row<T>(tile.at.k_begin + positions[row], tile.kv_head);
    const bool upper = (masks.upper >> row & 1) != 0, lower = (masks.lower >> row & 1) != 0;
#pragma unroll
    for (int j = 0; j < size / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = j * 8 + lane % 4 * 2 + i;
        const float x = column < head_size ? to_float(source[column]) : 0.0f;
        if (finite(x)) continue;
        if (upper) d[j][i] += x;
        if (lower) d[j][2 + i] += x;
      }
    }
  }
}

}  // namespace gsa::cuda::generic
