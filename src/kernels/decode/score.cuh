// The score stage: one block for each segment of 1024 positions of a sequence and each group of its queries.
//
// Keys stream through shared memory, 16 at a time for each warp, and are the rows of the matrix products; the
// columns are (query, head) pairs. A lane then holds two neighbouring heads of two keys, and the sum over
// heads, whose order is fixed, walks from lane to lane. Decoding is bound by the keys' bytes: what counts is
// that many of them are under way.
#pragma once

#include "kernels/common/index_score.cuh"
#include "kernels/common/score_moments.cuh"
#include "kernels/common/score_order.cuh"
#include "kernels/decode/decode_device.cuh"

namespace gsa::cuda::decoding {

inline constexpr int kTileKeys = 16;
inline constexpr int kScoreQueries = 4;  // of a block, at most: their scores lie in shared memory

struct ScoreParams {
  Cache cache;
  const void* k;
  std::int64_t page_stride, token_stride;
  const void* q;
  std::int64_t q_token_stride, q_head_stride;
  const void* w;
  std::int64_t w_token_stride, w_head_stride;
  const void* bias;
  float scale;
  int heads, head_size;
  int columns;        // of a query: heads padded to 2, 4 or a multiple of 8
  int block_queries;  // queries of a block
  bool far_queries;   // too many to keep in shared memory: read again for every tile of keys
  float* scores;
  std::int64_t score_stride;
  SegmentRecord* segments;
  int segment_stride;
};

// Shared memory of a block, in bytes from its start.
struct ScoreLayout {
  int stages = 0, q = 0, heads = 0, start = 0, shift = 0, extremes = 0, scores = 0, bytes = 0;

  // ring: tiles under way, of all warps.
  __host__ __device__ ScoreLayout(int steps, int columns, int queries, bool far_queries, int ring) {
    const int tile = kTileKeys * steps * 32;
    const int column_tiles = (queries * columns + 7) / 8;
    q = stages + ring * tile;
    heads = q + (far_queries ? 0 : column_tiles * steps * 256);
    start = heads + column_tiles * 8 * static_cast<int>(sizeof(float2));
    shift = start + kScoreQueries * 4;
    extremes = shift + kScoreQueries * 4;
    scores = (extremes + kScoreQueries * 8 + 15) / 16 * 16;
    bytes = scores + queries * kMomentSegment * 4;
  }
};

// One tile of keys into shared memory: row r at r * steps * 32 bytes, its 16-byte chunk c at c ^ (r % 8).
// Where a position has no key, or the head has no such chunk, zeros. Eight positions from a multiple of eight
// lie in one page: lane entry_lane + g knows that of the tile's group g of eight.
// aligned: rows may be read 16 bytes at a time.
template <typename T, int steps, bool aligned>
__device__ __forceinline__ void load_tile(const ScoreParams& p, char* tile, int first, int keys, int entry,
                                          int entry_lane) {
  constexpr int kChunks = 2 * steps;
  constexpr int kRows = 32 / kChunks;  // that the warp loads at once
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int lane_row = lane / kChunks, chunk = lane % kChunks;
#pragma unroll
  for (int group = 0; group < kTileKeys / 8; ++group) {
    const int page = __shfl_sync(0xffffffffu, entry, entry_lane + group);
    const int begin = first + group * 8;
    const int row = begin & ((1 << p.cache.page_shift) - 1);
    const T* from =
        static_cast<const T*>(p.k) + page * p.page_stride + (row + lane_row) * p.token_stride + chunk * 8;
    const int left = chunk * 8 < p.head_size ? keys - begin : 0;
    char* const to = tile + group * 8 * kChunks * 16;
    if constexpr (aligned) {
#pragma unroll
      for (int r = 0; r < 8; r += kRows) {
        const int key = r + lane_row;
        const bool valid = key < left;
        cp_async_16(shared_address(to + key * kChunks * 16 + ((chunk ^ key) << 4)), valid ? from : p.k,
                    valid);
        from += kRows * p.token_stride;
      }
    } else {
#pragma unroll 1
      for (int key = lane_row; key < 8; key += kRows) {
        T* const target = reinterpret_cast<T*>(to + key * kChunks * 16 + ((chunk ^ key) << 4));
#pragma unroll 1
        for (int e = 0; e < 8; ++e) {
          target[e] = key < left && chunk * 8 + e < p.head_size ? from[e] : from_float<T>(0.0f);
        }
        from += kRows * p.token_stride;
      }
    }
  }
}

// The matrix fragments of a tile: fragment[s] holds dimensions 16 s .. 16 s + 15 of its 16 keys.
template <int steps>
__device__ __forceinline__ void read_tile(std::uint32_t (&fragment)[steps][4], const char* tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int key = lane % 16;
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    const int chunk = (2 * s + lane / 16) ^ (key & 7);
    ldmatrix_x4(fragment[s], shared_address(tile + key * steps * 32 + chunk * 16));
  }
}

