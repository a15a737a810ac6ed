// Scores of a tile of queries with tiles of keys by wgmma, for 4 heads of 32 or 64.
//
// Queries of all heads lie in shared memory, one [64, 64] tile a head, and so do tiles of 64 keys; the four
// warps of a block are the warpgroup that multiplies them. Two sets of accumulators: the products of a head
// run while the sigmoids of the one before are taken. Heads of 32 fill half of each row.
#pragma once

#include "kernels/common/cuda_check.h"
#include "kernels/common/wgmma.cuh"
#include "kernels/select/cuda/tile.cuh"

namespace gsa::cuda::selecting {

constexpr int kPassHeads = 4;
constexpr int kPassStages = 3;
constexpr int kPanelBytes = kTileQueries * 128;  // a tile of queries of one head, and of keys
constexpr int kPassBytes = (kPassHeads + kPassStages) * kPanelBytes + 1024;
static_assert(kTileKeys == kTileQueries);

using TileScores = float[kTileKeys / 8][4];  // of a lane: laid out as mma_16x8x16's result

// How the threads of a block copy a tile of 64 rows: 16 bytes at a time, the same chunk of every
// kRowsAtOnce-th row.
template <int kSize>
struct PanelCopy {
  static constexpr int kChunks = kSize / 8, kRowsAtOnce = kThreads / kChunks;
  static constexpr int kTimes = kTileKeys / kRowsAtOnce;

  const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;

  // Where copy i goes, in bytes from the panel's begin: the swizzle repeats after eight rows.
  __device__ __forceinline__ std::uint32_t to(int i) const {
    return hopper::swizzled(row, chunk) + i * kRowsAtOnce * 128;
  }
};

// Scores of a tile of queries with tiles of keys. load(slot) brings the next tile of keys to a slot of the
// ring, by cp.async (PanelCopy). While the scores of a tile are computed, meanwhile(part, last), part = 0 ..
// meanwhile_parts(spread) - 1, works on those of the tile before (on what `last` held, before the first);
// done(key_tile, last) is called when they are there.
//
// spread: activations, sums and what is done meanwhile alternate instruction by instruction, so that the
// special-function unit never waits for a run of the others. ptxas keeps that order with -O1 only; with -O3 it
// moves activations to the end. The same sums in the same order.
__host__ __device__ constexpr int meanwhile_parts(bool spread) { return spread ? kTileKeys / 2 : 3; }

template <typename T, ScoreForm form, int kSize, bool spread = false, class Load, class Meanwhile, class Done>
__device__ __forceinline__ void for_scores(const ScoreInput& in, const QueryTile& tile,
                                           std::uint32_t q_address, int key_tiles, TileScores& last,
                                           Load load, Meanwhile meanwhile, Done done) {
  using namespace hopper;
  using Head = ScoreHead<form>;
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint32_t ring = q_address + kPassHeads * kPanelBytes;
  const PanelCopy<kSize> copy;
#pragma unroll
  for (int h = 0; h < kPassHeads; ++h) {
#pragma unroll
    for (int i = 0; i < copy.kTimes; ++i) {
      const long long from = tile.row + min(copy.row + copy.kRowsAtOnce * i, tile.count - 1);
      cp_async_16(q_address + h * kPanelBytes + copy.to(i),
                  static_cast<const T*>(in.q) + from * in.q_token + h * in.q_head + 8 * copy.chunk);
    }
  }
#pragma unroll
  for (int i = 0; i < kPassStages - 1; ++i) {
    if (i < key_tiles) load(i);
    cp_async_commit();
  }

  float factor = Head::factor(in.scale), start[2] = {0, 0}, weight[2][kPassHeads], offset[kPassHeads];
  const WarpQueries queries(tile, thread / 32 * 16);
#pragma unroll
  for (int h = 0; h < kPassHeads; ++h) {
    offset[h] = Head::offset(bias_of<T>(in, h));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weight[i][h] = Head::weight(queries.weight<T>(in, i, h));
      start[i] = Head::add_weight(start[i], weight[i][h]);
    }
  }

  // The products of a head with a tile of keys, into one of two sets of accumulators. Descriptors differ in
  // their addresses only, which are added to.
  float x[2][kTileKeys / 2];
  const std::uint64_t q_descriptor = k_major(q_address), ring_descriptor = k_major(ring);
  const auto multiply = [&](int h, std::uint64_t b) {
    keep(x[h % 2]);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSize / 16; ++s) {
      wgmma<T, kTileKeys, Major::k, Major::k>(x[h % 2], q_descriptor + (h * kPanelBytes + 32 * s) / 16,
                                              b + 32 * s / 16, s > 0);
    }
    wgmma_commit();
  };
  TileScores score;
  int slot = 0;
