// Tiles of neighbouring queries on the device, and their columns of mask words: for kernels that make unions.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/attention/query_tiles.h"
#include "kernels/attention/union_plan.h"

namespace gsa::cuda {

inline constexpr unsigned kAll = 0xffffffffu;

// Tile number `index` of sequence n, without the count of its keys.
__device__ __forceinline__ UnionTile tile_of(const DeviceSequences& sequences, int n, int tile_queries,
                                             int index) {
  const int first = sequences.first_position(n);
  const int begin = max((first / tile_queries + index) * tile_queries, first);  // a position
  const int end = min((first / tile_queries + index + 1) * tile_queries, first + sequences.queries(n));
  UnionTile tile;
  tile.first_query = sequences.q_begin(n) + begin - first;
  tile.queries = end - begin;
  tile.first_position = begin;
  tile.k_begin = sequences.k_begin(n);
  tile.sequence = n;
  return tile;
}

// Tile number `index` of all; one warp together.
__device__ inline UnionTile find_tile(const DeviceSequences& sequences, int tile_queries, int index) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int n = 0;
  if (sequences.table == nullptr) {
    const int each = tile_count(sequences.position_each, sequences.queries_each, tile_queries);
    n = index / each;
    index -= n * each;
  } else {
    for (int base = 0;; base += 32) {
      const int mine = base + lane;
      const int tiles = mine < sequences.count ? tile_count(sequences.first_position(mine),
                                                            sequences.queries(mine), tile_queries)
                                               : 0;
      int sum = tiles;  // tiles of the sequences base .. mine
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kAll, sum, step);
        if (lane >= step) sum += other;
      }
      const unsigned beyond = __ballot_sync(kAll, sum > index);
      if (beyond != 0 || base + 32 >= sequences.count) {
        const int found = beyond != 0 ? __ffs(static_cast<int>(beyond)) - 1 : 31;
        n = base + found;
        index -= __shfl_sync(kAll, sum - tiles, found);
        break;
      }
      index -= __shfl_sync(kAll, sum, 31);
    }
  }
  return tile_of(sequences, n, tile_queries, index);
}

struct MaskColumns {
  const std::uint32_t* words;
  std::int64_t words_per_query;
  bool pairs;  // rows of words begin at multiples of 8 bytes
};

inline MaskColumns columns_of(const ConstMask& mask) {
  return {mask.words, mask.words_per_query,
          reinterpret_cast<std::uintptr_t>(mask.words) % 8 == 0 && mask.words_per_query % 2 == 0};
}

// The words of `columns` neighbouring columns, 0 beyond the tile's queries and beyond each query's position.
template <int tile_queries, int columns>
__device__ __forceinline__ void load_columns(const MaskColumns& mask, const UnionTile& tile, int first,
                                             int end, std::uint32_t (&m)[tile_queries][columns]) {
  using Vector = std::conditional_t<columns == 2, uint2, std::uint32_t>;
  const std::uint32_t* words = mask.words + tile.first_query * mask.words_per_query + first;
  if (columns > 1 && mask.pairs && first + columns <= end) {
#pragma unroll
    for (int i = 0; i < tile_queries; ++i, words += mask.words_per_query) {
      Vector v = {};
      if (i < tile.queries) v = __ldg(reinterpret_cast<const Vector*>(words));
      memcpy(m[i], &v, sizeof(v));
    }
  } else {
#pragma unroll
    for (int i = 0; i < tile_queries; ++i, words += mask.words_per_query) {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        m[i][c] = i < tile.queries && first + c < end ? __ldg(words + c) : 0;
      }
    }
  }
  // Bits beyond a query's position are passed over, whoever set them: they would show it the future, or
  // memory behind the keys.
  if (32 * (first + columns) > tile.first_position + 1) {
#pragma unroll
    for (int i = 0; i < tile_queries; ++i) {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const int visible = tile.first_position + i + 1 - 32 * (first + c);
        if (visible < 32) m[i][c] &= visible <= 0 ? 0u : (1u << visible) - 1;
      }
    }
  }
}

}  // namespace gsa::cuda
