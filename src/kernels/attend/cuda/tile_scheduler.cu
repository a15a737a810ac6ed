#include "kernels/attend/cuda/tile_scheduler.h"

#include "kernels/attention/union_tiles.cuh"
#include "kernels/common/cuda_check.h"

namespace gsa::cuda {
namespace {

// Tiles without a mask: every key up to the last query's position. One thread a tile.
__global__ void dense_kernel(DeviceSequences sequences, int tile_queries, int tiles, UnionTile* to) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index >= tiles) return;
  int n = 0, of_sequence = index;
  for (;; ++n) {
    const int count = tile_count(sequences.first_position(n), sequences.queries(n), tile_queries);
    if (of_sequence < count) break;
    of_sequence -= count;
  }
  UnionTile tile = tile_of(sequences, n, tile_queries, of_sequence);
  tile.count = tile.first_position + tile.queries;
  to[index] = tile;
}

// The first tile of this sequence or a later one.
__device__ __forceinline__ int first_tile_of(const UnionTile* tile, int tiles, int sequence) {
  int low = 0, high = tiles;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (tile[middle].sequence < sequence) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// A block has the sequences and heads that run together. Their tickets: a group of every queue, then the next
// group of every queue, and so on; of a sequence the groups of all heads.
__global__ void schedule_kernel(const UnionTile* tile, int tiles, int sequences, int kv_heads,
                                TileSchedule schedule, int* tickets) {
  __shared__ int begin[kMaxScheduledSequences + 1];
  const int first = static_cast<int>(blockIdx.x) * schedule.sequences;
  const int together = min(schedule.sequences, sequences - first);
  for (int i = static_cast<int>(threadIdx.x); i <= together; i += static_cast<int>(blockDim.x)) {
    begin[i] = first_tile_of(tile, tiles, first + i);
  }
  __syncthreads();
  for (int index = begin[0] + static_cast<int>(threadIdx.x); index < begin[together];
       index += static_cast<int>(blockDim.x)) {
    const int own = tile[index].sequence - first;
    const int from_last = begin[own + 1] - 1 - index;
    const int started =
        from_last / schedule.group_tiles * schedule.group_tiles;  // tiles of the queue in groups before
    int before = 0;                                               // tiles of all queues of a head
    for (int i = 0; i < together; ++i) {
      const int count = begin[i + 1] - begin[i];
      before += min(count, i < own ? started + schedule.group_tiles : started);
    }
    const int group = min(schedule.group_tiles, begin[own + 1] - begin[own] - started);
    const int first_head = static_cast<int>(blockIdx.y) * schedule.heads;
    int* const to = tickets + tiles * first_head + (begin[0] + before) * schedule.heads + from_last - started;
    for (int i = 0; i < schedule.heads; ++i) to[i * group] = index * kv_heads + first_head + i;
  }
}

}  // namespace

const UnionTile* dense_tiles(const DeviceSequences& sequences, int tile_queries, int tiles,
                             const Context& context) {
  UnionTile* const to = context.workspace->array<UnionTile>(static_cast<std::size_t>(tiles));
  dense_kernel<<<static_cast<unsigned>((tiles + 127) / 128), 128, 0, stream_of(context.stream)>>>(
      sequences, tile_queries, tiles, to);
  check_launch("attend_backward: tiles");
  return to;
}

void schedule_tiles(const UnionTile* tile, int tiles, const DeviceSequences& sequences, int kv_heads,
                    const TileSchedule& schedule, int* tickets, const Context& context) {
  const dim3 blocks(static_cast<unsigned>((sequences.count + schedule.sequences - 1) / schedule.sequences),
                    static_cast<unsigned>(kv_heads / schedule.heads));
  schedule_kernel<<<blocks, 1024, 0, stream_of(context.stream)>>>(tile, tiles, sequences.count, kv_heads,
                                                                  schedule, tickets);
  check_launch("attend_backward: schedule");
}

}  // namespace gsa::cuda