// fixed_columns: those of a query where they are known when compiling, else 0.
template <typename T, ScoreForm form, int steps, int fixed_columns, int warps>
struct Scorer {
  using Head = ScoreHead<form>;

  const ScoreParams& p;
  char* shared;
  const ScoreLayout layout;
  int queries;  // of this block
  int row;      // of its first query
  float factor;

  __device__ __forceinline__ int columns() const { return fixed_columns != 0 ? fixed_columns : p.columns; }
  __device__ __forceinline__ float* scores(int query) const {
    return reinterpret_cast<float*>(shared + layout.scores) + query * kMomentSegment;
  }
  __device__ __forceinline__ float* starts() const { return reinterpret_cast<float*>(shared + layout.start); }

  // Whether queries may lie outside of shared memory: not for the small heads that decoding is about.
  static constexpr bool kMayBeFar = steps > 4;

  // Word i of the queries' fragments, two dimensions of one: register i % 2 of lane i / 2 % 32 of step
  // i / 64 % steps of tile i / 64 / steps.
  __device__ __forceinline__ std::uint32_t fragment_word(int i) const {
    const int lane = i / 2 % 32;
    const int column = i / 64 / steps * 8 + lane / 4;
    const int dimension = i / 64 % steps * 16 + lane % 4 * 2 + i % 2 * 8;
    const int query = column / columns(), head = column % columns();
    const std::uint16_t* const from = static_cast<const std::uint16_t*>(p.q) +
                                      (row + query) * p.q_token_stride + head * p.q_head_stride + dimension;
    const bool valid = query < queries && head < p.heads;
    const std::uint32_t low = valid && dimension < p.head_size ? from[0] : 0;
    const std::uint32_t high = valid && dimension + 1 < p.head_size ? from[1] : 0;
    return high << 16 | low;
  }

  // Queries, weights and offsets of the block's queries go to shared memory in two steps: loads, which must
  // not queue behind those of the keys, and stores.
  struct Fetched {
    std::uint32_t word[2];
    float2 column;
  };
  __device__ __forceinline__ int all_columns() const { return (queries * columns() + 7) / 8 * 8; }
  __device__ __forceinline__ int words() const {
    return kMayBeFar && p.far_queries ? 0 : all_columns() / 8 * steps * 64;
  }
  // Weight and offset.
  __device__ __forceinline__ float2 column_value(int column) const {
    const T* const w = static_cast<const T*>(p.w);
    const T* const bias = static_cast<const T*>(p.bias);
    const int query = column / columns(), head = column % columns();
    if (query >= queries || head >= p.heads) return {0.0f, 0.0f};
    return {Head::weight(to_float(w[(row + query) * p.w_token_stride + head * p.w_head_stride])),
            Head::offset(bias == nullptr ? 0.0f : to_float(bias[head]))};
  }
  __device__ __forceinline__ Fetched fetch() const {
    const int thread = static_cast<int>(threadIdx.x);
    Fetched f = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = thread + j * warps * 32;
      if (i < words()) f.word[j] = fragment_word(i);
    }
    if (thread < all_columns()) f.column = column_value(thread);
    return f;
  }
  // Ends with a barrier.
  __device__ __forceinline__ void store(const Fetched& f) const {
    const int thread = static_cast<int>(threadIdx.x);
    std::uint32_t* const fragments = reinterpret_cast<std::uint32_t*>(shared + layout.q);
    float2* const of_column = reinterpret_cast<float2*>(shared + layout.heads);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = thread + j * warps * 32;
      if (i < words()) fragments[i] = f.word[j];
    }
#pragma unroll 1
    for (int i = thread + 2 * warps * 32; i < words(); i += warps * 32) fragments[i] = fragment_word(i);
    if (thread < all_columns()) of_column[thread] = f.column;
