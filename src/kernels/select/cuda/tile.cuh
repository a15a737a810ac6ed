// Scores of a tile of queries against tiles of keys, by tensor cores: the engine of every kernel of select.
//
// A warp owns 16 queries with all their heads; the four warps of a block share tiles of 64 keys, which
// cp.async brings into a ring in shared memory. Rows of keys are padded by 16 bytes, so that the eight rows
// an ldmatrix reads lie in different banks.
#pragma once

#include "kernels/scores/index_score.cuh"
#include "kernels/select/cuda/kernels.h"

namespace gsa::cuda::selecting {

constexpr int kThreads = 32 * kWarps;
static_assert(kTileQueries == 16 * kWarps);
constexpr int kGroupKeys = 16;  // keys scored at a time

struct QueryTile {
  int sequence = 0;
  int first = 0;     // query of the sequence
  int count = 0;     // queries in the tile, 0 .. kTileQueries
  int row = 0;       // of the first query, among all queries
  int position = 0;  // of the first query
  int key = 0;       // row of the sequence's first key, among all keys
};

__device__ __forceinline__ QueryTile find_tile(const DeviceSequences& sequences, int tile) {
  const int n = sequence_of_slot<kSpareTiles>(tile, sequences.count, kTileQueries,
                                              [&](int i) { return sequences.q_begin(i); });
  QueryTile result;
  result.sequence = n;
  result.first = (tile - first_slot<kSpareTiles>(sequences.q_begin(n), n, kTileQueries)) * kTileQueries;
  result.count = max(0, min(kTileQueries, sequences.queries(n) - result.first));
  result.row = sequences.q_begin(n) + result.first;
  result.position = sequences.first_position(n) + result.first;
  result.key = sequences.k_begin(n);
  return result;
}

template <typename T>
__device__ __forceinline__ std::uint32_t bits_of(T value) {
  static_assert(sizeof(T) == 2);
  return *reinterpret_cast<const unsigned short*>(&value);
}

// Elements column and column + 1 of a row of `size` elements; beyond it zeros.
template <typename T>
__device__ __forceinline__ std::uint32_t load_pair(const T* row, int column, int size, bool paired) {
  if (paired && column + 1 < size) return *reinterpret_cast<const std::uint32_t*>(row + column);
  const std::uint32_t low = column < size ? bits_of(row[column]) : 0;
  return column + 1 < size ? low | bits_of(row[column + 1]) << 16 : low;
}

// ---- The queries of a warp

// Per-lane rows of the mma layout: lane l has queries l / 4 and l / 4 + 8 of the warp's 16. Where the tile
// ends earlier they repeat its last query; nobody looks at those.
struct WarpQueries {
  long long row[2];  // among all queries

  __device__ __forceinline__ WarpQueries(const QueryTile& tile, int first) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < 2; ++i) row[i] = tile.row + min(first + lane / 4 + 8 * i, tile.count - 1);
  }
  template <typename T>
  __device__ __forceinline__ const T* pointer(const ScoreInput& in, int i, int head) const {
    return static_cast<const T*>(in.q) + row[i] * in.q_token + head * in.q_head;
  }
  template <typename T>
  __device__ __forceinline__ void fragment(const ScoreInput& in, int head, int step,
                                           std::uint32_t (&a)[4]) const {
    const int column = 16 * step + 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      a[part] =
          load_pair(pointer<T>(in, part % 2, head), column + 8 * (part / 2), in.head_size, in.paired_query);
    }
  }
  template <typename T>
  __device__ __forceinline__ float weight(const ScoreInput& in, int i, int head) const {
    return to_float(static_cast<const T*>(in.w)[row[i] * in.w_token + head * in.w_head]);
  }
};

template <typename T>
__device__ __forceinline__ float bias_of(const ScoreInput& in, int head) {
  return in.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(in.bias)[head]);
}

// A fixed small shape: the queries live in registers. kHeads * kSteps = 16 takes 64 of them.
template <typename T, ScoreForm form, int kHeads, int kSteps>
class Scorer {
  using Head = ScoreHead<form>;

