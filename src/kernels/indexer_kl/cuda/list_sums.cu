// Backward pass of indexer_kl for lists, the last step of a chunk: the splits of each query are added up in
// their order, and the parts of each key in the order of tiles.
#include "kernels/common/cuda_check.h"
#include "kernels/indexer_kl/cuda/device.cuh"

namespace gsa::cuda::kl {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// A block: a query.
template <typename T>
__device__ __forceinline__ void add_query(const IndexerRows& indexer, const Chunk& chunk,
                                          const ListRange& range, const Gradients& gradients, int padded,
                                          int i) {
  const int tile_index = range.first_tile + i / kListQueries, row_in_tile = i % kListQueries;
  const UnionTile tile = chunk.tile[tile_index];
  if (row_in_tile >= tile.queries) return;
  const int query = tile.first_query + row_in_tile;
  const int first = chunk.tile_slot[tile_index], splits = chunk.tile_slot[tile_index + 1] - first;
  const std::int64_t begin = static_cast<std::int64_t>(first - range.first_slot) * kListQueries + row_in_tile;
  const int row = indexer.heads * padded;
  // A query with an empty support gave NaN; so do the gradients of what is its own, and of the bias, unless
  // nobody asks for its loss.
  const float lse = gradients.index_lse[query];
  const float factor = isnan(lse) && gradients.weight[query] != 0 ? lse : 1.0f;
  const float* const dq_part = gradients.dq_part + begin * row;
  T* const dq = static_cast<T*>(gradients.dq.data) + query * gradients.dq.token_stride;
  for (int e = static_cast<int>(threadIdx.x); e < row; e += kThreads) {
    const int j = e / padded, c = e % padded;
    if (c >= indexer.q.size) continue;
    float sum = 0;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) sum += dq_part[static_cast<std::int64_t>(s) * kListQueries * row + e];
    dq[j * gradients.dq.head_stride + c] = from_float<T>(factor * indexer.scale * sum);
  }
  const float* const dw_part = gradients.dw_part + begin * indexer.heads * 2;
  T* const dw = static_cast<T*>(gradients.dw.data) + query * gradients.dw.token_stride;
  for (int j = static_cast<int>(threadIdx.x); j < indexer.heads; j += kThreads) {
    float sum = 0, bias = 0;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
      const float2 part = *reinterpret_cast<const float2*>(
          dw_part + (static_cast<std::int64_t>(s) * kListQueries * indexer.heads + j) * 2);
      sum += part.x;
      bias += part.y;
    }
    dw[j * gradients.dw.head_stride] = from_float<T>(factor * sum);
    gradients.dbias_rows[static_cast<std::int64_t>(query) * indexer.heads + j] = factor * bias;
  }
}

