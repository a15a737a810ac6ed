#include "torch/chunks.h"

#include <algorithm>

namespace gsa::binding {

namespace {

// Kernels treat this many neighbouring queries together; a tile begins where the position is a multiple of
// it.
constexpr std::int64_t kTile = 64;

// Whole sequences from n on, as many as fit together; returns the first that did not.
std::int64_t group(const Sequences& sequences, std::int64_t n, const ChunkLimits& limits, Chunk& chunk) {
  while (n < sequences.count) {
    const std::int64_t queries = sequences.queries(n), keys = sequences.keys(n);
    const std::int64_t total = chunk.queries() + queries;
    const std::int64_t words = std::max(chunk.words, mask_words(keys));
    const bool whole = queries <= queries_per_chunk(keys, limits);
    const bool first = chunk.table.q_position.empty();
    if (!whole || (!first && (total > limits.queries || total * words > limits.mask_words))) break;
    chunk.table.add(queries, keys, sequences.first_position(n));
    chunk.words = words;
    ++n;
  }
  return n;
}

void cut(const Sequences& sequences, std::int64_t n, const ChunkLimits& limits, std::vector<Chunk>& chunks) {
  const std::int64_t queries = sequences.queries(n), step = queries_per_chunk(sequences.keys(n), limits);
  for (std::int64_t start = 0, count = 0; start < queries; start += count) {
    const std::int64_t position = sequences.first_position(n) + start;
    // Chunks as long as tiles end between tiles.
    count = std::min(step < kTile ? step : step - position % kTile, queries - start);
    Chunk chunk;
    chunk.q_first = sequences.q_begin[n] + start;
    chunk.k_first = sequences.k_begin[n];
    chunk.words = mask_words(position + count);
    chunk.table.add(count, position + count, position);  // later keys are not visible to this chunk
    chunks.push_back(std::move(chunk));
  }
}

}  // namespace

std::int64_t queries_per_chunk(std::int64_t keys, const ChunkLimits& limits) {
  const std::int64_t fitting =
      std::max(limits.min_queries, limits.mask_words / std::max<std::int64_t>(1, mask_words(keys)));
  if (fitting >= limits.queries) return limits.queries;
  return fitting >= kTile ? fitting / kTile * kTile : std::max<std::int64_t>(1, fitting);
}

std::vector<Chunk> plan_chunks(const Sequences& sequences, const ChunkLimits& limits) {
  std::vector<Chunk> chunks;
  for (std::int64_t n = 0; n < sequences.count;) {
    if (sequences.queries(n) > queries_per_chunk(sequences.keys(n), limits)) {
      cut(sequences, n++, limits, chunks);
      continue;
    }
    Chunk chunk;
    chunk.q_first = sequences.q_begin[n];
    chunk.k_first = sequences.k_begin[n];
    n = group(sequences, n, limits, chunk);
    if (chunk.queries() > 0) chunks.push_back(std::move(chunk));
  }
  return chunks;
}

ChunkMask::ChunkMask(const char* op, const std::vector<Chunk>& chunks, const at::Device& device) {
  std::int64_t words = 0;
  for (const Chunk& chunk : chunks) words = std::max(words, chunk.queries() * chunk.words);
  words_ = empty(op, "q", {words}, at::kInt, device);
}

ChunkMask::ChunkMask(const Tensor& whole) : words_(whole), whole_(true) {}

Mask ChunkMask::of(const Chunk& chunk) const {
  std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(words_.mutable_data_ptr<std::int32_t>());
  if (!whole_) return {words, chunk.words};
  const std::int64_t width = words_.size(-1);
  return {words + chunk.q_first * width, width};
}

Indexer part_of(const Indexer& indexer, const Chunk& chunk, DType dtype) {
  Indexer part = indexer;
  part.q = shifted(indexer.q, chunk.q_first, dtype);
  part.k = shifted(indexer.k, chunk.k_first, dtype);
  part.w = shifted(indexer.w, chunk.q_first, dtype);
  return part;
}

}  // namespace gsa::binding
