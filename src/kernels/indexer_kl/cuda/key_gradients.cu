// Backward pass of indexer_kl along the keys: dk from dI.
//
// A block has 128 entries of a part (a slot where listed, else a window of up to four tiles), a warp 16 of
// them; 32 queries of a head at a time stream past. The parts are then added to dk key by key, in their
// order.
#include "kernels/common/cuda_check.h"
#include "kernels/indexer_kl/cuda/device.cuh"

namespace gsa::cuda::kl {
namespace {

template <int kSize, bool kListed>
struct KeyShape {
  static constexpr int kQueries = tile_queries(kListed);
  static constexpr int kRows = 32;  // queries at a time
  static constexpr int kParts = kQueries / kRows;
  static constexpr int kWarps = kSize == 256 ? 4 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kEntries = 16 * kWarps;
  static constexpr int kStages = 3;
  static constexpr int kKeyBytes = kEntries * kSize * 2;
  static constexpr int kStepBytes = kRows * kSize * 2;
  static constexpr int kBytes = kKeyBytes + kStages * (kStepBytes + kRows * 4);
};

template <typename T, int kSize, bool kListed>
__global__ void __launch_bounds__(KeyShape<kSize, kListed>::kThreads)
    key_gradients_kernel(const IndexerRows indexer, const Chunk chunk, const RowFacts facts,
                         const Gradients gradients) {
  using Shape = KeyShape<kSize, kListed>;
  constexpr int kRows = Shape::kRows, kStages = Shape::kStages, kChunks = kSize / 8, kBlocks = kRows / 8;
  extern __shared__ __align__(128) unsigned char shared[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  // The part's tiles from tile_index on, and where its entries are. Listed: of the slot.
  int first_entry, tile_index, tiles_end, k_begin, key_count;
  std::int64_t list = 0;
  if constexpr (kListed) {
    constexpr int kParts = kSlot / Shape::kEntries;
    const int slot = static_cast<int>(blockIdx.x) / kParts;
    if (slot >= chunk.range->slots) return;
    const Split split = listed_split(chunk.slot[slot], slot);
    first_entry = static_cast<int>(blockIdx.x) % kParts * Shape::kEntries;
    tile_index = split.index;
    tiles_end = tile_index + 1;
    k_begin = split.tile.k_begin;
    key_count = split.entries;
    list = split.list;
    if (first_entry >= key_count) return;
  } else {
    first_entry = static_cast<int>(blockIdx.x) * Shape::kEntries;
    const Part whole = gradients.part[blockIdx.y];
    tile_index = whole.first_tile;
    tiles_end = whole.first_tile + whole.tiles;
    k_begin = whole.k_begin;
    key_count = whole.keys;
    if (first_entry >= key_count) return;
    while (chunk.tile[tile_index].count <= first_entry) ++tile_index;  // the last one sees the entry
  }

  const std::uint32_t keys_at = shared_address(shared), steps_at = keys_at + Shape::kKeyBytes;
  float* const w_at = reinterpret_cast<float*>(shared + Shape::kKeyBytes + kStages * Shape::kStepBytes);
  for (int c = thread; c < Shape::kEntries * kChunks; c += Shape::kThreads) {
    const int row = c / kChunks, part = c % kChunks, entry = first_entry + row;
    int key = 0;
    bool valid = entry < key_count;
    if (valid) {
      key = k_begin + (kListed ? chunk.keys[list + entry] : entry);
      valid = facts.bad_key[key] == 0;
    }
    copy_chunk(keys_at + tile_offset<kSize>(row, part), row_of<T>(indexer.k, key, 0), 8 * part,
               indexer.k.size, valid, indexer.k.aligned);
  }

  // Steps: the heads of 32 queries, then those of the next ones. w travels through a register, since it has
  // to be converted; it is stored at the end of the step that asked for it.
  int next_tile = tile_index, next_part = 0, next_head = 0, next_slot = 0, w_slot = 0;
  float w = 0.0f;
  const auto copy_next = [&] {
    if (next_tile < tiles_end) {
      const UnionTile& tile = chunk.tile[next_tile];
      const int first_query = tile.first_query + next_part * kRows,
                queries = tile.queries - next_part * kRows;
      const auto usable = [&](int query) {
        return query < queries && facts.bad_query[first_query + query] == 0;
      };
      for (int c = thread; c < kRows * kChunks; c += Shape::kThreads) {
        const int query = c / kChunks, part = c % kChunks;
        const bool valid = usable(query);
        copy_chunk(steps_at + next_slot * Shape::kStepBytes + tile_offset<kSize>(query, part),
                   row_of<T>(indexer.q, first_query + (valid ? query : 0), next_head), 8 * part,
                   indexer.q.size, valid, indexer.q.aligned);
      }
      if (thread < kRows) {
        w = usable(thread) ? to_float(static_cast<const T*>(
                                 indexer.w.data)[(first_query + thread) * indexer.w.token_stride +
                                                 next_head * indexer.w.head_stride])
                           : 0.0f;
      }
    }
    w_slot = next_slot;
    if (++next_head == indexer.heads) next_head = 0, ++next_part;
    if (next_part == Shape::kParts) next_part = 0, ++next_tile;
    if (++next_slot == kStages) next_slot = 0;
  };
  const auto store_w = [&] {
    if (thread < kRows) w_at[w_slot * kRows + thread] = w;
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    copy_next();
    store_w();
    cp_async_commit();
  }

  const int row = 16 * warp + (lane >> 2);
  const int entry[2] = {first_entry + row, first_entry + row + 8};
  float dk[kSize / 8][4] = {};
  float d_score[kBlocks][4];
  float factor = 1.0f;
  if constexpr (!is_bf16<T>) {
    factor = range_factor<T>(facts.sequence_exponent[chunk.tile[tile_index].sequence]);
  }
  const float back = 1.0f / factor;
  int slot = 0;
  for (; tile_index < tiles_end; ++tile_index) {
    const int count = kListed ? key_count : chunk.tile[tile_index].count;
    // Of the tile's first query, from query to query.
    const std::int64_t stride = kListed ? kSlot : chunk.stride;
    const float* const d_tile =
        gradients.d_score +
        (kListed ? list * Shape::kQueries : static_cast<std::int64_t>(tile_index) * Shape::kQueries * stride);
    for (int step = 0; step < Shape::kParts * indexer.heads; ++step) {
      const int part = kListed ? 0 : step / indexer.heads, j = kListed ? step : step % indexer.heads;
      cp_async_wait<kStages - 2>();
      __syncthreads();
      copy_next();
      cp_async_commit();
      if (j == 0) {
        const float* const from = d_tile + (part * kRows + 2 * (lane & 3)) * stride;
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const std::int64_t query = 8 * n + r % 2;
            d_score[n][r] = entry[r / 2] < count ? from[query * stride + entry[r / 2]] : 0.0f;
          }
        }
      }
      const std::uint32_t queries = steps_at + slot * Shape::kStepBytes;
      const float* const w_row = w_at + slot * kRows + 2 * (lane & 3);
      const Activation act(indexer,
                           indexer.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(indexer.bias)[j]));
      float x[kBlocks][4];
      row_products<T, kSize>(x, keys_at, 16 * warp, queries, 0, lane);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
        const float2 pair = *reinterpret_cast<const float2*>(w_row + 8 * n);
        const float w_pair[2] = {factor * pair.x, factor * pair.y};
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          x[n][r] = d_score[n][r] * w_pair[r % 2] * act.slope(act.finite(x[n][r]));
        }
      }
      add_products<T, kSize>(dk, x, queries, 0, lane);
      store_w();
      if (++slot == kStages) slot = 0;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (entry[r] >= key_count) continue;
    const std::int64_t dk_row = kListed ? static_cast<std::int64_t>(chunk.row[list + entry[r]])
                                        : static_cast<std::int64_t>(blockIdx.y) * chunk.stride + entry[r];
    float* const to = gradients.dk_part + dk_row * kSize + 2 * (lane & 3);
#pragma unroll
    for (int n = 0; n < kSize / 8; ++n) {
      *reinterpret_cast<float2*>(to + 8 * n) = make_float2(back * dk[n][2 * r], back * dk[n][2 * r + 1]);
    }
  }
}

