#include "eval/selection.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gsa/error.h"
#include "plot/scale.h"

namespace gsa::eval {
namespace {

using at::Tensor;

double ratio(double a, double b) { return b > 0 ? a / b : std::numeric_limits<double>::quiet_NaN(); }

// Of what value() says of a layer's totals, over layers where a query leaves keys out.
template <typename Value>
double mean_over_choosing(const std::vector<LayerSelection>& layers, const Value& value) {
  double sum = 0, count = 0;
  for (const LayerSelection& layer : layers) {
    if (layer.oracle.queries == 0) continue;
    sum += value(layer.oracle);
    count += 1;
  }
  return ratio(sum, count);
}

}  // namespace

void KeyCounts::add(const Tensor& k_t) {
  const Tensor counts = torch::bincount(k_t.reshape({-1}).to(at::kCPU, at::kLong));
  const auto values = counts.accessor<std::int64_t, 1>();
  if (values.size(0) > static_cast<std::int64_t>(counts_.size())) {
    counts_.resize(static_cast<std::size_t>(values.size(0)));
  }
  for (std::int64_t k = 0; k < values.size(0); ++k) counts_[static_cast<std::size_t>(k)] += values[k];
  total_ += k_t.numel();
}

double KeyCounts::mean() const {
  double sum = 0;
  for (std::size_t k = 0; k < counts_.size(); ++k) {
    sum += static_cast<double>(k) * static_cast<double>(counts_[k]);
  }
  return ratio(sum, static_cast<double>(total_));
}

std::int64_t KeyCounts::quantile(double share) const {
  if (total_ == 0) bad_argument("eval", "k_t", "at least one query", "none");
  const auto wanted =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(share * static_cast<double>(total_))));
  std::int64_t below = 0;
  std::size_t k = 0;
  while ((below += counts_[k]) < wanted) ++k;
  return static_cast<std::int64_t>(k);
}

double LayerSelection::kept_mass_mean() const {
  double sum = 0;
  for (const double kept : kept_mass) sum += kept;
  return ratio(sum, static_cast<double>(kept_mass.size()));
}

double SelectionQuality::kept_mass_mean() const {
  double sum = 0;
  for (const LayerSelection& layer : layers) sum += layer.kept_mass_mean();
  return ratio(sum, static_cast<double>(layers.size()));
}

double SelectionQuality::k_mean() const {
  double sum = 0;
  for (const LayerSelection& layer : layers) sum += layer.k_t.mean();
  return ratio(sum, static_cast<double>(layers.size()));
}

double SelectionQuality::kept_over_oracle_mean() const {
  return mean_over_choosing(layers, [](const OracleTotals& oracle) { return oracle.kept_over_oracle(); });
}

double SelectionQuality::recall_mean() const {
  return mean_over_choosing(layers, [](const OracleTotals& oracle) { return oracle.recall(); });
}

std::optional<std::size_t> SelectionQuality::worst_layer() const {
  std::optional<std::size_t> worst;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].oracle.queries == 0) continue;
    const double share = layers[i].oracle.kept_over_oracle();
    if (std::isnan(share)) return i;
    if (!worst || share < layers[*worst].oracle.kept_over_oracle()) worst = i;
  }
  return worst;
}

KeyHistogram histogram(const SelectionQuality& quality, int bins) {
  std::int64_t low = std::numeric_limits<std::int64_t>::max(), high = 0;
  for (const LayerSelection& layer : quality.layers) {
    low = std::min(low, layer.k_t.min());
    high = std::max(high, layer.k_t.max());
  }
  // One bin may be lost to the first edge, which lies at a multiple of the width.
  const auto range = static_cast<double>(high + 1 - low);
  const auto width = static_cast<std::int64_t>(std::max(1.0, round_step(range, std::max(1, bins - 1))));
  KeyHistogram result;
  const std::int64_t first = low / width * width;
  for (std::int64_t edge = first;; edge += width) {
    result.edges.push_back(static_cast<double>(edge));
    if (edge > high) break;
  }
  for (const LayerSelection& layer : quality.layers) {
    std::vector<std::int64_t> counts(result.edges.size() - 1);
    const auto& by_key = layer.k_t.counts();
    for (std::size_t k = static_cast<std::size_t>(low); k < by_key.size(); ++k) {
      counts[(k - static_cast<std::size_t>(first)) / static_cast<std::size_t>(width)] += by_key[k];
    }
    result.counts.push_back(std::move(counts));
  }
  return result;
}

ComparedSelection compare_with_dense(const nn::AttentionView& view) {
  if (!view.indexer) bad_argument("eval", "view", "an indexer at work", "none");
  const ops::Layout layout{view.starts, view.starts, std::nullopt};
  if (view.threshold.defined()) {
    const Tensor dense = ops::attend(view.q, view.k, view.v, {}, {}, layout).lse;
    return {view.k_t, view.threshold, view.tie_cut, (view.lse - dense).exp()};
  }
  auto [attention, selection] =
      ops::sparse_attend(view.q, view.k, view.v, *view.indexer, *view.budget, {}, layout);
  return {selection.k_t, selection.threshold, selection.tie_cut, (attention.lse - view.lse).exp()};
}

SelectionMeter::SelectionMeter(const nn::ModelConfig& config)
    : layers_(static_cast<std::size_t>(config.layers)) {
  for (Layer& layer : layers_) layer.kept.resize(static_cast<std::size_t>(config.attention.heads));
}

void SelectionMeter::see_attention(std::int64_t index, const nn::AttentionView& view,
                                   const ComparedSelection& selection, const MaskFacts& facts,
                                   const OracleTotals& oracle) {
  Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Tensor sums = selection.kept.sum(0, /*keepdim=*/false, at::kDouble).to(at::kCPU);
  for (std::size_t h = 0; h < layer.kept.size(); ++h) {
    layer.kept[h] += sums[static_cast<std::int64_t>(h)].item<double>();
  }
  const Tensor chooses = selection.k_t < visible_keys(view.starts, view.q.device());
  layer.kept_of_choosing += torch::where(chooses, selection.kept.mean(1), 0).sum(at::kDouble).item<double>();
  layer.choosing += chooses.sum().item<std::int64_t>();
  layer.queries += selection.k_t.numel();
  layer.k_t.add(selection.k_t);
  for (std::size_t i = 0; i < kTiles.size(); ++i) layer.unions[i].add(facts.unions[i]);
  layer.oracle.add(oracle);
}

SelectionQuality SelectionMeter::result() const {
  SelectionQuality quality;
  for (const Layer& layer : layers_) {
    const double queries = static_cast<double>(layer.queries), choosing = static_cast<double>(layer.choosing);
    LayerSelection result;
    for (const double kept : layer.kept) result.kept_mass.push_back(ratio(kept, queries));
    result.kept_mass_of_choosing = ratio(layer.kept_of_choosing, choosing);
    result.choosing = ratio(choosing, queries);
    result.k_t = layer.k_t;
    for (std::size_t i = 0; i < kTiles.size(); ++i) {
      result.union_over_k[i] = ratio(layer.unions[i].keys, layer.unions[i].budget);
    }
    result.oracle = layer.oracle;
    quality.layers.push_back(std::move(result));
  }
  quality.queries = layers_.front().queries;
  return quality;
}

}  // namespace gsa::eval
