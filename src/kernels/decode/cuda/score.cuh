// The score stage: one block for each segment of 1024 positions of a sequence and each group of its queries.
//
// Keys stream through shared memory, 16 at a time for each warp, and are the rows of the matrix products; the
// columns are (query, head) pairs. A lane then holds two neighbouring heads of two keys, and the sum over
// heads, whose order is fixed, walks from lane to lane. Decoding is bound by the keys' bytes: what counts is
// that many of them are under way, and that little is done for each.
#pragma once

#include "kernels/decode/cuda/score_keys.cuh"
#include "kernels/scores/index_score.cuh"
#include "kernels/scores/moments.cuh"
#include "kernels/scores/order.cuh"

namespace gsa::cuda::decoding {

static_assert(kScoreSegment == kMomentSegment);

struct ScoreParams {
  Cache cache;
  IndexKeys k;
  const void* q;
  std::int64_t q_token_stride, q_head_stride;
  const void* w;
  std::int64_t w_token_stride, w_head_stride;
  const void* bias;
  float scale;
  int heads;
  int columns;        // of a query: heads padded to 2, 4 or a multiple of 8
  int block_queries;  // queries of a block
  bool far_queries;   // too many to keep in shared memory: read again for every tile of keys
  float* scores;
  std::int64_t score_stride;
  SegmentRecord* segments;
  int segment_stride;
};

// The queries of a block, as operand b of the products, and the scores of its keys. All in shared memory but
// queries that are too many. fixed_columns: those of a query where they are known when compiling, else 0.
template <typename T, typename Tile, ScoreForm form, int steps, int fixed_columns, int warps>
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
  __device__ __forceinline__ float2* of_column() const {
    return reinterpret_cast<float2*>(shared + layout.columns);
  }

  // Whether queries may lie outside of shared memory: not for the small heads that decoding is about.
  __device__ __forceinline__ bool far() const { return steps > 4 && p.far_queries; }

  // Word i of the queries' fragments is two dimensions of one: register i % 2 of lane i / 2 % 32 of step
  // i / 64 % steps of tile i / 64 / steps. Loads may run ahead: what is not there is masked out afterwards.
  struct Word {
    std::uint16_t element[2];
    bool valid[2];

    __device__ __forceinline__ std::uint32_t both() const {
      return (valid[1] ? static_cast<std::uint32_t>(element[1]) << 16 : 0u) | (valid[0] ? element[0] : 0u);
    }
  };
  __device__ __forceinline__ Word load_word(int i) const {
    const int lane = i / 2 % 32;
    const int column = i / 64 / steps * 8 + lane / 4;
    const int dimension = Tile::dimension(i / 64 % steps, lane, i % 2);
    const int query = column / columns(), head = column % columns();
    const std::uint16_t* const q = static_cast<const std::uint16_t*>(p.q);
    const std::uint16_t* const from =
        q + (row + query) * p.q_token_stride + head * p.q_head_stride + dimension;
    const bool there = i < words() && query < queries && head < p.heads;
    Word word;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      word.valid[e] = there && dimension + e < p.k.head_size;
      word.element[e] = *(word.valid[e] ? from + e : q);
    }
    return word;
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

  // Queries, weights and offsets of the block's queries go to shared memory in two steps: loads, which must
  // not queue behind those of the keys, and stores.
  struct Fetched {
    Word word[2];
    float2 column;
  };
  __device__ __forceinline__ int all_columns() const { return (queries * columns() + 7) / 8 * 8; }
  __device__ __forceinline__ int words() const { return all_columns() / 8 * steps * 64; }
  __device__ __forceinline__ Fetched fetch() const {
    const int thread = static_cast<int>(threadIdx.x);
    Fetched f;
#pragma unroll
    for (int j = 0; j < 2; ++j) f.word[j] = load_word(thread + j * warps * 32);
    f.column = column_value(thread);
    return f;
  }
  // Ends with a barrier.
  __device__ __forceinline__ void store(const Fetched& f) const {
    const int thread = static_cast<int>(threadIdx.x);
    std::uint32_t* const fragments = reinterpret_cast<std::uint32_t*>(shared + layout.q);
    if (!far()) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = thread + j * warps * 32;
        if (i < words()) fragments[i] = f.word[j].both();
      }
#pragma unroll 1
      for (int i = thread + 2 * warps * 32; i < words(); i += warps * 32) fragments[i] = load_word(i).both();
    }
    if (thread < all_columns()) of_column()[thread] = f.column;
