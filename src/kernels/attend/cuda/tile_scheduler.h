// The tile scheduler of attend_backward (attend_backward_plan.h): the order of its tiles, written out on the
// device.
#pragma once

#include <cstdint>

#include "kernels/attend/attend_backward_plan.h"
#include "kernels/attention/union_plan.h"

namespace gsa::cuda {

// The tiles without a mask: every key up to the last query's position; [union_tiles()] in device memory.
const UnionTile* dense_tiles(const DeviceSequences& sequences, int tile_queries, int tiles,
                             const Context& context);

// Writes tile * kv_heads + key/value head of every ticket, [tiles, kv_heads]. tile: sequence after sequence.
// Both are device memory.
void schedule_tiles(const UnionTile* tile, int tiles, const DeviceSequences& sequences, int kv_heads,
                    const TileSchedule& schedule, int* tickets, const Context& context);

}  // namespace gsa::cuda
