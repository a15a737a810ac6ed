// Whether the mask of a selection is kept for those who want it once more, which are the backward pass and the
// indexer's loss. They would have to rebuild it from thresholds, which costs the scores again: at 128K a fifth
// of a layer's time.
#pragma once

namespace gsa {

// words: of the mask of a query. query_bytes: of its row of q, all heads. A mask is kept where it takes no more
// memory than q, out and their gradients, which are there in the backward pass anyway: four bytes a word
// against four times q. That keeps memory linear in the length. Int: std::int64_t, or torch's symbolic
// integers.
template <typename Int>
constexpr bool mask_is_affordable(const Int& words, const Int& query_bytes) {
  return words <= query_bytes;
}

}  // namespace gsa