// A thread: a key and every blockDim.x-th of its elements; threadIdx.y counts keys. Dense.
__global__ void add_parts_kernel(const IndexerRows indexer, const Chunk chunk, const Gradients gradients,
                                 int padded) {
  const Group group = gradients.group[blockIdx.y];
  const int key = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (key >= group.keys) return;
  float* const dk = gradients.dk + static_cast<std::int64_t>(group.k_begin + key) * indexer.k.size;
  for (int c = static_cast<int>(threadIdx.x); c < indexer.k.size; c += static_cast<int>(blockDim.x)) {
    float sum = dk[c];
    for (int i = group.first_part; i < group.first_part + group.parts; ++i) {
      if (key >= gradients.part[i].keys) continue;
      const std::int64_t row = static_cast<std::int64_t>(i) * chunk.stride + key;
      sum = fmaf(indexer.scale, gradients.dk_part[row * padded + c], sum);
    }
    dk[c] = sum;
  }
}

template <typename T, int kSize, bool kListed>
void launch_key_gradients(const IndexerRows& indexer, const Chunk& chunk, const RowFacts& facts,
                          const Gradients& gradients, const Context& context) {
  using Shape = KeyShape<kSize, kListed>;
  const auto kernel = key_gradients_kernel<T, kSize, kListed>;
  allow_shared_memory(kernel, Shape::kBytes, "indexer_kl key_gradients");
  dim3 grid(static_cast<unsigned>((chunk.entries + Shape::kEntries - 1) / Shape::kEntries),
            static_cast<unsigned>(gradients.parts));
  if (kListed) grid = dim3(static_cast<unsigned>(chunk.slots * (kSlot / Shape::kEntries)));
  kernel<<<grid, Shape::kThreads, Shape::kBytes, stream_of(context.stream)>>>(indexer, chunk, facts,
                                                                              gradients);
  check_launch("indexer_kl key_gradients");
}

}  // namespace

void key_gradients(DType dtype, const IndexerRows& indexer, const Chunk& chunk, const RowFacts& facts,
                   const Gradients& gradients, const Context& context) {
  with_type_and_index_size(dtype, indexer.q.size, [&]<typename T, int kSize>() {
    chunk.listed() ? launch_key_gradients<T, kSize, true>(indexer, chunk, facts, gradients, context)
                   : launch_key_gradients<T, kSize, false>(indexer, chunk, facts, gradients, context);
  });
}

void add_key_parts(const IndexerRows& indexer, const Chunk& chunk, const Gradients& gradients,
                   const Context& context) {
  const int padded = padded_index_size(indexer.k.size);
  const dim3 threads(padded == 32 ? 32 : 64, padded == 32 ? 8 : 4);
  const unsigned longest = static_cast<unsigned>(chunk.entries);
  const dim3 keys((longest + threads.y - 1) / threads.y, static_cast<unsigned>(gradients.groups));
  add_parts_kernel<<<keys, threads, 0, stream_of(context.stream)>>>(indexer, chunk, gradients, padded);
  check_launch("indexer_kl add_parts");
}

}  // namespace gsa::cuda::kl
