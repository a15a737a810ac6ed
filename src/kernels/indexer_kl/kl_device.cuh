// What the kernels of indexer_kl share: rows into shared memory, products, activations, who sees whom.
#pragma once

#include <cfloat>

#include "kernels/common/shared_tile.cuh"
#include "kernels/indexer_kl/kl_kernels.h"

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

inline constexpr int kLeastExponent = -100, kLargestExponent = 100;

template <typename T>
__device__ __forceinline__ float range_factor(int exponent) {
  if constexpr (is_bf16<T>) return 1.0f;
  return exp2f(static_cast<float>(10 - min(max(exponent, kLeastExponent), kLargestExponent)));
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

// The indexer's heads of a tile of queries and its keys, some entries at a time, in shared memory.
template <typename T, int kSize, bool kListed>
struct IndexTile {
  static constexpr int kQueries = tile_queries(kListed);
  static constexpr int kThreads = 2 * kQueries;         // a warp for 16 queries
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
  UnionTile tile;
  const std::uint8_t* bad_key;    // backward: rows that count as zeros
  const std::uint8_t* bad_query;  // backward
  bool all_heads;
  std::uint32_t keys_at, heads_at;
  float* w;             // [heads, kQueries]
  float* bias;          // [heads]
  std::uint32_t* bits;  // [2, kKeys], listed
  int* bad;             // [2, kKeys], backward

  __device__ __forceinline__ IndexTile(const IndexerRows& rows, const Chunk& of, const RowFacts* facts,
                                       unsigned char* shared)
      : indexer(rows),
        chunk(of),
        tile(of.tile[blockIdx.x]),
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

  // Entries kKeys block .. into half `slot`.
  __device__ __forceinline__ void copy_keys(int block, int slot) {
    const std::int64_t list = static_cast<std::int64_t>(blockIdx.x) * chunk.capacity;
    for (int c = static_cast<int>(threadIdx.x); c < kKeys * (kSize / 8); c += kThreads) {
      const int entry = c / (kSize / 8), part = c % (kSize / 8), at = block * kKeys + entry;
      bool valid = at < tile.count;
      int key = 0;
      if (valid) key = tile.k_begin + (kListed ? chunk.keys[list + at] : at);
      const bool refused = valid && bad_key != nullptr && bad_key[key] != 0;
      valid = valid && !refused;
      copy_chunk(keys_at + slot * kKeyBytes + tile_offset<kSize>(entry, part), row_of<T>(indexer.k, key, 0),
                 8 * part, indexer.k.size, valid, indexer.k.aligned);
      if (part == 0) {
        if constexpr (kListed) {
          bits[slot * kKeys + entry] =
              at < tile.count ? static_cast<std::uint32_t>(chunk.bits[list + at]) : 0u;
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

// The walk of a block over a split of its tile's entries. A warp has 16 queries, a lane two of them: `row`
// and row + 8 of the tile.
template <class Tile>
struct SplitWalk {
  int split, lane, first_row, row;
  int begin, end;          // blocks of Tile::kKeys entries; none: begin == end
  std::int64_t chunk_row;  // `row` among the rows of the chunk
  int count;               // entries of the tile

  __device__ __forceinline__ explicit SplitWalk(const Tile& at)
      : split(static_cast<int>(blockIdx.y)),
        lane(static_cast<int>(threadIdx.x) & 31),
        first_row(static_cast<int>(threadIdx.x) / 32 * 16),
        row(first_row + (lane >> 2)),
        begin(split * (at.chunk.split / Tile::kKeys)),
        end(min(begin + at.chunk.split / Tile::kKeys, (at.tile.count + Tile::kKeys - 1) / Tile::kKeys)),
        chunk_row(static_cast<std::int64_t>(blockIdx.x) * Tile::kQueries + row),
        count(at.tile.count) {}

  // Loads what the first block needs. All threads of the block of threads; not where there is none.
  __device__ __forceinline__ void start(Tile& at) const {
    at.begin();
    at.copy_keys(begin, begin & 1);
    cp_async_commit();
  }
  // Waits for a block, and asks for the next one.
  __device__ __forceinline__ void next(Tile& at, int block) const {
    cp_async_wait<0>();
    __syncthreads();
    if (block + 1 < end) at.copy_keys(block + 1, (block + 1) & 1);
    cp_async_commit();
  }
  // p[n]: of both rows, entries first + 8 n and + 1. Nobody wrote p beyond the tile's entries.
  template <int kBlocks>
  __device__ __forceinline__ void load_p(float (&p)[kBlocks][4], const Chunk& chunk, int first) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* const from = chunk.p + (chunk_row + 8 * r) * chunk.stride + first + 8 * n;
        const float2 pair =
            first + 8 * n < count ? *reinterpret_cast<const float2*>(from) : make_float2(0.0f, 0.0f);
        p[n][2 * r] = pair.x, p[n][2 * r + 1] = pair.y;
      }
    }
  }
};

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
