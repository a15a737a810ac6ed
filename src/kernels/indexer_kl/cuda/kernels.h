// The kernels behind indexer_kl on CUDA, as the host code sees them. A call goes through its queries in
// chunks; a chunk is a number of tiles of neighbouring queries, and each tile has a list of entries: every
// key that its last query sees (dense), or the union of its queries' selections (listed).
//
//   target            p of every (query, entry) of the chunk, into scratch memory
//   row_sums          loss: sums over a split of a query's entries; combine_loss adds them up
//   row_gradients     backward: dI takes the place of p; dq, dw and the query's part of dbias, again as sums
//                     over a split of entries; combine_rows adds them up
//   key_gradients     backward: dk from dI, again in parts; add_key_parts adds them up
//   list_gradients    backward of lists and a few small heads: what the last two do, in one
//   combine_lists     backward of lists: adds up the sums of queries and the parts of keys
//
// Dense chunks are known to the host. How long lists are is known to the device alone, and nobody waits for
// it: see cuda/lists.h.
#pragma once

#include <vector_types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/cuda_context.h"
#include "kernels/attention/union_plan.h"
#include "kernels/indexer_kl/indexer_kl.h"
#include "kernels/indexer_kl/indexer_kl_plan.h"

namespace gsa::cuda::kl {

// The rows of a tensor and how they may be read.
struct Source {
  const void* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
  int size = 0;
  bool aligned = false;  // every row begins at a multiple of 16 bytes and is a multiple of 16 bytes long
};

struct Attention {
  Source q, k;
  const float* lse = nullptr;
  int heads = 0, kv_heads = 0, group = 0;
  float scale = 0;  // times log2(e)
};

struct IndexerRows {
  Source q, k;
  ConstRows w;
  const void* bias = nullptr;
  int heads = 0;
  float scale = 0;
  bool relu = false;
};

// Listed: the tiles of a chunk. Written by the device.
struct ListRange {
  int first_tile = 0, tiles = 0;
  int first_slot = 0, slots = 0;  // first_slot: slots of all tiles before
};

// A slot of the chunk's memory: which entries of which tile it holds.
struct alignas(16) ListSlot {
  UnionTile tile;
  int index = 0;  // of the tile
  int first = 0;  // entry
};

// A word of the union of a tile: 32 keys, and the row of dk_part that the first of them has.
struct alignas(8) ListWord {
  std::uint32_t bits = 0;
  int row = 0;
};

struct Chunk {
  const UnionTile* tile = nullptr;  // dense: [tiles]; listed: the tiles of all chunks
  float* p = nullptr;  // dense: [tiles, tile queries, stride]; listed: [slots, tile queries, kSlot]
  // Dense.
  int tiles = 0;
  int entries = 0;  // the most a tile may have
  int split = 0;    // entries of a split, a multiple of 64
  int stride = 0;
  // Listed.
  const ListRange* range = nullptr;     // one
  const ListSlot* slot = nullptr;       // [slots]
  const int* tile_slot = nullptr;       // [all tiles + 1]: slots of the tiles before
  const int* keys = nullptr;            // [slots, kSlot]: positions in the sequence
  const std::uint32_t* bits = nullptr;  // [slots, kSlot]: bit i: query i of the tile selects the key
  int slots = 0;                        // there is room for
  int* ticket = nullptr;                // [kTickets]: the next slot of a kernel whose blocks ask for work
  // Backward.
  const int* row = nullptr;        // [slots, kSlot]: which row of dk_part an entry has
  const ListWord* word = nullptr;  // [words of the longest sequence, max_tiles]
  int max_tiles = 0;

