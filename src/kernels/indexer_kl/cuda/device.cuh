// What the kernels of indexer_kl share: rows into shared memory, products, activations, who sees whom.
#pragma once

#include <cfloat>

#include "kernels/common/shared_tile.cuh"
#include "kernels/indexer_kl/cuda/kernels.h"

namespace gsa::cuda::kl {

template <typename T>
__device__ __forceinline__ const T* row_of(const Source& source, std::int64_t token, int head) {
  return static_cast<const T*>(source.data) + token * source.token_stride + head * source.head_stride;
}

// d += f g for f [16, 8 kBlocks] in the layout of accumulators (its columns are reduced) and rows first_row
// .. of tile g, kSize wide. f is rounded to T.
template <typename T, int kSize, int kBlocks>
__device__ __forceinline__ void add_products(float (&d)[kSize / 8][4], const float (&f)[kBlocks][4],
                                             std::uint32_t g_tile, int first_row, int lane) {
#pragma unroll
  for (int k = 0; k < kBlocks / 2; ++k) {
    const std::uint32_t a[4] = {pack<T>(f[2 * k][0], f[2 * k][1]), pack<T>(f[2 * k][2], f[2 * k][3]),
                                pack<T>(f[2 * k + 1][0], f[2 * k + 1][1]),
                                pack<T>(f[2 * k + 1][2], f[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < kSize / 16; ++n) {
      std::uint32_t b[4];
      load_b_trans<kSize>(b, g_tile, first_row + 16 * k, n, lane);
      mma_16x8x16<T>(d[2 * n], a, b[0], b[1]);
      mma_16x8x16<T>(d[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// ---- The indexer's activation

// Accurate to a few units of float32, unlike the tanh.approx of selection: the loss and dI are differences of
// what is nearly equal. Numbers of one head: the argument is x factor + offset.
struct Activation {
  bool relu = false;
  float factor = 0, offset = 0;

  __device__ __forceinline__ Activation(const IndexerRows& indexer, float bias)
      : relu(indexer.relu),
        factor(indexer.relu ? indexer.scale : -kLog2E * indexer.scale),
        offset(indexer.relu ? bias : -kLog2E * bias) {}

  // act(x); NaN stays NaN.
  __device__ __forceinline__ float operator()(float x) const {
    const float argument = fmaf(x, factor, offset);
    if (relu) return argument < 0.0f ? 0.0f : argument;
    return reciprocal(1.0f + power_of_two(argument));
  }
  // act(x) as a finite number, whatever x is: for pairs whose dI is 0 or NaN.
  __device__ __forceinline__ float finite(float x) const { return bounded((*this)(x)); }
  __device__ __forceinline__ float bounded(float y) const { return fminf(y, relu ? FLT_MAX : 1.0f); }
  // act'(x) from what finite() gave.
  __device__ __forceinline__ float slope(float y) const {
    return relu ? (y > 0.0f ? 1.0f : 0.0f) : y * (1.0f - y);
  }
};

// ---- float16 has no room for small gradients: they are multiplied with a power of two on the way to the
// tensor cores and divided by it afterwards. exponent: of a bound of |weight w|; |dI| is at most |weight|, up
// to rounding. Ten bits above one leave as many for what rounding, or a log-sum-exp from elsewhere, may add.

inline constexpr int kMinExponent = -100, kMaxExponent = 100;

template <typename T>
__device__ __forceinline__ float range_factor(int exponent) {
  if constexpr (is_bf16<T>) return 1.0f;
  return exp2f(static_cast<float>(10 - min(max(exponent, kMinExponent), kMaxExponent)));
}

// ---- Tiles of queries

// Which entries query `row` of a tile has in its support.
template <bool kListed>
struct Support {
  int last = -1;  // dense: the last entry
  int row = 0;

  __device__ __forceinline__ Support(const UnionTile& tile, int row_in_tile)
      : last(row_in_tile < tile.queries ? tile.first_position + row_in_tile : -1), row(row_in_tile) {}
  // bits: of the entry, where listed.
  __device__ __forceinline__ bool has(int entry, std::uint32_t bits) const {
    if constexpr (kListed) {
      return (bits >> row & 1u) != 0;
    } else {
      return entry <= last;
    }
  }
};

// What a block of threads has: a split of a tile's entries, and where in memory it is.
struct Split {
  UnionTile tile;
  int index = 0;               // of the tile
  int first = 0, entries = 0;  // of the tile; none where entries <= 0
  std::int64_t list = 0;       // listed: where its keys, bits and rows begin
  std::int64_t p = 0;          // where p (and dI) of its first entry and the tile's first query lies
  std::int64_t stride = 0;     // of p, from query to query
  std::int64_t part = 0;       // place of the first query's sums over the split
  std::int64_t part_stride = 0;

  // Of row `row`.
  __device__ __forceinline__ std::int64_t part_of(int row) const { return part + row * part_stride; }
};

__device__ __forceinline__ Split dense_split(const Chunk& chunk, int index, int split) {
  const UnionTile tile = chunk.tile[index];
  const int first = split * chunk.split;
  const std::int64_t row = static_cast<std::int64_t>(index) * kDenseQueries;
  return {.tile = tile,
          .index = index,
          .first = first,
          .entries = min(chunk.split, tile.count - first),
          .p = row * chunk.stride + first,
          .stride = chunk.stride,
          .part = row * chunk.splits() + split,
          .part_stride = chunk.splits()};
}

// All entries of a tile.
__device__ __forceinline__ Split dense_row(const Chunk& chunk, int index) {
  const UnionTile tile = chunk.tile[index];
  return {.tile = tile,
          .index = index,
          .entries = tile.count,
          .p = static_cast<std::int64_t>(index) * kDenseQueries * chunk.stride,
          .stride = chunk.stride};
}

__device__ __forceinline__ Split listed_split(const ListSlot& at, int slot) {
  const std::int64_t row = static_cast<std::int64_t>(slot) * kListQueries;
  return {.tile = at.tile,
          .index = at.index,
          .first = at.first,
          .entries = min(kSlot, at.tile.count - at.first),
          .list = static_cast<std::int64_t>(slot) * kSlot,
          .p = row * kSlot,
          .stride = kSlot,
          .part = row,
          .part_stride = 1};
}

// Calls body(split) for what this block of threads has to do. Dense: the grid is (tiles, splits). Listed: as
// many blocks as the device holds ask for one slot after the other, so that a chunk without tiles costs
// little and none waits for a longer one.
template <bool kListed, typename Body>
__device__ __forceinline__ void for_each_split(const Chunk& chunk, const Body& body) {
  if constexpr (kListed) {
    __shared__ int next;
    const int slots = chunk.range->slots;
    if (static_cast<int>(blockIdx.x) >= slots) return;
    for (;;) {
      if (threadIdx.x == 0) next = atomicAdd(chunk.ticket + blockIdx.z, 1);
      __syncthreads();  // also: all are done with the split before
      const int slot = next;
      __syncthreads();
      if (slot >= slots) return;
      body(listed_split(chunk.slot[slot], slot));
    }
  } else {
    const Split split = dense_split(chunk, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
    if (split.entries > 0) body(split);
  }
}

// The grid for it; `groups` of heads.
inline dim3 split_grid(const Chunk& chunk, int groups, const Device& device) {
  const unsigned z = static_cast<unsigned>(groups);
  if (!chunk.listed()) {
    return dim3(static_cast<unsigned>(chunk.tiles), static_cast<unsigned>(chunk.splits()), z);
  }
  constexpr int kBlocksEach = 8;  // no kernel here has more on a multiprocessor
  const int blocks = kBlocksEach * device.multiprocessors;
  return dim3(static_cast<unsigned>(blocks < chunk.slots ? blocks : chunk.slots), 1, z);
}

// The indexer's heads of a tile of queries and its keys, some entries at a time, in shared memory.
template <typename T, int kSize, bool kListed, int kThreadCount = 2 * tile_queries(kListed)>
struct IndexTile {
  static constexpr int kQueries = tile_queries(kListed);
  static constexpr int kThreads = kThreadCount;         // mostly a warp for 16 queries
  static constexpr int kKeys = kSize == 256 ? 32 : 64;  // at a time
  static constexpr int kHeadBytes = kQueries * kSize * 2;
  static constexpr int kKeyBytes = kKeys * kSize * 2;
  static constexpr int kResidentBytes = 64 * 1024;  // heads stay in shared memory up to here

  static GSA_DEVICE bool resident(int heads) { return heads * kHeadBytes <= kResidentBytes; }
  // A multiple of 16.
  static GSA_DEVICE std::size_t shared_bytes(int heads) {
    const int floats = (heads * (kQueries + 1) + 3) / 4 * 4;
    return static_cast<std::size_t>(2 * kKeyBytes + (resident(heads) ? heads : 1) * kHeadBytes + floats * 4 +
                                    2 * kKeys * 8);
  }

  const IndexerRows& indexer;
  const Chunk& chunk;
  Split split;
  UnionTile tile;
  const std::uint8_t* bad_key;    // backward: rows that count as zeros
  const std::uint8_t* bad_query;  // backward
  bool all_heads;
  std::uint32_t keys_at, heads_at;
  float* w;             // [heads, kQueries]
  float* bias;          // [heads]
  std::uint32_t* bits;  // [2, kKeys], listed
  int* bad;             // [2, kKeys], backward

  __device__ __forceinline__ IndexTile(const IndexerRows& rows, const Chunk& of, const Split& at,
                                       const RowFacts* facts, unsigned char* shared)
      : indexer(rows),
        chunk(of),
        split(at),
        tile(at.tile),
        bad_key(facts == nullptr ? nullptr : facts->bad_key),
        bad_query(facts == nullptr ? nullptr : facts->bad_query),
        all_heads(resident(rows.heads)),
        keys_at(shared_address(shared)),
        heads_at(keys_at + 2 * kKeyBytes) {
    unsigned char* const rest = shared + 2 * kKeyBytes + (all_heads ? rows.heads : 1) * kHeadBytes;
    w = reinterpret_cast<float*>(rest);
    bias = w + rows.heads * kQueries;
    bits = reinterpret_cast<std::uint32_t*>(bias + rows.heads);
    bad = reinterpret_cast<int*>(bits + 2 * kKeys);
  }

  __device__ __forceinline__ bool usable(int query) const {
    return query < tile.queries && (bad_query == nullptr || bad_query[tile.first_query + query] == 0);
  }

  __device__ __forceinline__ void copy_head(int head, std::uint32_t to) {
    for (int c = static_cast<int>(threadIdx.x); c < kQueries * (kSize / 8); c += kThreads) {
      const int query = c / (kSize / 8), part = c % (kSize / 8);
      const bool valid = usable(query);
      copy_chunk(to + tile_offset<kSize>(query, part),
                 row_of<T>(indexer.q, tile.first_query + (valid ? query : 0), head), 8 * part, indexer.q.size,
                 valid, indexer.q.aligned);
    }
  }

  // Weights, biases, and heads where they fit. The caller waits and passes a barrier before the first use.
  __device__ __forceinline__ void begin() {
    for (int i = static_cast<int>(threadIdx.x); i < indexer.heads * kQueries; i += kThreads) {
      const int head = i / kQueries, query = i % kQueries;
      w[i] = usable(query) ? to_float(static_cast<const T*>(
                                 indexer.w.data)[(tile.first_query + query) * indexer.w.token_stride +
                                                 head * indexer.w.head_stride])
                           : 0.0f;
    }
    for (int j = static_cast<int>(threadIdx.x); j < indexer.heads; j += kThreads) {
      bias[j] = indexer.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(indexer.bias)[j]);
    }
    if (all_heads) {
      for (int j = 0; j < indexer.heads; ++j) copy_head(j, heads_at + j * kHeadBytes);
    }
  }

  // Entries kKeys block .. of the split into half `slot`.
  __device__ __forceinline__ void copy_keys(int block, int slot) {
    for (int c = static_cast<int>(threadIdx.x); c < kKeys * (kSize / 8); c += kThreads) {
      const int entry = c / (kSize / 8), part = c % (kSize / 8), at = block * kKeys + entry;
      bool valid = at < split.entries;
      int key = 0;
      if (valid) key = tile.k_begin + (kListed ? chunk.keys[split.list + at] : split.first + at);
      const bool refused = valid && bad_key != nullptr && bad_key[key] != 0;
      valid = valid && !refused;
      copy_chunk(keys_at + slot * kKeyBytes + tile_offset<kSize>(entry, part), row_of<T>(indexer.k, key, 0),
                 8 * part, indexer.k.size, valid, indexer.k.aligned);
      if (part == 0) {
        if constexpr (kListed) {
          bits[slot * kKeys + entry] = at < split.entries ? chunk.bits[split.list + at] : 0u;
        }
        if (bad_key != nullptr) bad[slot * kKeys + entry] = refused ? 1 : 0;
      }
    }
  }

  // Where head j is; every thread of the block calls this for the same heads in the same order.
  __device__ __forceinline__ std::uint32_t head(int j) {
    if (all_heads) return heads_at + j * kHeadBytes;
    __syncthreads();
    copy_head(j, heads_at);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    return heads_at;
  }
};

// The walk of a block over its split. A warp has 16 queries from first_row on, a lane two of them: `row` and
// row + 8 of the tile.
template <class Tile>
struct SplitWalk {
  int lane, first_row, row;
  int end;  // blocks of Tile::kKeys entries
  const Split& split;

  __device__ __forceinline__ explicit SplitWalk(const Tile& at,
                                                int first = static_cast<int>(threadIdx.x) / 32 * 16)
      : lane(static_cast<int>(threadIdx.x) & 31),
        first_row(first),
        row(first_row + (lane >> 2)),
        end((at.split.entries + Tile::kKeys - 1) / Tile::kKeys),
        split(at.split) {}

  // Loads what the first block needs.
  __device__ __forceinline__ void start(Tile& at) const {
    at.begin();
    at.copy_keys(0, 0);
    cp_async_commit();
  }
  // Waits for a block, and asks for the next one.
  __device__ __forceinline__ void next(Tile& at, int block) const {
    cp_async_wait<0>();
    __syncthreads();
    if (block + 1 < end) at.copy_keys(block + 1, (block + 1) & 1);
    cp_async_commit();
  }
  // p[n]: of both rows, entries first + 8 n and + 1. Nobody wrote p beyond the split's entries.
  template <int kBlocks>
  __device__ __forceinline__ void load_p(float (&p)[kBlocks][4], const Chunk& chunk, int first) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* const from = chunk.p + split.p + (row + 8 * r) * split.stride + first + 8 * n;
        const float2 pair =
            first + 8 * n < split.entries ? *reinterpret_cast<const float2*>(from) : make_float2(0.0f, 0.0f);
        p[n][2 * r] = pair.x, p[n][2 * r + 1] = pair.y;
      }
    }
  }
};

// Writes what a warp has of the heads from first_head on, for two of its rows a lane, to the split's places: dq (times
// `factor`, which is taken back), and dw and dbias, which the four lanes of a row add up first.
template <int kSize, int kHeads>
__device__ __forceinline__ void write_row_sums(const Gradients& gradients, const Split& split, int heads,
                                               int first_head, int row, int lane, const float (&factor)[2],
                                               const float (&dq)[kHeads][kSize / 8][4],
                                               float (&dw)[kHeads][2], float (&dbias)[kHeads][2]) {
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int j = first_head + i;
    if (j >= heads) break;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t part = split.part_of(row + 8 * r) * heads + j;
      float* const to = gradients.dq_part + part * kSize + 2 * (lane & 3);
      const float back = 1.0f / factor[r];
#pragma unroll
      for (int n = 0; n < kSize / 8; ++n) {
        *reinterpret_cast<float2*>(to + 8 * n) =
            make_float2(back * dq[i][n][2 * r], back * dq[i][n][2 * r + 1]);
      }
#pragma unroll
      for (int lane_mask = 1; lane_mask <= 2; lane_mask *= 2) {
        dw[i][r] += __shfl_xor_sync(~0u, dw[i][r], lane_mask);
        dbias[i][r] += __shfl_xor_sync(~0u, dbias[i][r], lane_mask);
      }
      if ((lane & 3) == 0) {
        *reinterpret_cast<float2*>(gradients.dw_part + 2 * part) = make_float2(dw[i][r], dbias[i][r]);
      }
    }
  }
}

// Calls body with the type and the padded size as compile-time constants: body.template operator()<T, n>().
template <typename Body>
void with_type_and_size(DType dtype, std::int64_t size, const Body& body) {
  const auto with_size = [&]<typename T>() {
    switch (padded_size(size)) {
      case 64:
        return body.template operator()<T, 64>();
      case 128:
        return body.template operator()<T, 128>();
      default:
        return body.template operator()<T, 256>();
    }
  };
  dtype == DType::bf16 ? with_size.template operator()<__nv_bfloat16>()
                       : with_size.template operator()<__half>();
}

// The same with the sizes of the indexer's heads.
template <typename Body>
void with_type_and_index_size(DType dtype, std::int64_t size, const Body& body) {
  if (padded_index_size(size) > 32) return with_type_and_size(dtype, size, body);
  dtype == DType::bf16 ? body.template operator()<__nv_bfloat16, 32>()
                       : body.template operator()<__half, 32>();
}

}  // namespace gsa::cuda::kl
