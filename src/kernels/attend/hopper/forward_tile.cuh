// What producer and consumers of attend forward on Hopper share: parameters, tiles, shared memory.
#pragma once

#include "kernels/attend/attend_plan.h"
#include "kernels/attention/union_plan.h"
#include "kernels/common/tile_slots.h"
#include "kernels/common/wgmma.cuh"

namespace gsa::cuda::forward {

constexpr int kBlockKeys = kAttendBlockKeys;
constexpr int kProducers = 128;

struct Strided {
  const char* data;
  std::int64_t head_bytes;
  int token_bytes;

  __device__ __forceinline__ const char* at(int token, int head) const {
    return data + static_cast<std::int64_t>(token) * token_bytes + head * head_bytes;
  }
};

struct Params {
  Strided q, k, v, out;
  float* lse;  // may be null
  int heads;
  int group_log2;  // heads of a group
  float scale;     // of logits, times log2(e); above 0
  float q_factor;  // 1, or what q is multiplied by so that scale is above 0: -1 or 0
  int tile_queries;
  int tiles;                  // of the plan; or slots of tiles, where there is no mask
  int items;                  // tiles x key/value heads
  UnionPlan plan;             // with a mask
  DeviceSequences sequences;  // without a mask

  // Tiles whose values hold NaN or infinity: 0 * NaN reaches rows that did not select the key. They are noted
  // and computed by the fallback, with those values kept out of the product.
  int parts;   // consumers of a tile
  int* noted;  // [items, parts], 0 to begin with
  int* list;   // [items * parts]
  int* list_size;
};

// Where an item's queries and keys lie.
struct Item {
  int queries = 0;  // 0: no such tile
  int first_query = 0;
  int first_position = 0;
  int k_begin = 0;
  int blocks = 0;
  int kv_head = 0;
  int tile = 0;
};

// Without a mask, tiles are found from their number alone. The first begins with its sequence: one spare slot.
inline constexpr int kSpareSlots = 1;
inline int dense_slots(const DeviceSequences& sequences, int tile_queries) {
  return first_slot<kSpareSlots>(sequences.total_queries, sequences.count, tile_queries);
}

template <bool dense>
__device__ __forceinline__ Item find_item(const Params& p, int index) {
  Item item;
  // Neighbouring tiles of one head run together, so that L2 serves the keys they share; long ones first.
  item.kv_head = index / p.tiles;
  item.tile = p.tiles - 1 - (index - item.kv_head * p.tiles);
  if constexpr (dense) {
    const int n = sequence_of_slot<kSpareSlots>(item.tile, p.sequences.count, p.tile_queries,
                                                [&](int i) { return p.sequences.q_begin(i); });
    const int slot = first_slot<kSpareSlots>(p.sequences.q_begin(n), n, p.tile_queries);
    const int begin = (item.tile - slot) * p.tile_queries;
    item.queries = max(0, min(p.tile_queries, p.sequences.queries(n) - begin));
    item.first_query = p.sequences.q_begin(n) + begin;
    item.first_position = p.sequences.first_position(n) + begin;
    item.k_begin = p.sequences.k_begin(n);
    item.blocks = item.queries == 0 ? 0 : (item.first_position + item.queries - 1) / kBlockKeys + 1;
  } else {
    const UnionTile tile = p.plan.tile[item.tile];
    item.queries = tile.queries;
    item.first_query = tile.first_query;
    item.first_position = tile.first_position;
    item.k_begin = tile.k_begin;
    item.blocks = (tile.count + kBlockKeys - 1) / kBlockKeys;
  }
  return item;
}

template <int head_size, int rows>
struct Shared {
  static constexpr AttendStages kStages = attend_stages(head_size, rows);
  static constexpr int kTile = kBlockKeys * head_size * 2;
  alignas(1024) char k[kStages.k][kTile];
  alignas(1024) char v[kStages.v][kTile];
  std::uint64_t k_full[kStages.k], k_empty[kStages.k], v_full[kStages.v], v_empty[kStages.v];
  std::uint32_t nonfinite[kStages.v][2];  // keys whose values are not finite, kept out of the product
};

template <int stages>
struct Ring {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Whether a pair of 16-bit numbers holds a NaN or an infinity.
template <typename T>
__device__ __forceinline__ bool not_finite(std::uint32_t pair) {
  constexpr std::uint32_t kExponent = is_bf16<T> ? 0x7f80u : 0x7c00u;
  return (pair & kExponent) == kExponent || (pair >> 16 & kExponent) == kExponent;
}

}  // namespace gsa::cuda::forward
