// In which order the blocks of attend_backward take their tiles.
//
// The tiles of a sequence and a key/value head form a chain, the last tile first: where the order of sums is
// fixed, a tile adds to a key after the one before it in the chain. Tiles of a chain that run at the same
// time therefore follow each other at the distance of a hand-over, and many of them would mostly wait; tiles
// of different chains have nothing to wait for. So chains run side by side, about as many as keep their sums
// in the L2 cache. Where those of a single sequence do not fit, chains take turns in gangs of neighbouring
// tiles, each of which finds in the cache what the one before it has added.
#pragma once

#include <cstdint>

#include "kernels/attend/attend_cuda.h"
#include "kernels/attention/union_plan.h"

namespace gsa::cuda {

struct ChainOrder {
  int heads = 1;     // key/value heads whose chains run side by side, a divisor of all: the rest afterwards
  int together = 1;  // sequences whose chains do
  int gang = 1;      // tiles of a chain that start one after the other
};

// row_bytes: of the sums of one key and head.
ChainOrder chain_order(const DeviceSequences& sequences, int kv_heads, std::int64_t row_bytes,
                       Accumulation accumulation);

// The tiles without a mask: every key up to the last query's position; [union_tiles()] in device memory.
const UnionTile* dense_tiles(const DeviceSequences& sequences, int tile_queries, int tiles,
                             const Context& context);

// Writes tile * kv_heads + key/value head of every ticket, [tiles, kv_heads]. tile: sequence after sequence.
// Both are device memory.
void order_chains(const UnionTile* tile, int tiles, const DeviceSequences& sequences, int kv_heads,
                  const ChainOrder& order, int* tickets, const Context& context);

}  // namespace gsa::cuda
