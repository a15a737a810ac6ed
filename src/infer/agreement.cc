// How much of the selection 8-bit indexer keys keep.
#include <algorithm>
#include <bit>

#include "infer/engine.h"

namespace gsa::infer {
namespace {

using at::Tensor;

// Counts over the queries of one layer that leave out a key they see.
struct LayerAgreement {
  double sum = 0;
  std::int64_t queries = 0;
};

LayerAgreement compare(const Tensor& full, const Tensor& reduced, const Tensor& k_t, const Tensor& visible) {
  const Tensor a = full.cpu().contiguous(), b = reduced.cpu().contiguous();
  const Tensor counts = k_t.cpu().contiguous(), all = visible.cpu().to(at::kInt).contiguous();
  const std::int64_t words = a.size(1);
  const auto* x = a.const_data_ptr<std::int32_t>();
  const auto* y = b.const_data_ptr<std::int32_t>();
  LayerAgreement result;
  for (std::int64_t t = 0; t < a.size(0); ++t) {
    const std::int32_t selected = counts.const_data_ptr<std::int32_t>()[t];
    if (selected == 0 || selected == all.const_data_ptr<std::int32_t>()[t]) continue;
    std::int64_t common = 0;
    for (std::int64_t i = t * words; i < (t + 1) * words; ++i) {
      common += std::popcount(static_cast<std::uint32_t>(x[i] & y[i]));
    }
    result.sum += static_cast<double>(common) / selected;
    ++result.queries;
  }
  return result;
}

}  // namespace

SelectionAgreement index_int8_agreement(nn::Model& model, std::span<const std::int64_t> tokens) {
  SelectionAgreement result;
  if (!model->config().attention.sparse || tokens.empty()) return result;
  const torch::NoGradGuard no_grad;
  const bool training = model->is_training();
  model->eval();
  std::vector<LayerAgreement> layers;
  nn::ModelForwardOptions options;
  options.observe_attention = [&](std::int64_t layer, const nn::AttentionView& view) {
    if (!model->config().has_indexer(layer)) return;  // its selection is another layer's
    const ops::Layout layout{view.starts, view.starts, std::nullopt};
    const Tensor full = ops::select_mask(*view.indexer, view.threshold, view.tie_cut, layout);
    const ops::QuantizedKeys keys = ops::quantize_index_keys(view.indexer->k);
    ops::IndexerInputs reduced = *view.indexer;
    reduced.k = (keys.values.to(at::kFloat) * keys.scale.unsqueeze(1)).to(reduced.k.scalar_type());
    const Tensor visible = torch::arange(1, view.k_t.size(0) + 1, at::kInt);
    layers.push_back(compare(full, ops::select(reduced, *view.budget, layout).mask, view.k_t, visible));
  };
  const std::vector<std::int64_t> ids(tokens.begin(), tokens.end());
  const Tensor input = torch::tensor(at::ArrayRef<std::int64_t>(ids), at::kLong)
                           .to(model->model->embed_tokens->weight.device());
  model->forward(input.unsqueeze(0), options);
  model->train(training);
  if (layers.empty() || layers.front().queries == 0) return result;
  result = {.mean = 0, .lowest = 1, .queries = layers.front().queries};
  for (const LayerAgreement& layer : layers) {
    const double share = layer.queries == 0 ? 1 : layer.sum / static_cast<double>(layer.queries);
    result.mean += share / static_cast<double>(layers.size());
    result.lowest = std::min(result.lowest, share);
  }
  return result;
}

}  // namespace gsa::infer