 public:
  __device__ __forceinline__ Scorer(const ScoreInput& in, const QueryTile& tile, int first, void*) {
    const WarpQueries queries(tile, first);
    factor_ = Head::factor(in.scale);
    start_[0] = start_[1] = 0;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      offset_[h] = Head::offset(bias_of<T>(in, h));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        weight_[i][h] = Head::weight(queries.weight<T>(in, i, h));
        start_[i] = Head::add_weight(start_[i], weight_[i][h]);
      }
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const auto* const row = reinterpret_cast<const std::uint32_t*>(queries.pointer<T>(in, part % 2, h));
#pragma unroll
        for (int s = 0; s < kSteps; ++s) q_[h][s][part] = row[8 * s + 4 * (part / 2) + threadIdx.x % 4];
      }
    }
  }

  // Scores of 16 keys, whose fragments get(step, b) delivers: score[n] for keys 8 n .. 8 n + 7, laid out as
  // mma_16x8x16's result.
  template <class Get>
  __device__ __forceinline__ void score(const ScoreInput&, Get get, float (&score)[2][4]) const {
    float x[kHeads][2][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      std::uint32_t b[4];
      get(s, b);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_16x8x16<T>(x[h][n], q_[h][s], b[2 * n], b[2 * n + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = start_[i / 2];
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          sum = Head::add_head(sum, weight_[i / 2][h], factor_, offset_[h], x[h][n][i]);
        }
        score[n][i] = sum;
      }
    }
  }

 private:
  std::uint32_t q_[kHeads][kSteps][4];
  float weight_[2][kHeads], offset_[kHeads], start_[2], factor_;
};

// Any shape: the fragments of the queries lie in shared memory where they fit, else they are read from global
// memory again for every group of keys.
template <typename T, ScoreForm form>
class Scorer<T, form, 0, 0> {
  using Head = ScoreHead<form>;

 public:
  // shared: query_bytes(), or null.
  __device__ __forceinline__ Scorer(const ScoreInput& in, const QueryTile& tile, int first, void* shared)
      : queries_(tile, first), stored_(nullptr) {
    factor_ = Head::factor(in.scale);
    start_[0] = start_[1] = 0;
    for (int h = 0; h < in.heads; ++h) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        start_[i] = Head::add_weight(start_[i], Head::weight(queries_.template weight<T>(in, i, h)));
      }
    }
    if (shared == nullptr) return;
    stored_ =
        static_cast<uint4*>(shared) + (threadIdx.x / 32) * (in.heads * in.steps * 32) + threadIdx.x % 32;
    for (int h = 0; h < in.heads; ++h) {
      for (int s = 0; s < in.steps; ++s) {
        std::uint32_t a[4];
        queries_.template fragment<T>(in, h, s, a);
        stored_[(h * in.steps + s) * 32] = make_uint4(a[0], a[1], a[2], a[3]);
      }
    }
  }

  template <class Get>
  __device__ __forceinline__ void score(const ScoreInput& in, Get get, float (&score)[2][4]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) score[n][i] = start_[i / 2];
    }
    for (int h = 0; h < in.heads; ++h) {
      float x[2][4] = {};
#pragma unroll 4
      for (int s = 0; s < in.steps; ++s) {
        std::uint32_t a[4], b[4];
        if (stored_ != nullptr) {
          const uint4 v = stored_[(h * in.steps + s) * 32];
          a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
        } else {
          queries_.template fragment<T>(in, h, s, a);
        }
        get(s, b);
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_16x8x16<T>(x[n], a, b[2 * n], b[2 * n + 1]);
      }
      const float offset = Head::offset(bias_of<T>(in, h));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = Head::weight(queries_.template weight<T>(in, i / 2, h));
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          score[n][i] = Head::add_head(score[n][i], weight, factor_, offset, x[n][i]);
        }
      }
    }
  }

 private:
  WarpQueries queries_;
  uint4* stored_;
  float start_[2], factor_;
};

// ---- The keys of a block

// Brings rows of keys into one stage. key_of(i): the position of row i of the tile; rows from `rows` on are
// zeros, and so is what lies beyond the head size.
template <typename T, class KeyOf>
__device__ __forceinline__ void load_keys(const ScoreInput& in, int steps, const T* keys, char* stage,
                                          int rows, KeyOf key_of) {
  const int chunks = 2 * steps;
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * chunks; i += kThreads) {
    const int row = i / chunks, chunk = i % chunks;
    const bool valid = row < rows && 8 * chunk < in.head_size;
    const T* from = keys + (valid ? key_of(row) * in.k_token + 8 * chunk : 0);
    char* const to = stage + row * key_pitch(steps) + 16 * chunk;
    if (in.wide_keys) {
      cp_async_16(shared_address(to), from, valid);
    } else {
      std::uint32_t part[4] = {};
      if (valid) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if (8 * chunk + e < in.head_size) part[e / 2] |= bits_of(from[e]) << (16 * (e % 2));
        }
      }
      *reinterpret_cast<uint4*>(to) = make_uint4(part[0], part[1], part[2], part[3]);
    }
  }
}