#pragma unroll 1
    for (int c = thread + warps * 32; c < all_columns(); c += warps * 32) of_column[c] = column_value(c);
    __syncthreads();
    if (thread < queries) {
      float start = 0.0f;
#pragma unroll 1
      for (int head = 0; head < p.heads; ++head) {
        start = Head::add_weight(start, of_column[thread * columns() + head].x);
      }
      starts()[thread] = start;
      std::uint32_t* const extremes = reinterpret_cast<std::uint32_t*>(shared + layout.extremes) + 2 * thread;
      extremes[0] = 0xffffffffu;
      extremes[1] = 0;
    }
    __syncthreads();
  }

  // Scores of 16 keys: score[0] of key lane / 4 and score[1] of key lane / 4 + 8 of the query whose last
  // head the lane holds. Calls store(query, whether the lane holds a score, score).
  template <class Store>
  __device__ __forceinline__ void tile(const std::uint32_t (&keys)[steps][4], const Store& store) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int walk = min(4, columns() / 2);  // lanes that share a query's heads of a tile
    const int place = lane % 4 & (walk - 1);
    const int lane_query = lane % 4 / walk;
    const int tile_queries = columns() < 8 ? 8 / columns() : 1;
    float score[2] = {0.0f, 0.0f};
    int far_tile = 0;
    const uint2* q = reinterpret_cast<const uint2*>(shared + layout.q) + lane;
    const float4* of_column = reinterpret_cast<const float4*>(shared + layout.heads) + lane % 4;
    for (int first_query = 0; first_query < queries; first_query += tile_queries) {
      const int query = first_query + lane_query;
      if (query < queries) score[0] = score[1] = starts()[query];
      for (int first_head = 0; first_head < columns(); first_head += 8) {
        float x[4] = {};
#pragma unroll
        for (int s = 0; s < steps; ++s) {
          if (s * 16 < p.head_size) {
            uint2 b;
            if (kMayBeFar && p.far_queries) {
              const int word = ((far_tile * steps + s) * 32 + lane) * 2;
              b = {fragment_word(word), fragment_word(word + 1)};
            } else {
              b = q[s * 32];
            }
            mma_16x8x16<T>(x, keys[s], b.x, b.y);
          }
        }
        q += steps * 32;
        ++far_tile;
        const float4 both = *of_column;
        of_column += 4;
        const int head = first_head + 2 * place;
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          if (step >= walk) break;
          if (step + first_head > 0) {  // goes on from the lane that holds the heads before
            const int from = lane - place + ((step - 1) & (walk - 1));
            const float carried[2] = {__shfl_sync(0xffffffffu, score[0], from),
                                      __shfl_sync(0xffffffffu, score[1], from)};
            if (place == step) {
              score[0] = carried[0];
              score[1] = carried[1];
            }
          }
          if (place == step && head < p.heads) {
            score[0] = Head::add_head(score[0], both.x, factor, both.y, x[0]);
            score[1] = Head::add_head(score[1], both.x, factor, both.y, x[2]);
          }
          if (place == step && head + 1 < p.heads) {
            score[0] = Head::add_head(score[0], both.z, factor, both.w, x[1]);
            score[1] = Head::add_head(score[1], both.z, factor, both.w, x[3]);
          }
        }
      }
      store(query, place == walk - 1 && query < queries, score);
    }
  }
};

// How a block is made: more warps and stages load more at once, smaller blocks start and end more evenly. No
// bit depends on it.
template <int warp_count, int stage_count, int blocks_a_multiprocessor>
struct ScoreBlock {
  static constexpr int kWarps = warp_count, kStages = stage_count, kBlocks = blocks_a_multiprocessor;
};

