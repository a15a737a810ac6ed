#include "kernels/common/key_block.h"

namespace gsa {

std::vector<QueryTile> make_tiles(const Sequences& sequences, std::int64_t size) {
  std::vector<QueryTile> tiles;
  for (std::int64_t n = 0; n < sequences.count; ++n) {
    for (std::int64_t first = 0; first < sequences.queries(n); first += size) {
      tiles.push_back({n, first, std::min(size, sequences.queries(n) - first)});
    }
  }
  return tiles;
}

void KeyBlock::fill(std::int64_t begin, std::int64_t size) {
  begin_ = begin;
  size_ = size;
  words_ = mask_words(size);
  count_ = size;
  for (std::int64_t i = 0; i < size; ++i) offset_[i] = slot_[i] = static_cast<std::uint16_t>(i);
}

void KeyBlock::unite(std::int64_t begin, std::int64_t size, const std::uint32_t* rows,
                     std::int64_t words_per_query, std::int64_t queries) {
  begin_ = begin;
  size_ = size;
  words_ = mask_words(size);
  count_ = 0;
  std::uint32_t merged[kMaxSize / 32] = {};
  for (std::int64_t q = 0; q < queries; ++q) {
    const std::uint32_t* row = rows + q * words_per_query + begin / 32;
    for (std::int64_t w = 0; w < words_; ++w) merged[w] |= row[w];
  }
  for (std::int64_t w = 0; w < words_; ++w) {
    for (std::uint32_t bits = merged[w] & valid(w); bits != 0; bits &= bits - 1) {
      const std::int64_t offset = w * 32 + std::countr_zero(bits);
      offset_[count_] = static_cast<std::uint16_t>(offset);
      slot_[offset] = static_cast<std::uint16_t>(count_++);
    }
  }
}

}  // namespace gsa