// Calls body(tile, stage) for key tiles begin .. end - 1, in order, with the tile's keys in shared memory.
// load(tile, stage) brings a tile there. All threads of the block take part.
template <class Load, class Body>
__device__ __forceinline__ void for_tiles(int stage_bytes, char* ring, int begin, int end, Load load,
                                          Body body) {
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (begin + i < end) load(begin + i, ring + i * stage_bytes);
    cp_async_commit();
  }
  int slot = 0, next = kStages - 1;
  for (int tile = begin; tile < end; ++tile) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // the tile has landed, and everyone is done with the one before
    if (tile + kStages - 1 < end) load(tile + kStages - 1, ring + next * stage_bytes);
    cp_async_commit();
    body(tile, ring + slot * stage_bytes);
    slot = slot + 1 == kStages ? 0 : slot + 1;
    next = next + 1 == kStages ? 0 : next + 1;
  }
  cp_async_wait<0>();
  __syncthreads();
}

// The same, tile t holding keys 64 t and following of `count`; key_of(i) is the position of key i. steps is
// in.steps, as a constant where it is one.
template <typename T, class KeyOf, class Body>
__device__ __forceinline__ void for_sampled_tiles(const ScoreInput& in, int steps, const T* keys, char* ring,
                                                  int begin, int end, int count, KeyOf key_of, Body body) {
  const auto load = [&](int tile, char* stage) {
    load_keys<T>(in, steps, keys, stage, count - tile * kTileKeys,
                 [&](int row) { return static_cast<long long>(key_of(tile * kTileKeys + row)); });
  };
  for_tiles(key_stage_bytes(steps), ring, begin, end, load, body);
}

// The same for keys in a row. Where kSteps is given, the addresses cost next to nothing.
template <typename T, int kSteps, class Body>
__device__ __forceinline__ void for_key_tiles(const ScoreInput& in, const T* keys, char* ring, int begin,
                                              int end, int count, Body body) {
  if constexpr (kSteps > 0) {
    constexpr int kChunks = 2 * kSteps, kRows = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0 && kTileKeys % kRows == 0);
    const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
    const char* from = reinterpret_cast<const char*>(
        keys + (static_cast<long long>(begin) * kTileKeys + row) * in.k_token + 8 * chunk);
    const long long step = kRows * in.k_token * static_cast<long long>(sizeof(T));
    const int to = row * key_pitch(kSteps) + 16 * chunk;
    const bool exists = 8 * chunk < in.head_size;
    const auto load = [&](int tile, char* stage) {
      if (!in.wide_keys) {
        load_keys<T>(in, kSteps, keys, stage, count - tile * kTileKeys,
                     [&](int i) { return static_cast<long long>(tile * kTileKeys + i); });
        return;
      }
      const std::uint32_t address = shared_address(stage) + to;
      const int left = exists ? count - tile * kTileKeys - row : 0;
      const char* at = from;
#pragma unroll
      for (int i = 0; i < kTileKeys / kRows; ++i) {
        const bool valid = left > i * kRows;
        cp_async_16(address + i * kRows * key_pitch(kSteps), valid ? at : reinterpret_cast<const char*>(keys),
                    valid);
        at += step;
      }
      from = at;
    };
    for_tiles(key_stage_bytes(kSteps), ring, begin, end, load, body);
  } else {
    for_sampled_tiles<T>(
        in, in.steps, keys, ring, begin, end, count, [](int i) { return i; }, body);
  }
}

// The address from which this lane reads group g of a stage, and the fragments there.
__device__ __forceinline__ std::uint32_t group_address(const char* stage, int steps) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return shared_address(stage) + (lane / 16 * 8 + lane % 8) * key_pitch(steps) + lane / 8 % 2 * 16;
}

}  // namespace gsa::cuda::selecting