template <typename T, ScoreForm form, int steps, int fixed_columns, bool aligned, class Block>
__global__ void __launch_bounds__(Block::kWarps * 32, Block::kBlocks) score_kernel(const ScoreParams p) {
  constexpr int kWarps = Block::kWarps, kStages = Block::kStages;
  constexpr int kTileBytes = kTileKeys * steps * 32;
  constexpr int kWarpKeys = kMomentSegment / kWarps, kTiles = kWarpKeys / kTileKeys;
  static_assert(kWarpKeys <= 256 && kWarps >= kScoreQueries);
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const int n = static_cast<int>(blockIdx.y);
  const int first_query = static_cast<int>(blockIdx.z) * p.block_queries;
  const int segment = static_cast<int>(blockIdx.x);
  const int begin = segment * kMomentSegment;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);

  // Lane e knows the page of positions mine + 8 e .. Read before the length is known, so that one latency
  // covers both: what an entry beyond the length says is not used.
  const int mine = begin + warp * kWarpKeys;
  const std::int32_t* const table = p.cache.block_table + n * p.cache.blocks;
  const int block = min(mine + 8 * lane, begin + kMomentSegment - 1) >> p.cache.page_shift;
  const int entry = block < p.cache.blocks ? table[block] : 0;
  const int first_entry = table[0];
  const int keys = keys_of(p.cache, n);
  using Queries = Scorer<T, form, steps, fixed_columns, kWarps>;
  const Queries scorer{p,
                       shared,
                       ScoreLayout(steps, p.columns, p.block_queries, p.far_queries, kWarps * kStages),
                       min(p.block_queries, p.cache.queries - first_query),
                       n * p.cache.queries + first_query,
                       ScoreHead<form>::factor(p.scale)};
  const typename Queries::Fetched fetched = scorer.fetch();
  if (begin >= keys) return;

  // The first warp scores the key of position 0 too, before its own: the sums are taken relative to it.
  char* const stages = shared + scorer.layout.stages + warp * kStages * kTileBytes;
  float* const shift = reinterpret_cast<float*>(shared + scorer.layout.shift);
  const int extra = warp == 0 ? 1 : 0;
  const int tiles = extra + max(0, min(kTiles, (keys - mine + kTileKeys - 1) / kTileKeys));
#pragma unroll 1
  for (int i = 0; i < max(1, tiles) + kStages - 1; ++i) {
    if (i < tiles) {
      const int t = i - extra;
      load_tile<T, steps, aligned>(p, stages + i % kStages * kTileBytes, t < 0 ? 0 : mine + t * kTileKeys,
                                   t < 0 ? 1 : keys, t < 0 ? first_entry : entry, t < 0 ? 0 : 2 * t);
    }
    cp_async_commit();
    if (i < kStages - 1) continue;
    if (i == kStages - 1) scorer.store(fetched);  // while the first keys come
    const int done = i - (kStages - 1);
    if (done >= tiles) break;
    cp_async_wait<kStages - 1>();
    __syncwarp();
    std::uint32_t fragment[steps][4];
    read_tile<steps>(fragment, stages + done % kStages * kTileBytes);
    __syncwarp();
    const int t = done - extra;
    const int at = warp * kWarpKeys + t * kTileKeys + lane / 4;
    scorer.tile(fragment, [&](int query, bool holds, const float(&score)[2]) {
      if (!holds) return;
      if (t < 0) {
        if (lane / 4 == 0) shift[query] = score[0];
        return;
      }
      scorer.scores(query)[at] = score[0];
      scorer.scores(query)[at + 8] = score[1];
    });
  }
  __syncthreads();

#pragma unroll 1
  for (int query = 0; query < scorer.queries; ++query) {
    const int visible = visible_to(p.cache, keys, first_query + query);
    const int row = n * p.cache.queries + first_query + query;
    const float* const scores = scorer.scores(query);
    std::uint32_t low = 0xffffffffu, high = 0;
#pragma unroll
    for (int i = 0; i < kMomentSegment; i += kWarps * 128) {
      const int at = i + static_cast<int>(threadIdx.x) * 4;
      if (at >= kMomentSegment || begin + at >= visible) break;
      const float4 four = *reinterpret_cast<const float4*>(scores + at);
      *reinterpret_cast<float4*>(p.scores + row * p.score_stride + begin + at) = four;
      const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (begin + at + e >= visible) continue;
        low = min(low, order_of(each[e]));
        high = max(high, order_of(each[e]));
      }
    }
    low = __reduce_min_sync(0xffffffffu, low);
    high = __reduce_max_sync(0xffffffffu, high);
    std::uint32_t* const extremes =
        reinterpret_cast<std::uint32_t*>(shared + scorer.layout.extremes) + 2 * query;
    if (lane == 0) {
      atomicMin(extremes, low);
      atomicMax(extremes + 1, high);
    }
  }
  __syncthreads();
  if (warp < scorer.queries) {
    const int visible = visible_to(p.cache, keys, first_query + warp);
    const ScoreSums<float> sums = segment_sums<float>(scorer.scores(warp), 0, visible - begin, shift[warp]);
    const std::uint32_t* const extremes =
        reinterpret_cast<const std::uint32_t*>(shared + scorer.layout.extremes) + 2 * warp;
    if (lane == 0 && begin < visible) {
      const int row = n * p.cache.queries + first_query + warp;
      p.segments[static_cast<std::int64_t>(row) * p.segment_stride + segment] = {sums.sum, sums.square,
                                                                                 extremes[0], extremes[1]};
    }
  }
}

}  // namespace gsa::cuda::decoding
