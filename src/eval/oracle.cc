#include "eval/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gsa/error.h"

namespace gsa::eval {
namespace {

using at::Tensor;

// Masks are rebuilt for consecutive queries; a run of one would waste most of a kernel's tile.
constexpr std::int64_t kRun = 16;

double mean_of_oracle(double sum, std::int64_t count) {
  return count > 0 ? sum / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN();
}

// Bits of int32 words [n, W] as bool [n, keys]; position 0 is bit 0 of word 0. By bytes, which are in the
// order of the bits: shifted copies of words would take four times the memory.
Tensor unpacked(const Tensor& words, std::int64_t keys) {
  const Tensor bytes = words.view(at::kByte).unsqueeze(-1);
  const Tensor shifts = torch::arange(8, bytes.options());
  return bytes.bitwise_right_shift(shifts).bitwise_and_(1).to(at::kBool).flatten(1).narrow(1, 0, keys);
}

// The k_t largest of each row of p [n, keys], equal ones in the order of positions; k_t [n], at most max_k.
Tensor largest(const Tensor& p, const Tensor& k_t, std::int64_t max_k) {
  const std::int64_t k = std::min(max_k, p.size(1));
  const Tensor top = std::get<0>(p.topk(k));  // descending
  const Tensor threshold = top.gather(1, (k_t - 1).clamp(0, k - 1).unsqueeze(1));
  const Tensor above = p > threshold, level = p == threshold;
  const Tensor open = k_t - above.sum(1);
  return above.logical_or(level.logical_and(level.cumsum(1, at::kInt) <= open.unsqueeze(1)));
}

// One sequence of one layer.
class Comparison {
 public:
  Comparison(const nn::AttentionView& view, const SelectionRows& rows, std::int64_t begin, std::int64_t keys)
      : view_(view),
        selection_(rows),
        begin_(begin),
        real_(view.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
        k_(view.k.narrow(0, begin, keys).to(real_).transpose(0, 1).contiguous()) {}

  // Kept mass, the oracle's, the share of its keys that are selected, and the number of queries that leave
  // keys out: float64 [4] on the device, sums over these.
  Tensor sums(const std::vector<QueryRun>& runs) const {
    const Measured m = measure(runs);
    // Products rather than choices, so that a NaN stays visible.
    const Tensor kept = (m.p * m.sets.selected).sum(1, /*keepdim=*/false, at::kDouble);
    const Tensor oracle = (m.p * m.sets.oracle).sum(1, /*keepdim=*/false, at::kDouble);
    const Tensor found = m.sets.selected.logical_and(m.sets.oracle).sum(1).to(at::kDouble) / m.k_t;
    const Tensor values = torch::stack({kept, oracle, found, torch::ones_like(kept)});
    return torch::where(m.sets.chooses, values, 0).sum(1);
  }

  KeySets sets(const std::vector<QueryRun>& runs) const { return measure(runs).sets; }

 private:
  struct Measured {
    Tensor p;    // dense attention averaged over heads, [n, keys]
    Tensor k_t;  // [n]
    KeySets sets;
  };

  Measured measure(const std::vector<QueryRun>& runs) const {
    const std::int64_t keys = runs.back().first + runs.back().count;
    std::vector<Tensor> parts;
    for (const QueryRun& run : runs) {
      parts.push_back(torch::arange(run.first, run.first + run.count, view_.q.options().dtype(at::kLong)));
    }
    const Tensor position = torch::cat(parts), row = position + begin_;
    const Tensor k_t = selection_.k_t.index_select(0, row).to(at::kLong);
    const Tensor p = dense(row, position, keys);
    return {p, k_t, {unpacked(mask(runs, keys), keys), largest(p, k_t, view_.budget->max), k_t <= position}};
  }

  // Dense attention averaged over heads, [n, keys]; 0 where a key is not visible.
  Tensor dense(const Tensor& row, const Tensor& position, std::int64_t keys) const {
    const std::int64_t count = row.size(0), heads = view_.q.size(1), size = view_.q.size(2);
    const std::int64_t kv_heads = view_.k.size(1), group = heads / kv_heads;
    const Tensor q = view_.q.index_select(0, row).to(real_) / std::sqrt(static_cast<double>(size));
    const Tensor future = (torch::arange(keys, position.options()) > position.unsqueeze(1)).unsqueeze(1);
    Tensor p = torch::zeros({count, keys}, q.options());
    for (std::int64_t g = 0; g < kv_heads; ++g) {
      const Tensor of_group = q.narrow(1, g * group, group).reshape({count * group, size});
      Tensor a = of_group.mm(k_[g].narrow(0, 0, keys).t()).view({count, group, keys});
      a.masked_fill_(future, -std::numeric_limits<double>::infinity());
      p += a.softmax(-1).sum(1);
    }
    return p / heads;
  }

  // The selection's words, int32 [n, ceil(keys / 32)].
  Tensor mask(const std::vector<QueryRun>& runs, std::int64_t keys) const {
    std::int64_t count = 0;
    for (const QueryRun& run : runs) count += run.count;
    Tensor words = torch::zeros({count, (keys + 31) / 32}, view_.q.options().dtype(at::kInt));
    std::int64_t at = 0;
    for (const QueryRun& run : runs) {
      const Tensor part = mask_words(begin_, run, *view_.indexer, selection_);
      words.narrow(0, at, run.count).narrow(1, 0, part.size(1)).copy_(part);
      at += run.count;
    }
    return words;
  }

  const nn::AttentionView& view_;
  const SelectionRows& selection_;
  std::int64_t begin_;
  at::ScalarType real_;
  Tensor k_;  // [kv_heads, keys, size]
};

// Runs cut and gathered into chunks of at most `rows` queries.
std::vector<std::vector<QueryRun>> chunks_of(const std::vector<QueryRun>& runs, std::int64_t rows) {
  std::vector<std::vector<QueryRun>> chunks;
  std::int64_t room = 0;
  for (QueryRun run : runs) {
    while (run.count > 0) {
      if (room == 0) {
        chunks.emplace_back();
        room = rows;
      }
      const std::int64_t count = std::min(room, run.count);
      chunks.back().push_back({run.first, count});
      run = {run.first + count, run.count - count};
      room -= count;
    }
  }
  return chunks;
}

}  // namespace

void OracleTotals::add(const OracleTotals& other) {
  kept += other.kept;
  oracle += other.oracle;
  found += other.found;
  queries += other.queries;
}

double OracleTotals::kept_mass() const { return mean_of_oracle(kept, queries); }
double OracleTotals::oracle_mass() const { return mean_of_oracle(oracle, queries); }
double OracleTotals::recall() const { return mean_of_oracle(found, queries); }
double OracleTotals::kept_over_oracle() const { return kept_mass() / oracle_mass(); }

std::vector<QueryRun> spread_queries(std::int64_t length, std::int64_t wanted) {
  if (wanted == 0 || wanted >= length) {
    return length > 0 ? std::vector<QueryRun>{{0, length}} : std::vector<QueryRun>{};
  }
  const std::int64_t size = std::min(kRun, wanted), count = wanted / size;
  std::vector<QueryRun> runs;
  for (std::int64_t i = 0; i < count; ++i) {
    // In the middle of the i-th of `count` equal parts, none of which is shorter than a run.
    const std::int64_t first = (2 * i + 1) * length / (2 * count) - size / 2;
    if (!runs.empty() && runs.back().first + runs.back().count == first) {
      runs.back().count += size;
    } else {
      runs.push_back({first, size});
    }
  }
  return runs;
}

namespace {

// Calls take(comparison, runs) for every chunk of the queries that are measured.
template <typename Take>
void for_chunks(const nn::AttentionView& view, const SelectionRows& rows, const OracleOptions& options,
                const Take& take) {
  if (!view.indexer) bad_argument("eval", "view", "an indexer at work", "none");
  if (options.queries < 0) bad_argument("eval", "oracle.queries", "0 (all) or more", concat(options.queries));
  const auto bounds = view.starts.accessor<std::int64_t, 1>();
  const std::int64_t group = view.q.size(1) / view.k.size(1);
  const std::int64_t real = view.q.scalar_type() == at::kDouble ? 8 : 4;
  for (std::int64_t n = 0; n + 1 < bounds.size(0); ++n) {
    const std::vector<QueryRun> runs = spread_queries(bounds[n + 1] - bounds[n], options.queries);
    if (runs.empty()) continue;
    const std::int64_t keys = runs.back().first + runs.back().count;
    // Logits and their softmax for the heads of a group; the row itself, its sorted part and masks beside it.
    const std::int64_t row_bytes = keys * (2 * group * real + 4 * real + 16);
    const Comparison comparison(view, rows, bounds[n], keys);
    for (const auto& chunk : chunks_of(runs, std::max<std::int64_t>(1, options.chunk_bytes / row_bytes))) {
      take(comparison, chunk);
    }
  }
}

}  // namespace

void for_key_sets(const nn::AttentionView& view, const SelectionRows& rows, const OracleOptions& options,
                  const std::function<void(const KeySets&)>& take) {
  for_chunks(view, rows, options, [&](const Comparison& comparison, const std::vector<QueryRun>& runs) {
    take(comparison.sets(runs));
  });
}

OracleTotals compare_with_oracle(const nn::AttentionView& view, const SelectionRows& rows,
                                 const OracleOptions& options) {
  Tensor sums = torch::zeros({4}, view.q.options().dtype(at::kDouble));
  for_chunks(view, rows, options, [&](const Comparison& comparison, const std::vector<QueryRun>& runs) {
    sums += comparison.sums(runs);
  });
  const Tensor host = sums.to(at::kCPU);  // the only wait
  const auto values = host.accessor<double, 1>();
  return {values[0], values[1], values[2], static_cast<std::int64_t>(values[3])};
}

}  // namespace gsa::eval