__device__ __forceinline__ int sequence_of_key(const DeviceSequences& sequences, int key) {
  if (sequences.table == nullptr) return key / sequences.keys_each;
  int low = 0, high = sequences.count - 1;  // the last n with k_begin(n) <= key
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (sequences.k_begin(middle) <= key) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// A warp: a key. 32 tiles at a time, a lane looks up whether its tile has the key, and where.
template <int kSize>
__device__ __forceinline__ void add_key(const IndexerRows& indexer, const Chunk& chunk,
                                        const ListRange& range, const DeviceSequences& sequences,
                                        const Gradients& gradients, int key, int lane) {
  constexpr int kEach = kSize / 32, kAtOnce = kSize <= 64 ? 4 : 2;
  const int n = sequence_of_key(sequences, key);
  const int position = key - sequences.k_begin(n), word = position / 32, bit = position % 32;
  // Tiles begin where words do: the first one that sees any key of the word.
  const int seen = gradients.sequence_tile[n] + max(0, word - sequences.first_position(n) / kListQueries);
  const int begin = max(range.first_tile, seen);
  const int end = min(range.first_tile + range.tiles, gradients.sequence_tile[n + 1]);
  const ListWord* const words =
      chunk.word + static_cast<std::int64_t>(word) * chunk.max_tiles - range.first_tile;
  const int last_row = chunk.slots * kSlot - 1;
  float sum[kEach];
  bool any = false;
  float* const dk = gradients.dk + static_cast<std::int64_t>(key) * indexer.k.size;
  const auto look_up = [&](int tile) { return tile < end ? words[tile] : ListWord{}; };
  ListWord next = look_up(begin + lane);
  for (int base = begin; base < end; base += 32) {
    const ListWord own = next;
    next = look_up(base + 32 + lane);
    const int row = min(own.row + __popc(own.bits & ((1u << bit) - 1)), last_row);
    unsigned left = __ballot_sync(~0u, (own.bits >> bit & 1u) != 0);
    if (left != 0 && !any) {
      any = true;
#pragma unroll
      for (int i = 0; i < kEach; ++i) sum[i] = 32 * i + lane < indexer.k.size ? dk[32 * i + lane] : 0.0f;
    }
    while (left != 0) {
      float part[kAtOnce][kEach];
      unsigned taken = left;
#pragma unroll
      for (int m = 0; m < kAtOnce; ++m) {
        if (taken != 0) {
          const int from = __shfl_sync(~0u, row, __ffs(static_cast<int>(taken)) - 1);
          const float* const at = gradients.dk_part + static_cast<std::int64_t>(from) * kSize + lane;
#pragma unroll
          for (int i = 0; i < kEach; ++i) part[m][i] = at[32 * i];
          taken &= taken - 1;
        }
      }
#pragma unroll
      for (int m = 0; m < kAtOnce; ++m) {
        if (left != 0) {
#pragma unroll
          for (int i = 0; i < kEach; ++i) sum[i] = fmaf(indexer.scale, part[m][i], sum[i]);
          left &= left - 1;
        }
      }
    }
  }
  if (!any) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (32 * i + lane < indexer.k.size) dk[32 * i + lane] = sum[i];
  }
}

// The first row_blocks blocks have queries, the others keys.
template <typename T, int kSize>
__global__ void __launch_bounds__(kThreads, kSize <= 64 ? 6 : 1)
    combine_lists_kernel(const IndexerRows indexer, const Chunk chunk, const DeviceSequences sequences,
                         const Gradients gradients, int row_blocks) {
  const ListRange range = *chunk.range;
  if (range.tiles == 0) return;
  if (static_cast<int>(blockIdx.x) < row_blocks) {
    for (int i = static_cast<int>(blockIdx.x); i < range.tiles * kListQueries; i += row_blocks) {
      add_query<T>(indexer, chunk, range, gradients, kSize, i);
    }
    return;
  }
  const UnionTile first = chunk.tile[range.first_tile], last = chunk.tile[range.first_tile + range.tiles - 1];
  const int end = last.k_begin + last.first_position + last.queries;  // what its last query sees
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int step = (static_cast<int>(gridDim.x) - row_blocks) * kWarps;
  int key = first.k_begin + (static_cast<int>(blockIdx.x) - row_blocks) * kWarps +
            static_cast<int>(threadIdx.x) / 32;
  for (; key < end; key += step) {
    add_key<kSize>(indexer, chunk, range, sequences, gradients, key, lane);
  }
}

}  // namespace

void combine_lists(DType dtype, const IndexerRows& indexer, const Chunk& chunk,
                   const DeviceSequences& sequences, const Gradients& gradients, const Context& context) {
  const int row_blocks = 4 * context.device.multiprocessors, key_blocks = 2 * row_blocks;
  with_type_and_index_size(dtype, indexer.q.size, [&]<typename T, int kSize>() {
    combine_lists_kernel<T, kSize>
        <<<static_cast<unsigned>(row_blocks + key_blocks), kThreads, 0, stream_of(context.stream)>>>(
            indexer, chunk, sequences, gradients, row_blocks);
  });
  check_launch("indexer_kl combine_lists");
}

}  // namespace gsa::cuda::kl