#pragma unroll 1
    for (int c = thread + warps * 32; c < all_columns(); c += warps * 32) of_column()[c] = column_value(c);
    __syncthreads();
    if (thread < queries) {
      float start = 0.0f;
#pragma unroll 1
      for (int head = 0; head < p.heads; ++head) {
        start = Head::add_weight(start, of_column()[thread * columns() + head].x);
      }
      starts()[thread] = start;
      std::uint32_t* const extremes = reinterpret_cast<std::uint32_t*>(shared + layout.extremes) + 2 * thread;
      extremes[0] = 0xffffffffu;
      extremes[1] = 0;
    }
    __syncthreads();
  }

  // x: 16 keys times tile `tile` of eight columns.
  __device__ __forceinline__ void multiply(float (&x)[4], const std::uint32_t (&keys)[steps][4],
                                           const float (&key_scale)[2], int tile) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint2* const q = reinterpret_cast<const uint2*>(shared + layout.q) + tile * steps * 32 + lane;
    x[0] = x[1] = x[2] = x[3] = 0.0f;
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      if (steps > 4 && !Tile::kBytes8 && s * 16 >= p.k.head_size) break;
      uint2 b;
      if (far()) {
        const int word = ((tile * steps + s) * 32 + lane) * 2;
        b = {load_word(word).both(), load_word(word + 1).both()};
      } else {
        b = q[s * 32];
      }
      mma_16x8x16<T>(x, keys[s], b.x, b.y);
    }
    if constexpr (Tile::kBytes8) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = __fmul_rn(x[e], key_scale[e / 2]);
    }
  }

  // Scores of 16 keys: score[0] of key lane / 4 and score[1] of key lane / 4 + 8 of the query whose last
  // head the lane holds. Calls take(query, whether the lane holds a score, score).
  template <class Take>
  __device__ __forceinline__ void tile(const char* keys, const Take& take) const {
    std::uint32_t fragment[steps][4];
    float key_scale[2];
    Tile::read(fragment, key_scale, keys);
    __syncwarp();
    if constexpr (fixed_columns == 4) {
      four_columns(fragment, key_scale, take);
    } else {
      any_columns(fragment, key_scale, take);
    }
  }

  // A query has two lanes of four: the first one's heads, then the second one's.
  template <class Take>
  __device__ __forceinline__ void four_columns(const std::uint32_t (&keys)[steps][4],
                                               const float (&key_scale)[2], const Take& take) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int first_query = 0; first_query < queries; first_query += 2) {
      float x[4], score[2];
      multiply(x, keys, key_scale, first_query / 2);
      const int query = first_query + lane % 4 / 2;
      const float4 both =
          reinterpret_cast<const float4*>(shared + layout.columns)[first_query * 2 + lane % 4];
      const float start = starts()[query];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float first = Head::activation(factor, both.y, x[2 * r]);
        const float second = Head::activation(factor, both.w, x[2 * r + 1]);
        const auto add = [&](float before) {
          return __fmaf_rn(both.z, second, __fmaf_rn(both.x, first, before));
        };
        score[r] = add(__shfl_up_sync(0xffffffffu, add(start), 1));
      }
      take(query, lane % 2 == 1 && query < queries, score);
    }
  }

  template <class Take>
  __device__ __forceinline__ void any_columns(const std::uint32_t (&keys)[steps][4],
                                              const float (&key_scale)[2], const Take& take) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int walk = min(4, columns() / 2);  // lanes that share a query's heads of a tile
    const int place = lane % 4 & (walk - 1);
    const int lane_query = lane % 4 / walk;
    const int tile_queries = columns() < 8 ? 8 / columns() : 1;
    float score[2] = {0.0f, 0.0f};
    int tile = 0;
    for (int first_query = 0; first_query < queries; first_query += tile_queries) {
      const int query = first_query + lane_query;
      if (query < queries) score[0] = score[1] = starts()[query];
      for (int first_head = 0; first_head < columns(); first_head += 8) {
        float x[4];
        multiply(x, keys, key_scale, tile);
        const float4 both = reinterpret_cast<const float4*>(shared + layout.columns)[tile * 4 + lane % 4];
        ++tile;
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
      take(query, place == walk - 1 && query < queries, score);
    }
  }
};

