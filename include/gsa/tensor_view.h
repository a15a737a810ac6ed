// Plain descriptions of the memory that operators read and write. No ownership, no framework.
#pragma once

#include <cstdint>

namespace gsa {

// Rows of a tensor [tokens, heads, size]: the last dimension is contiguous, the others are strided
// (strides in elements). The element type is the operator's dtype. Keys that lie in pages (PageTable) are
// [pages, page_size, heads, size].
struct ConstRows {
  const void* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t page_stride = 0;  // of keys in pages; otherwise not used
};

struct Rows {
  void* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  operator ConstRows() const { return {data, token_stride, head_stride}; }
};

// Keys in pages: one page is [page_size, heads, size] with these strides (in elements); the last dimension is
// contiguous.
struct ConstPages {
  const void* data = nullptr;
  std::int64_t page_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

// Position s of sequence n lies in page block_table[n, s / page_size], row s % page_size. Sequences may share
// pages.
struct PageTable {
  std::int64_t page_size = 0;                 // positions a page: a power of two, 8 .. 1024
  const std::int32_t* block_table = nullptr;  // [sequences, blocks]: entries beyond the length are not read
  std::int64_t blocks = 0;                    // entries a row; row stride
  const std::int32_t* length = nullptr;  // [sequences]: keys in the cache, those of the queries included;
                                         // not used where a Sequences says it
};

// Packed (varlen) sequences along the token dimension; a padded batch is the case of equal lengths.
// Query i of sequence n stands at position q_position[n] + i and sees the keys of sequence n at
// positions 0 .. q_position[n] + i. Positions count from the start of the sequence.
struct Sequences {
  std::int64_t count = 0;
  const std::int64_t* q_begin = nullptr;     // [count + 1], cumulative, q_begin[0] = 0
  const std::int64_t* k_begin = nullptr;     // [count + 1], cumulative, k_begin[0] = 0
  const std::int64_t* q_position = nullptr;  // [count]; null: the last query sees the last key

  std::int64_t queries(std::int64_t n) const { return q_begin[n + 1] - q_begin[n]; }
  std::int64_t keys(std::int64_t n) const { return k_begin[n + 1] - k_begin[n]; }
  std::int64_t first_position(std::int64_t n) const {
    return q_position != nullptr ? q_position[n] : keys(n) - queries(n);
  }
  std::int64_t total_queries() const { return count == 0 ? 0 : q_begin[count]; }
  std::int64_t total_keys() const { return count == 0 ? 0 : k_begin[count]; }
  std::int64_t longest_keys() const {
    std::int64_t longest = 0;
    for (std::int64_t n = 0; n < count; ++n) longest = keys(n) > longest ? keys(n) : longest;
    return longest;
  }
};

// A selection: one bit for each (query, position), 32 positions a word, position 0 in bit 0 of word 0.
// words is [total queries, words_per_query]; bits beyond a query's position are zero.
struct ConstMask {
  const std::uint32_t* words = nullptr;
  std::int64_t words_per_query = 0;
  std::int64_t max_selected = 0;  // a bound of the bits a query has, where one is known; 0: none
};

struct Mask {
  std::uint32_t* words = nullptr;
  std::int64_t words_per_query = 0;

  operator ConstMask() const { return {words, words_per_query, 0}; }
};

// A sample of the queries, in tiles. The tiles of all sequences are numbered in order; those of a sequence
// are cut where positions are multiples of kQueryTile, so its first and its last may hold fewer queries.
constexpr std::int64_t kQueryTile = 64;

struct QueryTiles {
  const std::int32_t* number = nullptr;  // [count], ascending, in host memory; null: every tile
  std::int64_t count = 0;
};

constexpr std::int64_t mask_words(std::int64_t keys) { return (keys + 31) / 32; }

}  // namespace gsa
