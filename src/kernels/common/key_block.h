// How attention walks: tiles of neighbouring queries, blocks of keys that stay in the L2 cache. A block's
// keys that some query of the tile selected are packed into scratch memory once; each query then lists its
// own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "gsa/tensor_view.h"

namespace gsa {

struct QueryTile {
  std::int64_t sequence;
  std::int64_t first;  // index of the first query within its sequence
  std::int64_t count;
};

// Cuts every sequence's queries into tiles of at most `size`.
std::vector<QueryTile> make_tiles(const Sequences& sequences, std::int64_t size);

// The tile's place in the flat arrays.
struct TilePlace {
  std::int64_t query;     // flat index of the first query
  std::int64_t key;       // flat index of the sequence's first key
  std::int64_t position;  // position of the first query in its sequence

  TilePlace(const Sequences& s, const QueryTile& tile)
      : query(s.q_begin[tile.sequence] + tile.first),
        key(s.k_begin[tile.sequence]),
        position(s.first_position(tile.sequence) + tile.first) {}
};

// The keys of positions [begin, begin + size) that at least one query of a tile wants.
class KeyBlock {
 public:
  static constexpr std::int64_t kMaxSize = 1024;

  // Every key of the block, for dense attention.
  void fill(std::int64_t begin, std::int64_t size);

  // The union of the masks of `queries` queries, whose first mask row is `rows`. begin is a multiple of 32.
  void unite(std::int64_t begin, std::int64_t size, const std::uint32_t* rows, std::int64_t words_per_query,
             std::int64_t queries);

  // The slots of the keys that one query selected, in ascending order of position; returns how many.
  std::int64_t list(const std::uint32_t* row, std::uint16_t* slots) const {
    const std::uint32_t* words = row + begin_ / 32;
    std::int64_t n = 0;
    for (std::int64_t w = 0; w < words_; ++w) {
      for (std::uint32_t bits = words[w] & valid(w); bits != 0; bits &= bits - 1) {
        slots[n++] = slot_[w * 32 + std::countr_zero(bits)];
      }
    }
    return n;
  }

  std::int64_t begin() const { return begin_; }
  std::int64_t count() const { return count_; }
  // Position of the key in slot i.
  std::int64_t position(std::int64_t i) const { return begin_ + offset_[i]; }

 private:
  // Bits of word w that lie inside the block.
  std::uint32_t valid(std::int64_t w) const {
    const std::int64_t left = size_ - w * 32;
    return left >= 32 ? ~0u : (1u << left) - 1u;
  }

  std::int64_t begin_ = 0;
  std::int64_t size_ = 0;
  std::int64_t words_ = 0;
  std::int64_t count_ = 0;
  std::uint16_t offset_[kMaxSize];
  std::uint16_t slot_[kMaxSize];
};

}  // namespace gsa
