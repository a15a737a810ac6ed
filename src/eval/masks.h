// What statistics need to know of a selection's bit mask. Masks are rebuilt from thresholds for a chunk of
// queries at a time, so memory stays linear in the length.
#pragma once

#include <array>
#include <cstdint>

#include "nn/attention.h"
#include "nn/torch.h"

namespace gsa::eval {

// Queries that a kernel would treat together.
constexpr std::array<std::int64_t, 3> kTiles = {16, 32, 64};

// Over whole tiles of neighbouring queries, counted from the beginning of their sequence.
struct UnionTotals {
  double keys = 0;    // keys that at least one query of the tile selects, added up over tiles
  double budget = 0;  // keys that a query of the tile selects, mean over the tile, added up
  std::int64_t tiles = 0;

  void add(const UnionTotals& other) {
    keys += other.keys;
    budget += other.budget;
    tiles += other.tiles;
  }
};

struct MaskFacts {
  at::Tensor has_first;                           // bool [T]: whether the query selects its first token
  std::array<UnionTotals, kTiles.size()> unions;  // by kTiles
};

// starts: int64 [sequences + 1] on the CPU; k_t, threshold and tie_cut: [T], of a selection from the indexer.
struct SelectionRows {
  const at::Tensor &k_t, &threshold, &tie_cut;
};
// Consecutive queries of a sequence.
struct QueryRun {
  std::int64_t first = 0, count = 0;
  bool operator==(const QueryRun&) const = default;
};
// Their bit masks, int32 [count, ceil((first + count) / 32)], in the sequence that starts at row `begin`.
at::Tensor mask_words(std::int64_t begin, const QueryRun& run, const ops::IndexerInputs& indexer,
                      const SelectionRows& rows);

// chunk_words: of mask that exist at a time, 4 bytes each; there is room for 64 queries whatever it says.
MaskFacts read_masks(const at::Tensor& starts, const ops::IndexerInputs& indexer, const SelectionRows& rows,
                     std::int64_t chunk_words = 16 << 20);

// Keys that each query sees, int64 [T] on the device: its position in its sequence, and itself.
at::Tensor visible_keys(const at::Tensor& starts, const at::Device& device);

}  // namespace gsa::eval