  GSA_DEVICE bool listed() const { return range != nullptr; }
  GSA_DEVICE int splits() const { return (entries + split - 1) / split; }
};

// What the backward pass knows of single rows. A row with a value that is not finite gives NaN to every pair
// it takes part in, and counts as zeros in products, where it would reach other pairs too.
struct RowFacts {
  const std::uint8_t* bad_key = nullptr;    // [keys]
  const std::uint8_t* bad_query = nullptr;  // [queries]: its q or w
  // float16 only, for its narrow range: the exponent that bounds weight_t w_tj, of a query and of a sequence.
  const int* query_exponent = nullptr;     // [queries]
  const int* sequence_exponent = nullptr;  // [sequences]
};

struct Gradients {
  const float* index_lse = nullptr;
  const float* weight = nullptr;
  Rows dq, dw;
  float* dk = nullptr;
  float* dbias_rows = nullptr;  // [queries, heads]: what each query adds to dbias
  // Scratch of a chunk. Rows of lists: [slots, tile queries] instead of [tiles, tile queries, splits].
  float* d_score = nullptr;  // dI, as p; may be p itself where one block has all heads
  float* dq_part = nullptr;  // [tiles, tile queries, splits, heads, padded size]
  float* dw_part = nullptr;  // [tiles, tile queries, splits, heads, 2]: dw and dbias
  float* dk_part = nullptr;  // [parts, stride, padded size]; listed: [slots, kSlot, padded size]
  // Dense.
  const Part* part = nullptr;
  const Group* group = nullptr;
  int parts = 0, groups = 0;
  // Listed: [sequences + 1]: the tiles of the sequences before.
  const int* sequence_tile = nullptr;
};

inline TargetFacts target_facts(const Attention& attention, const Device& device) {
  return {.device = device,
          .head_size = attention.q.size,
          .aligned = attention.q.aligned && attention.k.aligned,
          .largest_stride = std::max(attention.q.token_stride, attention.k.token_stride)};
}
void target(DType dtype, const Attention& attention, const Chunk& chunk, const IndexerKlConfig& config,
            const Context& context);
// The same on Hopper, for aligned rows of at most 128 elements.
void hopper_target(DType dtype, const Attention& attention, const Chunk& chunk, const Context& context);

void row_sums(DType dtype, const IndexerRows& indexer, const Chunk& chunk, float4* sums,
              const Context& context);
void combine_loss(const Chunk& chunk, const float4* sums, float* loss, float* index_lse,
                  const Context& context);

// Fills facts: bad_key [keys], bad_query and query_exponent [queries], sequence_exponent [sequences]. sample:
// the tiles whose queries count, `sampled` of them; null: all queries.
void row_facts(DType dtype, const IndexerRows& indexer, const DeviceSequences& sequences,
               const UnionTile* sample, int sampled, const float* weight, std::uint8_t* bad_key,
               std::uint8_t* bad_query, int* query_exponent, int* sequence_exponent, const Context& context);
void row_gradients(DType dtype, const IndexerRows& indexer, const Chunk& chunk, const RowFacts& facts,
                   const Gradients& gradients, const Context& context);
void combine_rows(DType dtype, const IndexerRows& indexer, const Chunk& chunk, const Gradients& gradients,
                  const Context& context);
void key_gradients(DType dtype, const IndexerRows& indexer, const Chunk& chunk, const RowFacts& facts,
                   const Gradients& gradients, const Context& context);
void add_key_parts(const IndexerRows& indexer, const Chunk& chunk, const Gradients& gradients,
                   const Context& context);
// Listed only; list_gradients where gradients are fused.
void list_gradients(DType dtype, const IndexerRows& indexer, const Chunk& chunk, const RowFacts& facts,
                    const Gradients& gradients, const Context& context);
void combine_lists(DType dtype, const IndexerRows& indexer, const Chunk& chunk,
                   const DeviceSequences& sequences, const Gradients& gradients, const Context& context);
// Zeros for the queries outside a sample: bytes, and rows of 16-bit elements.
void set_zero(void* to, std::size_t bytes, const Context& context);
void zero_rows(const Rows& rows, int queries, int heads, int size, const Context& context);
// dbias += the sum over all queries.
void combine_bias(const float* dbias_rows, int queries, int heads, float* dbias, const Context& context);

}  // namespace gsa::cuda::kl
