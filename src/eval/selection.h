// Quality of a selection: how much of dense attention's mass the selected keys hold, how many keys queries
// take, and how well the choices of neighbouring queries agree.
//
// The kept mass of a query and head is sum_{s in S_t} softmax(a_t)_s = exp(lse over S_t - lse over all): two
// passes of attention, no matrix. In warm-up the selection is the one that the indexer would make, on the
// hidden states of dense attention.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "eval/masks.h"
#include "eval/oracle.h"
#include "model/model_config.h"
#include "nn/torch.h"

namespace gsa::eval {

// How often each k_t occurred.
class KeyCounts {
 public:
  void add(const at::Tensor& k_t);  // integers of 0 or more, on any device

  std::int64_t total() const { return total_; }
  std::int64_t min() const { return quantile(0); }
  std::int64_t max() const { return quantile(1); }
  double mean() const;
  // The smallest k that at least this share of the queries does not exceed; needs a query.
  std::int64_t quantile(double share) const;
  const std::vector<std::int64_t>& counts() const { return counts_; }  // by k, from 0 to the largest

 private:
  std::vector<std::int64_t> counts_;
  std::int64_t total_ = 0;
};

struct LayerSelection {
  std::vector<double> kept_mass;  // one a head, mean over queries
  // The same, mean over heads and those queries alone that leave keys out; NaN where there are none.
  double kept_mass_of_choosing = 0;
  double choosing = 0;  // share of the queries that leave keys out
  KeyCounts k_t;
  // Keys that a tile of neighbouring queries selects together over keys that one of them does, by kTiles; NaN
  // where no sequence is as long as the tile.
  std::array<double, kTiles.size()> union_over_k = {};

  OracleTotals oracle;  // over queries that leave keys out, those that were measured; none: not measured

  double kept_mass_mean() const;  // over heads
};

struct SelectionQuality {
  std::vector<LayerSelection> layers;
  std::int64_t queries = 0;

  double kept_mass_mean() const;  // over layers and heads
  double k_mean() const;          // over layers
  // Over layers with queries that leave keys out; NaN where there are none, or where a layer's is.
  double kept_over_oracle_mean() const;
  double recall_mean() const;
  std::optional<std::size_t> worst_layer() const;  // the one of these that keeps least of the oracle's mass
};

// k_t in bins with edges at round numbers, at most `bins`, the same for all layers.
struct KeyHistogram {
  std::vector<double> edges;                      // ascending, one more than bins
  std::vector<std::vector<std::int64_t>> counts;  // [layers][bins]: queries with edge <= k_t < next edge
};
KeyHistogram histogram(const SelectionQuality& quality, int bins);

// A selection beside dense attention, for one layer's view.
struct ComparedSelection {
  at::Tensor k_t, threshold, tie_cut;  // [T]
  at::Tensor kept;                     // Real [T, heads]
};
// The view must have an indexer at work.
ComparedSelection compare_with_dense(const nn::AttentionView& view);

// Adds up over any number of forward passes.
class SelectionMeter {
 public:
  explicit SelectionMeter(const nn::ModelConfig& config);

  void see_attention(std::int64_t layer, const nn::AttentionView& view, const ComparedSelection& selection,
                     const MaskFacts& facts, const OracleTotals& oracle);

  SelectionQuality result() const;

 private:
  struct Layer {
    std::vector<double> kept;  // sums
    double kept_of_choosing = 0;
    std::int64_t queries = 0, choosing = 0;
    KeyCounts k_t;
    std::array<UnionTotals, kTiles.size()> unions;
    OracleTotals oracle;
  };
  std::vector<Layer> layers_;
};

}  // namespace gsa::eval
