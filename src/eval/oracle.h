// A selection beside the oracle's: the k_t keys that dense attention, averaged over heads, likes best.
//
// Both selections have the same size, so what separates them is the indexer's ranking alone; what the oracle
// itself loses is the price of the budget. Only queries that leave keys out count: the others keep everything
// whatever the indexer says.
//
// The oracle needs whole rows of dense attention. They exist for a bounded number of queries at a time, so
// memory stays linear in the length.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "eval/masks.h"
#include "nn/torch.h"

namespace gsa::eval {

// Sums over queries, and their means; a mean over nothing is NaN.
struct OracleTotals {
  double kept = 0;    // mass of dense attention, averaged over heads, on the selected keys
  double oracle = 0;  // the same on the oracle's keys
  double found = 0;   // share of the oracle's keys that are selected
  std::int64_t queries = 0;

  void add(const OracleTotals& other);

  double kept_mass() const;
  double oracle_mass() const;
  double recall() const;
  double kept_over_oracle() const;  // of the means, not the mean of quotients: no query has a small divisor
};

struct OracleOptions {
  std::int64_t queries = 512;              // measured of a sequence, at most; 0: all
  std::int64_t chunk_bytes = 256ll << 20;  // about what exists at a time; there is room for one query
};

// view: of a layer with an indexer at work; rows: of a selection from it. Products and softmax in float32, in
// float64 where q is. Deterministic; a sequence's sums do not depend on the others.
OracleTotals compare_with_oracle(const nn::AttentionView& view, const SelectionRows& rows,
                                 const OracleOptions& options = {});

// The keys of some queries of a sequence, bool [queries, keys] each; keys: up to the last that any of them sees.
struct KeySets {
  at::Tensor selected, oracle;
  at::Tensor chooses;  // bool [queries]: whether the query leaves keys out
};
// Of the queries that compare_with_oracle would measure, chunk by chunk.
void for_key_sets(const nn::AttentionView& view, const SelectionRows& rows, const OracleOptions& options,
                  const std::function<void(const KeySets&)>& take);

// At most `wanted` (0: all) of a sequence's queries, in runs of 16 (of `wanted` where that is less) that lie
// evenly over it; ascending, neighbours joined.
std::vector<QueryRun> spread_queries(std::int64_t length, std::int64_t wanted);

}  // namespace gsa::eval
