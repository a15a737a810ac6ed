// One layer's attention as whole matrices, from what the layer worked on: plain loops, quadratic memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "eval/oracle.h"
#include "nn/attention.h"
#include "nn/torch.h"

namespace gsa::eval::testing {

struct ExplicitSequence {
  std::int64_t length = 0;
  std::vector<std::set<std::int64_t>> selected;         // by query
  std::vector<std::vector<std::vector<double>>> dense;  // [head][query][key], softmax over all visible keys
};

// The k keys of highest score, equal ones in the order of positions.
inline std::set<std::int64_t> best_keys(const std::vector<double>& scores, std::int64_t k) {
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&](std::int64_t s) { return scores[static_cast<std::size_t>(s)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return score(a) > score(b); });
  return {order.begin(), order.begin() + k};
}

inline std::vector<double> vector_of(const at::Tensor& row) {
  const at::Tensor values = row.to(at::kDouble).contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

// k_t: int [T], how many keys each query selects; undefined: all.
inline std::vector<ExplicitSequence> explicit_attention(const nn::AttentionView& view,
                                                        const at::Tensor& k_t) {
  std::vector<ExplicitSequence> sequences;
  const auto bounds = view.starts.accessor<std::int64_t, 1>();
  const std::int64_t heads = view.q.size(1), group = heads / view.k.size(1);
  for (std::int64_t n = 0; n + 1 < bounds.size(0); ++n) {
    const std::int64_t begin = bounds[n], length = bounds[n + 1] - begin;
    ExplicitSequence sequence{.length = length, .selected = {}, .dense = {}};
    const auto rows = [&](const at::Tensor& x) { return x.narrow(0, begin, length); };
    at::Tensor scores;
    if (k_t.defined()) {
      ops::IndexerInputs indexer = *view.indexer;
      indexer.q = rows(indexer.q).unsqueeze(0);
      indexer.k = rows(indexer.k).unsqueeze(0);
      indexer.w = rows(indexer.w).unsqueeze(0);
      scores = ops::index_scores(indexer).squeeze(0);
    }
    for (std::int64_t t = 0; t < length; ++t) {
      std::set<std::int64_t> all;
      for (std::int64_t s = 0; s <= t; ++s) all.insert(s);
      sequence.selected.push_back(k_t.defined() ? best_keys(vector_of(scores[t].narrow(0, 0, t + 1)),
                                                            k_t[begin + t].item<std::int64_t>())
                                                : all);
    }
    const at::Tensor q = rows(view.q).to(at::kDouble), k = rows(view.k).to(at::kDouble);
    for (std::int64_t h = 0; h < heads; ++h) {
      const at::Tensor logits =
          q.select(1, h).mm(k.select(1, h / group).t()) / std::sqrt(static_cast<double>(view.q.size(2)));
      std::vector<std::vector<double>> matrix;
      for (std::int64_t t = 0; t < length; ++t) {
        matrix.push_back(vector_of(torch::softmax(logits[t].narrow(0, 0, t + 1), 0)));
      }
      sequence.dense.push_back(std::move(matrix));
    }
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

// Share of the dense attention of head h and query t that falls on what t selects.
inline double kept(const ExplicitSequence& sequence, std::size_t h, std::size_t t) {
  double sum = 0;
  for (const std::int64_t s : sequence.selected[t]) sum += sequence.dense[h][t][static_cast<std::size_t>(s)];
  return sum;
}

// Dense attention of query t averaged over heads.
inline std::vector<double> averaged(const ExplicitSequence& sequence, std::size_t t) {
  std::vector<double> p(t + 1);
  for (const auto& head : sequence.dense) {
    for (std::size_t s = 0; s <= t; ++s) p[s] += head[t][s];
  }
  for (double& value : p) value /= static_cast<double>(sequence.dense.size());
  return p;
}

// The selection beside the oracle's, over those of the queries that leave keys out.
inline OracleTotals explicit_oracle(const ExplicitSequence& sequence, const std::vector<QueryRun>& queries) {
  OracleTotals totals;
  for (const QueryRun& run : queries) {
    for (std::int64_t at = run.first; at < run.first + run.count; ++at) {
      const auto t = static_cast<std::size_t>(at);
      const std::set<std::int64_t>& selected = sequence.selected[t];
      if (selected.size() == t + 1) continue;
      const std::vector<double> p = averaged(sequence, t);
      const auto best = best_keys(p, static_cast<std::int64_t>(selected.size()));
      double found = 0;
      for (const std::int64_t s : best) {
        totals.oracle += p[static_cast<std::size_t>(s)];
        found += selected.contains(s) ? 1 : 0;
      }
      for (const std::int64_t s : selected) totals.kept += p[static_cast<std::size_t>(s)];
      totals.found += found / static_cast<double>(selected.size());
      ++totals.queries;
    }
  }
  return totals;
}

// Share of the sparse attention of head h and query t that falls on the first token.
inline double first_share(const ExplicitSequence& sequence, std::size_t h, std::size_t t) {
  return sequence.selected[t].contains(0) ? sequence.dense[h][t][0] / kept(sequence, h, t) : 0;
}

}  // namespace gsa::eval::testing
