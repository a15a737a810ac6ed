#include "eval/sinks.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gsa::eval {
namespace {

using at::Tensor;

// Rows that are widened to float32 at a time.
constexpr std::int64_t kRows = 4096;

double mean_of_layers(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

double LayerSinks::first_token_mean() const { return mean_of_layers(first_token); }

double Sinks::first_token_mean() const {
  std::vector<double> means;
  for (const LayerSinks& layer : layers) means.push_back(layer.first_token_mean());
  return mean_of_layers(means);
}

double Sinks::largest() const {
  double largest = 0;
  for (const ResidualSize& size : residual) {
    if (std::isnan(size.largest)) return size.largest;
    largest = std::max(largest, size.largest);
  }
  return largest;
}

Tensor first_token_share(const nn::AttentionView& view) {
  const Tensor &q = view.q, &k = view.k, &lse = view.lse;
  const std::int64_t heads = q.size(1), kv_heads = k.size(1), size = q.size(2);
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  const auto bounds = view.starts.accessor<std::int64_t, 1>();
  Tensor share = torch::empty_like(lse);
  for (std::int64_t n = 0; n + 1 < bounds.size(0); ++n) {
    if (bounds[n] == bounds[n + 1]) continue;
    const Tensor first = k.select(0, bounds[n]).to(lse.scalar_type()).view({kv_heads, 1, size});
    for (std::int64_t row = bounds[n]; row < bounds[n + 1]; row += kRows) {
      const std::int64_t rows = std::min(kRows, bounds[n + 1] - row);
      const Tensor part = q.narrow(0, row, rows).to(lse.scalar_type());
      const Tensor products = (part.view({rows, kv_heads, heads / kv_heads, size}) * first).sum(-1);
      const Tensor logits = products.view({rows, heads}) * scale;
      share.narrow(0, row, rows).copy_((logits - lse.narrow(0, row, rows)).exp());
    }
  }
  return share;
}

void SinkMeter::Mean::add(const Tensor& values) {
  if (!values.defined()) return;
  const Tensor flat = values.reshape({-1});
  constexpr std::int64_t kValues = 16 << 20;
  for (std::int64_t i = 0; i < flat.size(0); i += kValues) {
    const Tensor part = flat.narrow(0, i, std::min(kValues, flat.size(0) - i));
    sum += part.to(at::kFloat).sigmoid().sum(at::kDouble).item<double>();
  }
  count += flat.size(0);
}

std::optional<double> SinkMeter::Mean::value() const {
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

SinkMeter::SinkMeter(const nn::ModelConfig& config)
    : layers_(static_cast<std::size_t>(config.layers)),
      residual_(static_cast<std::size_t>(config.layers) + 1) {
  for (Layer& layer : layers_) layer.first_token.resize(static_cast<std::size_t>(config.attention.heads));
}

void SinkMeter::see_attention(std::int64_t index, const nn::AttentionView& view, const MaskFacts* facts) {
  Layer& layer = layers_[static_cast<std::size_t>(index)];
  layer.value_gate.add(view.value_gate);
  layer.output_gate.add(view.output_gate);

  const Tensor visible = visible_keys(view.starts, view.q.device());
  Tensor paid = first_token_share(view);
  // What is not selected is not paid, even where its logit alone would exceed the sum.
  const Tensor counts = visible > 1;
  const Tensor selected = facts != nullptr ? counts.logical_and(facts->has_first) : counts;
  paid = torch::where(selected.unsqueeze(1), paid, 0);
  // NaN says that a query attended to nothing: it must not vanish with the bit that it lacks.
  paid = torch::where(view.lse.isnan().logical_and(counts.unsqueeze(1)), view.lse, paid);
  const Tensor sums = paid.sum(0, /*keepdim=*/false, at::kDouble).to(at::kCPU);
  for (std::size_t h = 0; h < layer.first_token.size(); ++h) {
    layer.first_token[h] += sums[static_cast<std::int64_t>(h)].item<double>();
  }
  layer.queries += counts.sum().item<std::int64_t>();
  layer.even += torch::where(counts, visible.to(at::kDouble).reciprocal(), 0).sum().item<double>();
}

void SinkMeter::see_residual(std::int64_t index, const Tensor& residual, const Tensor& starts) {
  if (residual.numel() == 0) return;
  Residual& at = residual_[static_cast<std::size_t>(index)];
  at.squares += residual.to(at::kFloat).square().sum(at::kDouble).item<double>();
  at.values += residual.numel();
  const Tensor by_token = residual.abs().amax(1);
  const double largest = by_token.max().item<double>();
  if (largest <= at.size.largest || std::isnan(at.size.largest)) return;  // NaN stays
  const std::int64_t row = by_token.argmax().item<std::int64_t>();
  const auto bounds = starts.accessor<std::int64_t, 1>();
  std::int64_t n = 0;
  while (bounds[n + 1] <= row) ++n;
  at.size.largest = largest;
  at.size.position = row - bounds[n];
}

Sinks SinkMeter::result() const {
  Sinks sinks;
  const double none = std::numeric_limits<double>::quiet_NaN();
  for (const Layer& layer : layers_) {
    LayerSinks result{
        .first_token = {}, .value_gate = layer.value_gate.value(), .output_gate = layer.output_gate.value()};
    for (const double sum : layer.first_token) {
      result.first_token.push_back(layer.queries > 0 ? sum / static_cast<double>(layer.queries) : none);
    }
    sinks.layers.push_back(std::move(result));
  }
  for (const Residual& residual : residual_) {
    ResidualSize size = residual.size;
    if (residual.values > 0) size.rms = std::sqrt(residual.squares / static_cast<double>(residual.values));
    sinks.residual.push_back(size);
  }
  const Layer& first = layers_.front();
  sinks.queries = first.queries;
  sinks.even_share = first.queries > 0 ? first.even / static_cast<double>(first.queries) : none;
  return sinks;
}

}  // namespace gsa::eval
