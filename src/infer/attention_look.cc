#include "infer/attention_look.h"

#include <cmath>

namespace gsa::infer {

using at::Tensor;

namespace {

at::ScalarType real_type(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

HeadWeights head_weights(const Tensor& q, const ops::PagedCache& pages, const Tensor& slots,
                         const Tensor& positions) {
  const std::int64_t heads = q.size(0), kv_heads = pages.k.size(2), group = heads / kv_heads;
  const at::ScalarType type = real_type(q);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(1)));
  // A head of keys at a time: all of a long text in float32 would be twice the cache.
  std::vector<Tensor> parts;
  for (std::int64_t h = 0; h < kv_heads; ++h) {
    const Tensor keys = pages.k.select(2, h).flatten(0, 1).index_select(0, slots).to(type);
    parts.push_back(at::matmul(q.narrow(0, h * group, group).to(type), keys.t()));
  }
  const Tensor logits = at::cat(parts).to(at::kDouble) * scale;  // [heads, keys]
  const Tensor chosen = logits.index_select(1, positions.to(logits.device()));
  const bool all = positions.size(0) == slots.size(0);
  const Tensor kept = all ? torch::ones({heads}, logits.options())
                          : (at::logsumexp(chosen, 1) - at::logsumexp(logits, 1)).exp();
  return {at::softmax(chosen, 1).cpu(), kept.cpu()};
}

LayerLook layer_look(const HeadWeights& heads, const Tensor& positions) {
  LayerLook look;
  look.k_t = positions.size(0);
  const auto* first = positions.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < look.k_t; ++i) look.positions.push_back(static_cast<std::int32_t>(first[i]));
  const Tensor weights = heads.weights.mean(0).to(at::kFloat).contiguous();
  look.weights.assign(weights.const_data_ptr<float>(), weights.const_data_ptr<float>() + look.k_t);
  look.kept_mass = heads.kept_mass.mean().item<double>();
  return look;
}

}  // namespace gsa::infer
