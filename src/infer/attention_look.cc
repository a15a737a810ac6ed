#include "infer/attention_look.h"

#include <cmath>

#include "gsa/error.h"

namespace gsa::infer {

using at::Tensor;

namespace {

at::ScalarType real_type(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor rows_in_slots(const Tensor& pages, const Tensor& slots) {
  return pages.flatten(0, 1).index_select(0, slots);
}

// Keys in eight bits are numbers that the operator's type need not have: scored in float32 (float64 for float64), as
// gsa::decode does. On the CPU, because the operators on a GPU take 16 bits only.
ops::IndexerInputs widened(const ops::IndexerInputs& indexer, const ops::PagedCache& pages,
                           const Tensor& slots) {
  const at::ScalarType type = real_type(indexer.q);
  const auto widen = [&](const Tensor& x) { return x.to(at::kCPU).to(type); };
  ops::IndexerInputs result = indexer;
  result.q = widen(indexer.q);
  result.w = widen(indexer.w);
  if (indexer.bias) result.bias = widen(*indexer.bias);
  result.k = widen(rows_in_slots(*pages.index_k, slots)) *
             widen(rows_in_slots(*pages.index_k_scale, slots)).unsqueeze(1);
  return result;
}

// Numbers of the bits that are set.
std::vector<std::int64_t> set_bits(const Tensor& mask) {
  const Tensor words = mask.to(at::kCPU).flatten().contiguous();
  std::vector<std::int64_t> bits;
  for (std::int64_t i = 0; i < words.numel(); ++i) {
    const auto word = static_cast<std::uint32_t>(words.const_data_ptr<std::int32_t>()[i]);
    for (std::int64_t bit = 0; bit < 32; ++bit) {
      if ((word >> bit & 1U) != 0) bits.push_back(32 * i + bit);
    }
  }
  return bits;
}

}  // namespace

Tensor selected_positions(const ops::IndexerInputs& indexer, const ops::PagedCache& pages,
                          const Tensor& slots, std::int64_t k_t) {
  ops::IndexerInputs inputs = indexer;
  if (pages.index_k_scale) {
    inputs = widened(indexer, pages, slots);
  } else {
    inputs.k = rows_in_slots(*pages.index_k, slots);
  }
  inputs.q = inputs.q.unsqueeze(0);
  inputs.k = inputs.k.unsqueeze(0);
  inputs.w = inputs.w.unsqueeze(0);
  const ops::BudgetOptions budget{
      .mode = "fixed", .base = k_t, .min = k_t, .max = k_t, .mean_variance = std::nullopt};
  const std::vector<std::int64_t> positions = set_bits(ops::select(inputs, budget).mask);
  if (static_cast<std::int64_t>(positions.size()) != k_t) {
    throw Error(concat("look: expected the ", k_t, " keys that gsa::decode selected, got ", positions.size(),
                       " from gsa::select: are there scores that are not finite?"));
  }
  return torch::tensor(at::ArrayRef<std::int64_t>(positions), at::kLong);
}

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
