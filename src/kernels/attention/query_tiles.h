// Tiles of neighbouring queries, and a sample of them as a list of places (see QueryTiles in
// gsa/tensor_view.h). The same for every device.
#pragma once

#include <cstdint>
#include <vector>

#include "gsa/tensor_view.h"
#include "kernels/common/host_device.h"

namespace gsa {

struct SampledTile {
  std::int64_t sequence;
  std::int64_t first_query;     // row among the queries of all sequences
  std::int64_t queries;         // 1 .. kQueryTile
  std::int64_t first_position;  // of first_query in its sequence; the others follow
};

// Tiles of `queries` consecutive queries, the first of which stands at first_position, cut where positions
// are multiples of tile_queries.
template <typename Int>
GSA_DEVICE constexpr Int tile_count(Int first_position, Int queries, Int tile_queries) {
  return queries == 0 ? 0 : (first_position + queries - 1) / tile_queries - first_position / tile_queries + 1;
}

constexpr std::int64_t query_tiles(std::int64_t queries, std::int64_t first_position) {
  return tile_count(first_position, queries, kQueryTile);
}

// Of all sequences: tiles are numbered 0 .. total - 1.
std::int64_t total_query_tiles(const Sequences& sequences);

// The sampled tiles in ascending order; every tile where tiles.number is null.
std::vector<SampledTile> sampled_tiles(const Sequences& sequences, const QueryTiles& tiles);

namespace check {

// Numbers ascend, are distinct and below the number of tiles. The sequences are checked already.
void query_tiles(const char* op, const QueryTiles& tiles, const Sequences& sequences);

}  // namespace check

}  // namespace gsa
