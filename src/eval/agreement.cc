#include "eval/agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "gsa/error.h"

namespace gsa::eval {
namespace {

using at::Tensor;

constexpr double kNoAgreement = std::numeric_limits<double>::quiet_NaN();

// Rows of bits, a byte for eight, [n, keys] -> [n, ceil(keys / 8)].
Tensor packed_bits(const Tensor& rows) {
  const std::int64_t bytes = (rows.size(1) + 7) / 8;
  const Tensor padded = torch::constant_pad_nd(rows.to(at::kByte), {0, 8 * bytes - rows.size(1)});
  const Tensor weights = torch::tensor({1, 2, 4, 8, 16, 32, 64, 128}, padded.options());
  return (padded.view({rows.size(0), bytes, 8}) * weights).sum(-1, /*keepdim=*/false, at::kByte);
}

// float32 [n, keys], 0 or 1.
Tensor bits_as_numbers(const Tensor& bytes) {
  const Tensor bits = bytes.unsqueeze(-1).bitwise_right_shift(torch::arange(8, bytes.options()));
  return bits.bitwise_and_(1).flatten(1).to(at::kFloat);
}

LayerPairs quotients(const Tensor& sums, const Tensor& counts) {
  const Tensor a = sums.to(at::kCPU), n = counts.to(at::kCPU);
  LayerPairs pairs(static_cast<std::size_t>(a.size(0)));
  for (std::int64_t i = 0; i < a.size(0); ++i) {
    for (std::int64_t j = 0; j < a.size(1); ++j) {
      const double count = n[i][j].item<double>();
      pairs[static_cast<std::size_t>(i)].push_back(count > 0 ? a[i][j].item<double>() / count : kNoAgreement);
    }
  }
  return pairs;
}

}  // namespace

double Agreement::neighbours_mean(const LayerPairs& pairs) {
  double sum = 0;
  for (std::size_t i = 1; i < pairs.size(); ++i) sum += pairs[i - 1][i];
  return pairs.size() > 1 ? sum / static_cast<double>(pairs.size() - 1) : kNoAgreement;
}

double agreement_bytes(std::int64_t layers, std::int64_t tokens, std::int64_t length,
                       const AgreementOptions& options) {
  const std::int64_t queries = options.queries == 0 ? length : std::min(options.queries, length);
  const double of_query = 2 * static_cast<double>((length + 7) / 8);  // selected and oracle
  return static_cast<double>(layers) * static_cast<double>(tokens) / static_cast<double>(length) *
         static_cast<double>(queries) * of_query;
}

AgreementMeter::AgreementMeter(std::int64_t layers, const AgreementOptions& options)
    : layers_(layers), options_(options), batch_(static_cast<std::size_t>(layers)) {
  if (options.queries < 0)
    bad_argument("eval", "agreement.queries", "0 (all) or more", concat(options.queries));
}

void AgreementMeter::see_attention(std::int64_t layer, const nn::AttentionView& view,
                                   const SelectionRows& rows) {
  auto& sets = batch_[static_cast<std::size_t>(layer)];
  for_key_sets(view, rows, {.queries = options_.queries, .chunk_bytes = options_.chunk_bytes},
               [&](const KeySets& keys) {
                 const Tensor counts = torch::stack({keys.selected.sum(1), keys.oracle.sum(1)}, 1);
                 sets.push_back({packed_bits(keys.selected), packed_bits(keys.oracle), counts.to(at::kFloat),
                                 keys.chooses});
               });
  if (layer + 1 == layers_) compare();
}

void AgreementMeter::compare() {
  for (std::size_t chunk = 0; chunk < batch_.front().size(); ++chunk) {
    const Tensor& first = batch_.front()[chunk].selected;
    if (!selections_.defined()) {
      selections_ = torch::zeros({layers_, layers_}, first.options().dtype(at::kDouble));
      oracles_ = torch::zeros_like(selections_);
      queries_ = torch::zeros_like(selections_);
    }
    const std::int64_t count = first.size(0);
    // The sets of all layers as numbers of 32 bits, and bytes on the way there.
    const std::int64_t query_bytes = layers_ * first.size(1) * 8 * 6;
    const std::int64_t step = std::max<std::int64_t>(1, options_.chunk_bytes / query_bytes);
    for (std::int64_t begin = 0; begin < count; begin += step) {
      const std::int64_t some = std::min(step, count - begin);
      const auto of_layers = [&](const auto& member) {
        std::vector<Tensor> parts;
        for (const auto& layer : batch_) parts.push_back(member(layer[chunk]).narrow(0, begin, some));
        return torch::stack(parts, 1);  // [some, layers, ...]
      };
      const Tensor chooses = of_layers([](const Sets& s) { return s.chooses; });
      const Tensor both = chooses.unsqueeze(2).logical_and(chooses.unsqueeze(1));
      const Tensor sizes = of_layers([](const Sets& s) { return s.counts; }).to(at::kDouble);
      const auto add = [&](Tensor& sums, const Tensor& bytes, std::int64_t which) {
        const Tensor bits = bits_as_numbers(bytes.flatten(0, 1)).view({some, layers_, -1});
        const Tensor common = bits.bmm(bits.transpose(1, 2)).to(at::kDouble);  // whole numbers, exact
        const Tensor found = common / sizes.select(2, which).unsqueeze(1);     // over the size of layer b's
        sums += torch::where(both, found, 0).sum(0);
      };
      add(selections_, of_layers([](const Sets& s) { return s.selected; }), 0);
      add(oracles_, of_layers([](const Sets& s) { return s.oracle; }), 1);
      queries_ += both.sum(0).to(at::kDouble);
    }
  }
  for (auto& layer : batch_) layer.clear();
}

Agreement AgreementMeter::result() const {
  const auto layers = static_cast<std::size_t>(layers_);
  Agreement result;
  result.queries.assign(layers, std::vector<std::int64_t>(layers));
  if (!selections_.defined()) {
    result.selections = result.oracles = LayerPairs(layers, std::vector<double>(layers, kNoAgreement));
    return result;
  }
  result.selections = quotients(selections_, queries_);
  result.oracles = quotients(oracles_, queries_);
  const Tensor counts = queries_.to(at::kCPU);
  for (std::size_t i = 0; i < layers; ++i) {
    for (std::size_t j = 0; j < layers; ++j) {
      result.queries[i][j] = static_cast<std::int64_t>(
          counts[static_cast<std::int64_t>(i)][static_cast<std::int64_t>(j)].item<double>());
    }
  }
  return result;
}

std::vector<std::int64_t> choose_leaders(const LayerPairs& found, std::int64_t leaders) {
  const auto layers = static_cast<std::int64_t>(found.size());
  if (leaders < 1 || leaders > layers) {
    bad_argument("eval::choose_leaders", "leaders", concat("a number in 1 .. ", layers), concat(leaders));
  }
  for (const auto& row : found) {
    for (const double share : row) {
      if (!std::isfinite(share)) {
        bad_argument("eval::choose_leaders", "found", "an agreement of every pair of layers",
                     "none of some (no query leaves keys out in both)");
      }
    }
  }
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  // best[g][i]: the largest sum of layers i, i + 1, ... in g groups; next[g][i]: where the second group begins.
  std::vector<std::vector<double>> best(at(leaders + 1), std::vector<double>(at(layers + 1), -1));
  std::vector<std::vector<std::int64_t>> next(at(leaders + 1), std::vector<std::int64_t>(at(layers + 1)));
  best[0][at(layers)] = 0;
  for (std::int64_t g = 1; g <= leaders; ++g) {
    for (std::int64_t i = layers - 1; i >= 0; --i) {
      double sum = 0;  // of the first group's followers
      for (std::int64_t end = i + 1; end <= layers; ++end) {
        if (end > i + 1) sum += found[at(i)][at(end - 1)];
        const double rest = best[at(g - 1)][at(end)];
        if (rest < 0 || sum + rest <= best[at(g)][at(i)]) continue;
        best[at(g)][at(i)] = sum + rest;
        next[at(g)][at(i)] = end;
      }
    }
  }
  std::vector<std::int64_t> list;
  std::int64_t layer = 0;
  for (std::int64_t g = leaders; g > 0; --g) {
    list.push_back(layer);
    layer = next[at(g)][at(layer)];
  }
  return list;
}

}  // namespace gsa::eval