// How a block is made (DecodeScoreShape).
template <int warp_count, int stage_count, int blocks_a_multiprocessor>
struct ScoreBlock {
  static constexpr int kWarps = warp_count, kStages = stage_count, kBlocks = blocks_a_multiprocessor;
};

template <typename T, typename Key, ScoreForm form, int steps, int fixed_columns, bool aligned, class Block>
__global__ void __launch_bounds__(Block::kWarps * 32, Block::kBlocks) score_kernel(const ScoreParams p) {
  using Tile = KeyTile<T, Key, steps, aligned>;
  constexpr int kWarps = Block::kWarps, kStages = Block::kStages;
  constexpr int kWarpKeys = kMomentSegment / kWarps, kTiles = kWarpKeys / kTileKeys;
  static_assert(kWarpKeys <= 256 && kWarps >= kScoreQueries);
  extern __shared__ __align__(128) char shared[];
  wait_for_previous();
  let_next_start();  // only now: the next kernel reads lengths before it waits
  const int n = static_cast<int>(blockIdx.y);
  const int first_query = static_cast<int>(blockIdx.z) * p.block_queries;
  const int segment = static_cast<int>(blockIdx.x);
  const int begin = segment * kMomentSegment;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int keys = keys_of(p.cache, n);
  using Queries = Scorer<T, Tile, form, steps, fixed_columns, kWarps>;
  const Queries scorer{
      p,
      shared,
      ScoreLayout(steps, p.columns, p.block_queries, p.far_queries, kWarps * kStages * Tile::kBytes),
      min(p.block_queries, p.cache.queries - first_query),
      n * p.cache.queries + first_query,
      ScoreHead<form>::factor(p.scale)};
  const typename Queries::Fetched fetched = scorer.fetch();
  if (begin >= keys) return;

  // Lane e looks up the eight positions from mine + 8 e on; entries of the table beyond the length are not
  // read.
  const int mine = begin + warp * kWarpKeys;
  const auto look_up = [&](int position) {
    const bool there = position < min(keys, begin + kMomentSegment);
    const std::int32_t* const entry =
        p.cache.block_table + n * p.cache.blocks + (position >> p.cache.page_shift);
    return Tile::group_at(p.k, p.cache.page_shift, there ? *entry : 0, position);
  };
  const typename Tile::Group group = look_up(mine + 8 * lane), first_group = look_up(0);
  const typename Tile::Lane lane_part(p.k);

  // The first warp scores the key of position 0 too, before its own: the sums are taken relative to it.
  char* const stages = shared + scorer.layout.ring + warp * kStages * Tile::kBytes;
  float* const shift = reinterpret_cast<float*>(shared + scorer.layout.shift);
  const int extra = warp == 0 ? 1 : 0;
  const int tiles = extra + max(0, min(kTiles, (keys - mine + kTileKeys - 1) / kTileKeys));
#pragma unroll 1
  for (int i = 0; i < max(1, tiles) + kStages - 1; ++i) {
    if (i < tiles) {
      const int t = i - extra;
      typename Tile::Group known = group;
      if (t < 0) known = first_group;
      Tile::load(p.k, lane_part, stages + i % kStages * Tile::kBytes, t < 0 ? 1 : keys - mine - t * kTileKeys,
                 known, t < 0 ? 0 : 2 * t);
    }
    cp_async_commit();
    if (i < kStages - 1) continue;
    if (i == kStages - 1) scorer.store(fetched);  // while the first keys come
    const int done = i - (kStages - 1);
    if (done >= tiles) break;
    cp_async_wait<kStages - 1>();
    __syncwarp();
    const int t = done - extra;
    const int at = warp * kWarpKeys + t * kTileKeys + lane / 4;
    scorer.tile(stages + done % kStages * Tile::kBytes, [&](int query, bool holds, const float(&score)[2]) {
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
