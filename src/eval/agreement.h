// How far layers agree on keys: which of them could share a selection.
//
// found[a][b] is the share of layer b's keys that layer a has, too, mean over queries: what b would find of
// its own keys if it went by a's. Once of the selections, once of the oracles (the k_t keys that dense
// attention of the layer, averaged over heads, likes best), which an indexer cannot blur. Only queries count
// at which both layers leave keys out: elsewhere one has every key.
//
// Sets of keys are kept for a sample of the queries of a batch, a bit a key, layer and query, so memory stays
// linear in the length.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/oracle.h"
#include "nn/torch.h"

namespace gsa::eval {

using LayerPairs = std::vector<std::vector<double>>;  // [layer][layer]; NaN where no query counts

struct Agreement {
  LayerPairs selections, oracles;
  std::vector<std::vector<std::int64_t>> queries;  // that count, by pair

  // Mean over neighbours, of what the upper one finds with the lower one; NaN where there are none.
  static double neighbours_mean(const LayerPairs& pairs);
};

struct AgreementOptions {
  std::int64_t queries = 128;              // of a sequence, at most; 0: all
  std::int64_t chunk_bytes = 256ll << 20;  // about what exists at a time beside the sets
};

// Bytes of the sets of a batch of `tokens` in sequences of `length`.
double agreement_bytes(std::int64_t layers, std::int64_t tokens, std::int64_t length,
                       const AgreementOptions& options = {});

// Adds up over any number of forward passes, whose layers come in order.
class AgreementMeter {
 public:
  explicit AgreementMeter(std::int64_t layers, const AgreementOptions& options = {});

  // view: of a layer with an indexer at work (its own or one that it shares); rows: of its selection.
  void see_attention(std::int64_t layer, const nn::AttentionView& view, const SelectionRows& rows);

  Agreement result() const;

 private:
  struct Sets {
    at::Tensor selected, oracle;  // bytes [queries, ceil(keys / 8)]
    at::Tensor counts;            // float32 [queries, 2]: how many keys each has
    at::Tensor chooses;           // bool [queries]
  };
  void compare();

  std::int64_t layers_;
  AgreementOptions options_;
  std::vector<std::vector<Sets>> batch_;       // [layer][chunk of queries]
  at::Tensor selections_, oracles_, queries_;  // float64 [layers, layers], sums
};

// The first layers of `leaders` groups of consecutive layers, such that the sum over all other layers of what
// they find with the first of their group is largest; ascending, the first is 0. Of equal ones that with the
// lowest numbers.
std::vector<std::int64_t> choose_leaders(const LayerPairs& found, std::int64_t leaders);

}  // namespace gsa::eval
