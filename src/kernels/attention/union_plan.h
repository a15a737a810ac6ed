// The keys that a tile of neighbouring queries visits: the union of their selections as a list, and for each
// key in it which queries of the tile selected it. Made from the bit mask, once, and read by all heads.
//
// A tile holds tile_queries queries of one sequence (the last tile of a sequence may hold fewer), cut where
// the position in the sequence is a multiple of tile_queries: where a tile begins depends on nothing but
// positions.
#pragma once

#include <cstdint>

#include "kernels/common/device_sequences.h"

namespace gsa::cuda {

// In which order a tile's keys are listed.
//   causal:    first the keys of the tile's first query, then what the second one adds, and so on (ascending
//              within each). Where a key of query i stands depends on queries 0 .. i alone, so blocks of the
//              list, and with them the roundings of query i, do not depend on later queries.
//   ascending: by position.
enum class UnionOrder { causal, ascending };

struct UnionTile {
  int first_query = 0;  // row among all queries
  int queries = 0;
  int first_position = 0;  // of first_query in its sequence
  int k_begin = 0;         // row of the sequence's first key among all keys
  int count = 0;           // keys in the list
  int sequence = 0;
};

struct UnionPlan {
  int tile_queries = 0;  // a power of two, 1 .. 64
  int tiles = 0;
  int capacity = 0;                     // entries a tile has room for, a multiple of 64
  const UnionTile* tile = nullptr;      // [tiles], device memory, as all below
  const int* keys = nullptr;            // [tiles, capacity]: positions in the sequence
  const std::uint64_t* bits = nullptr;  // [tiles, capacity]: bit i: query i of the tile selects the key
  // From count up to the next multiple of 64, keys are 0 and bits are 0.

  // The same bits by query, where asked for: [tiles, capacity / 64, tile_queries]; bit j of word i of block
  // b: query i selects key 64 b + j of the list.
  const std::uint64_t* words = nullptr;
};

// How many tiles the queries of these sequences have.
int union_tiles(const Sequences& sequences, int tile_queries);

// Lists of tiles first_tile .. first_tile + tiles - 1 (tiles of sequence 0, then of sequence 1, ...). The
// lists take 12 bytes times tiles times the smaller of keys and tile_queries * max_selected: bound that by
// the range. Where a caller goes through several ranges, it gives the first range's plan as `reuse` to the
// others: its memory (of the same mask and tile_queries, and at least as many tiles) is written again, after
// all work enqueued so far. words: whether the plan's words are made (another tile_queries / 8 bytes a key).
UnionPlan make_union_plan(const ConstMask& mask, const Sequences& host_sequences,
                          const DeviceSequences& sequences, int tile_queries, UnionOrder order,
                          int first_tile, int tiles, const Context& context, const UnionPlan* reuse = nullptr,
                          bool words = false);

// The most tiles whose lists stay below about 512 MB.
int union_tiles_at_once(const ConstMask& mask, const DeviceSequences& sequences, int tile_queries);

}  // namespace gsa::cuda
