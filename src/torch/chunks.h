// Chunks of queries: operators that never hold the whole mask walk over these. A sequence with more than its
// chunk's share of queries is cut about every so many queries, where kernels begin a tile of queries, and
// each chunk runs alone; shorter sequences run whole, several at a time. Where a sequence is cut depends on
// its own key length and on nothing else, so sums over queries (dk, dv) do not depend on batch neighbours.
#pragma once

#include <functional>
#include <vector>

#include "torch/arguments.h"

namespace gsa::binding {

struct Chunk {
  std::int64_t q_first = 0;  // row of the first query in the whole tensors
  std::int64_t k_first = 0;  // row of the first key
  std::int64_t words = 0;    // words a query in the chunk's mask
  SequenceTable table;       // counted from q_first and k_first

  std::int64_t queries() const { return table.q_begin.back(); }
};

// What a chunk may hold at the most; however long the sequence, it has room for min_queries.
struct ChunkLimits {
  std::int64_t queries = 0;
  std::int64_t mask_words = 0;
  std::int64_t min_queries = 1;
};

// The most queries that a sequence with this many keys runs at a time.
std::int64_t queries_per_chunk(std::int64_t keys, const ChunkLimits& limits);

std::vector<Chunk> plan_chunks(const Sequences& sequences, const ChunkLimits& limits);

// The masks of chunks: a buffer, large enough for any of them and used by one after the other, or their parts
// of a mask of all queries (int32 [..., words], contiguous).
class ChunkMask {
 public:
  ChunkMask(const char* op, const std::vector<Chunk>& chunks, const at::Device& device);
  explicit ChunkMask(const Tensor& whole);
  Mask of(const Chunk& chunk) const;

 private:
  Tensor words_;
  bool whole_ = false;
};

// What belongs to a chunk, out of what belongs to all.
Indexer part_of(const Indexer& indexer, const Chunk& chunk, DType dtype);

}  // namespace gsa::binding