#pragma unroll 1
  for (int key_tile = 0; key_tile < key_tiles; ++key_tile) {
    cp_async_wait<kPassStages - 2>();
    fence_async_proxy();
    __syncthreads();  // the tile has landed, and everyone is done with the one before
    const std::uint64_t b = ring_descriptor + slot * (kPanelBytes / 16);
    multiply(0, b);
    multiply(1, b);
    if (key_tile + kPassStages - 1 < key_tiles) load(slot == 0 ? kPassStages - 1 : slot - 1);
    cp_async_commit();
    if constexpr (spread) {
      // Sums follow their activations at the distance of a ring of them. All parts are done before the last head,
      // whose sums overwrite `last`.
      constexpr int kEach = kTileKeys / 2, kRing = 8, kParts = meanwhile_parts(true);
      constexpr int kApart = (kPassHeads - 1) * kEach / kParts;
      float ring[kRing] = {};
      const auto add = [&](int n) {
        const int h = n / kEach, i = n % kEach;
        TileScores& to = h + 1 < kPassHeads ? score : last;
        to[i / 4][i % 4] =
            __fmaf_rn(weight[i % 4 / 2][h], ring[n % kRing], h == 0 ? start[i % 4 / 2] : score[i / 4][i % 4]);
      };
#pragma unroll
      for (int h = 0; h < kPassHeads; ++h) {
        h + 1 < kPassHeads ? wgmma_wait<1>() : wgmma_wait<0>();
        keep(x[h % 2]);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const int n = h * kEach + i;
          if (n >= kRing) add(n - kRing);
          ring[n % kRing] = Head::activation(factor, offset[h], x[h % 2][i]);
          asm volatile("" : "+f"(ring[n % kRing]));  // here, not later
          if (n % kApart == kApart - 1 && n / kApart < kParts) meanwhile(n / kApart, last);
        }
        if (h + 2 < kPassHeads) multiply(h + 2, b);
      }
#pragma unroll
      for (int n = kPassHeads * kEach - kRing; n < kPassHeads * kEach; ++n) add(n);
      done(key_tile, last);
      slot = slot + 1 == kPassStages ? 0 : slot + 1;
      continue;
    }
    meanwhile(0, last);
#pragma unroll
    for (int h = 0; h < kPassHeads; ++h) {
      h + 1 < kPassHeads ? wgmma_wait<1>() : wgmma_wait<0>();
      keep(x[h % 2]);
      TileScores& to = h + 1 < kPassHeads ? score : last;
#pragma unroll
      for (int i = 0; i < kTileKeys / 2; ++i) {
        to[i / 4][i % 4] = Head::add_head(h == 0 ? start[i % 4 / 2] : score[i / 4][i % 4],
                                          weight[i % 4 / 2][h], factor, offset[h], x[h % 2][i]);
      }
      if (h < 2) meanwhile(h + 1, last);
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) keep(to[n]);  // taken before they are overwritten
      if (h + 2 < kPassHeads) multiply(h + 2, b);
    }
    done(key_tile, last);
    slot = slot + 1 == kPassStages ? 0 : slot + 1;
  }
  cp_async_wait<0>();
}

// Brings tiles of consecutive keys, from tile `begin` on, to slots of the ring; keys beyond the last visible
// one are zeros.
template <typename T, int kSize>
class KeyPanels {
 public:
  __device__ __forceinline__ KeyPanels(const ScoreInput& in, const QueryTile& tile, std::uint32_t q_address,
                                       int begin)
      : keys_(reinterpret_cast<const char*>(static_cast<const T*>(in.k) + tile.key * in.k_token)),
        to_(q_address + kPassHeads * kPanelBytes),
        step_(copy_.kRowsAtOnce * in.k_token * static_cast<long long>(sizeof(T))),
        left_(tile.position + tile.count - begin * kTileKeys - copy_.row) {
    const long long first = static_cast<long long>(begin) * kTileKeys + copy_.row;
    from_ = keys_ + (first * in.k_token + 8 * copy_.chunk) * static_cast<long long>(sizeof(T));
  }
  __device__ __forceinline__ void operator()(int slot) {
#pragma unroll
    for (int i = 0; i < copy_.kTimes; ++i) {
      const bool valid = left_ > copy_.kRowsAtOnce * i;
      cp_async_16(to_ + slot * kPanelBytes + copy_.to(i), valid ? from_ : keys_, valid);
      from_ += step_;
    }
    left_ -= kTileKeys;
  }

 private:
  const PanelCopy<kSize> copy_;
  const char* const keys_;
  const std::uint32_t to_;
  const long long step_;
  int left_;
  const char* from_;
};

[[maybe_unused]] __device__ __forceinline__ std::uint32_t aligned_address(const char* memory) {
  return (shared_address(memory) + 1023) / 1024 * 1024;
}

}  // namespace gsa::cuda::selecting
