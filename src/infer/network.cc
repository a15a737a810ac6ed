#include "infer/network.h"

#include <cmath>
#include <utility>

#include "gsa/error.h"
#include "infer/attention_look.h"
#include "nn/dense_attention.h"
#include "torch/ops.h"

namespace gsa::infer {

using at::Tensor;

// What a layer's projections give, ready for attention, [T, ...]; keys and values are in the cache by then.
struct Network::Inputs {
  Tensor q;
  std::optional<ops::IndexerInputs>
      indexer;                 // but for its keys, which lie in the cache; of a layer that selects
  ops::OptTensor output_gate;  // the sigmoid's argument
  ops::OptTensor value_gate;   // likewise; of values that lie in the cache by then
};

struct Network::Attended {
  Tensor out;  // [T, heads, head_size], gated
  Tensor k_t;  // integers [T]
};

struct Network::Selection {
  std::vector<ops::SelectedPositions> parts;  // of a pass over pages: one for each of its parts
  Tensor mask, k_t;                           // of any other: [T, words], [T]
};

Network::Network(Weights weights)
    : weights_(std::move(weights)),
      rope_(weights_.config.attention.head_size, weights_.config.attention.rope,
            /*with_attention_factor=*/true) {
  const at::Device device = weights_.embedding.device();
  const nn::AttentionConfig& config = weights_.config.attention;
  frequencies_ = rope_.frequencies_on(device);
  if (weights_.selects) {
    indexer_rope_.emplace(config.indexer_rope_size(), config.rope, /*with_attention_factor=*/false);
    indexer_frequencies_ = indexer_rope_->frequencies_on(device);
  }
}

Network::Tables Network::tables(const Tensor& positions) const {
  const at::ScalarType type = weights_.embedding.scalar_type();
  Tables tables;
  tables.rope = rope_.tables(positions, type, frequencies_);
  if (indexer_rope_) tables.indexer_rope = indexer_rope_->tables(positions, type, indexer_frequencies_);
  return tables;
}

// Where skinny_linear serves all products of a layer and the one behind them, a step is a chain of kernels
// that fetch their weights ahead of their inputs.
bool Network::skinny_linear_serves(std::int64_t tokens) const {
  const nn::AttentionConfig& config = weights_.config.attention;
  const auto serves = [&](std::int64_t size, bool norm) {
    return ops::skinny_linear_serves(weights_.embedding.device(), weights_.embedding.scalar_type(), tokens,
                                     size, norm);
  };
  return serves(config.d_model, true) && serves(config.heads * config.head_size, false) &&
         serves(weights_.config.intermediate, false);
}

Network::Inputs Network::project(std::int64_t n, const Tensor& product, const Tables& tables,
                                 const Pass& pass, const Cache& cache) const {
  const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(n)];
  const nn::AttentionConfig& config = weights_.config.attention;
  const InputColumns& columns = layer.columns;
  const std::int64_t value_gate = columns.q + columns.k + columns.v + columns.index_q + columns.index_k;
  const std::int64_t output_gate = value_gate + columns.value_gate;
  const ops::PagedCache pages = cache.pages(n);
  if (config.qk_norm) {  // in place: the product is nobody else's
    const auto norm = [&](const Tensor& weight, std::int64_t begin, std::int64_t width) {
      const Tensor part = product.narrow(1, begin, width);
      const Tensor rows = part.reshape({-1, config.head_size});
      part.copy_(ops::rms_norm(rows, {}, weight, weights_.config.rms_eps).y.view(part.sizes()));
    };
    norm(layer.q_norm, 0, columns.q);
    norm(layer.k_norm, columns.q, columns.k);
  }

  ops::AppendInputs append;
  append.x = product;
  append.cos = tables.rope.cos;
  append.sin = tables.rope.sin;
  append.slots = pass.slots;
  append.k = pages.k;
  append.v = pages.v;
  append.q_heads = config.heads;
  append.value_gate = columns.value_gate;
  if (columns.index_w > 0) {
    append.index_cos = tables.indexer_rope.cos;
    append.index_sin = tables.indexer_rope.sin;
    append.index_k = pages.index_k;
    append.index_k_scale = pages.index_k_scale;
    append.index_heads = config.indexer.heads;
    append.index_w_column = output_gate + columns.output_gate;
    append.sigmoid_w = config.indexer.form == ScoreForm::sigmoid;
  }
  const ops::Appended appended = ops::append(append);

  Inputs inputs;
  inputs.q = appended.q;
  if (columns.value_gate > 0) inputs.value_gate = product.narrow(1, value_gate, columns.value_gate);
  if (columns.output_gate > 0) {
    inputs.output_gate = append.x.narrow(1, output_gate, columns.output_gate);
    if (config.output_gate == nn::GateKind::elementwise) {
      inputs.output_gate = inputs.output_gate->unflatten(1, {config.heads, config.head_size});
    }
  }
  if (pass.sparse && columns.index_w > 0) {
    inputs.indexer.emplace();
    inputs.indexer->q = appended.index_q;
    inputs.indexer->w = appended.index_w;
    if (layer.index_bias.defined()) inputs.indexer->bias = layer.index_bias;
    inputs.indexer->scale = 1 / std::sqrt(static_cast<double>(config.indexer.head_size));
    inputs.indexer->form = nn::name_of(config.indexer.form);
  }
  return inputs;
}

Network::Attended Network::attend_pages(std::int64_t n, const Inputs& inputs, const Pass& pass,
                                        const Cache& cache, bool keep, Selection& selection) const {
  const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(n)];
  const bool follows = pass.sparse && !inputs.indexer;
  if (!follows) selection.parts.clear();
  ops::PagedCache pages = cache.pages(n);
  ops::BudgetOptions budget;
  if (inputs.indexer) {
    budget = nn::budget_options(weights_.config.attention.budget, layer.mean_variance);
  } else {
    pages.index_k.reset();
    pages.index_k_scale.reset();
  }
  std::vector<Tensor> outs, counts;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < pass.parts.size(); ++i) {
    const PagedPart& part = pass.parts[i];
    const auto rows = [&](const Tensor& x) {
      return x.narrow(0, begin, part.sequences * part.queries).unflatten(0, {part.sequences, part.queries});
    };
    pages.block_table = part.block_table;
    pages.lengths = part.lengths;
    pages.max_length = part.max_length;
    std::optional<ops::IndexerInputs> indexer = inputs.indexer;
    if (indexer) {
      indexer->q = rows(indexer->q);
      indexer->w = rows(indexer->w);
    }
    ops::OptTensor gate;
    if (inputs.output_gate) gate = rows(*inputs.output_gate);
    ops::Decoded decoded;
    if (follows) {
      decoded = ops::decode_selected(rows(inputs.q), pages, selection.parts[i], gate);
    } else if (indexer && keep) {
      ops::DecodedSelection both = ops::decode_with_selection(rows(inputs.q), pages, *indexer, budget, gate);
      decoded = both.decoded;
      selection.parts.push_back(std::move(both.selection));
    } else {
      decoded = ops::decode(rows(inputs.q), pages, indexer, budget, gate);
    }
    outs.push_back(decoded.out.flatten(0, 1));
    counts.push_back(decoded.k_t.flatten());
    begin += part.sequences * part.queries;
  }
  if (outs.size() == 1) return {outs[0], counts[0]};
  return {at::cat(outs), at::cat(counts)};
}

Network::Attended Network::attend_rows(std::int64_t n, const Inputs& inputs, const Pass& pass,
                                       const Cache& cache, bool keep, Selection& selection) const {
  const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(n)];
  const Cache::Rows rows = cache.read(n, pass.key_slots);
  const ops::Layout layout{pass.starts_q, pass.starts_k, std::nullopt};
  Attended result;
  if (inputs.indexer) {
    ops::IndexerInputs indexer = *inputs.indexer;
    indexer.k = rows.index_k;
    const ops::BudgetOptions budget =
        nn::budget_options(weights_.config.attention.budget, layer.mean_variance);
    selection.mask.reset();  // the mask of the layers before goes before there is another one
    const auto [attention, selected] =
        keep ? ops::sparse_attend_with_mask(inputs.q, rows.k, rows.v, indexer, budget, {}, layout)
             : ops::sparse_attend(inputs.q, rows.k, rows.v, indexer, budget, {}, layout);
    result = {attention.out, selected.k_t};
    if (keep) selection = {.parts = {}, .mask = selected.mask, .k_t = selected.k_t};
  } else if (pass.sparse) {
    const ops::Attention attention = ops::attend(inputs.q, rows.k, rows.v, selection.mask, {}, layout);
    result = {attention.out, selection.k_t};
  } else {
    // Without a prefix, whole prompts: torch's own kernel may serve.
    const bool square = at::equal(pass.starts_q, pass.starts_k);
    const ops::Attention attention = square ? nn::dense_attend(inputs.q, rows.k, rows.v, pass.whole)
                                            : ops::attend(inputs.q, rows.k, rows.v, {}, {}, layout);
    result = {attention.out, pass.positions + 1};
  }
  if (inputs.output_gate) result.out = ops::gate(result.out, *inputs.output_gate);
  return result;
}

LayerLook Network::look(std::int64_t n, const Inputs& inputs, const Pass& pass, const Cache& cache,
                        const Selection& selection) const {
  const ops::PagedCache pages = cache.pages(n);
  Tensor positions;
  if (pass.sparse) {
    const ops::SelectedPositions& selected = selection.parts.front();
    const std::int64_t k_t = selected.k_t.item<std::int64_t>();
    if (k_t == 0) {
      throw Error(concat("look: expected layer ", n,
                         " to select keys, got none: are there scores that are not finite?"));
    }
    positions = selected.positions.flatten().narrow(0, 0, k_t).to(at::kCPU, at::kLong);
  } else {
    positions = torch::arange(pass.key_slots.size(0), at::kLong);
  }
  LayerLook look = layer_look(head_weights(inputs.q.squeeze(0), pages, pass.key_slots, positions), positions);
  const auto mean = [](const ops::OptTensor& gate) {
    return gate ? gate->to(at::kDouble).sigmoid().mean().item<double>() : 1.0;
  };
  look.value_gate = mean(inputs.value_gate);
  look.output_gate = mean(inputs.output_gate);
  return look;
}

Tensor Network::forward(const Pass& pass, Cache& cache, const std::optional<Tensor>& key_sum,
                        std::vector<LayerLook>* looks) const {
  const double eps = weights_.config.rms_eps;
  const std::int64_t tokens = pass.tokens.size(0);
  const bool skinny = skinny_linear_serves(tokens);
  const Tables tables = this->tables(pass.positions);
  Tensor x = at::embedding(weights_.embedding, pass.tokens);
  ops::OptTensor branch;  // what is still to be added to x: the next norm does it. Not where rows are few
  const auto normed = [&](const Tensor& norm) {
    const ops::Normed result = ops::rms_norm(x, branch, norm, eps);
    x = result.sum;
    return result.y;
  };
  Selection selection;
  for (std::size_t n = 0; n < weights_.layers.size(); ++n) {
    const LayerWeights& layer = weights_.layers[n];
    const auto index = static_cast<std::int64_t>(n);
    const bool is_shared = n + 1 < weights_.layers.size() && !weights_.config.has_indexer(index + 1);
    const bool keep = is_shared || looks != nullptr;
    ops::OptTensor bias;
    if (layer.input_bias.defined()) bias = layer.input_bias;
    Tensor attended;
    {
      const Tensor product = skinny ? ops::skinny_linear({.x = x,
                                                          .weight = layer.input,
                                                          .norm = layer.input_norm,
                                                          .bias = bias,
                                                          .eps = eps,
                                                          .settled = true})
                                    : at::linear(normed(layer.input_norm), layer.input, bias);
      const Inputs inputs = project(index, product, tables, pass, cache);
      const Attended result = pass.parts.empty() ? attend_rows(index, inputs, pass, cache, keep, selection)
                                                 : attend_pages(index, inputs, pass, cache, keep, selection);
      if (key_sum) key_sum->add_(result.k_t.sum(at::kLong));
      if (looks != nullptr) looks->push_back(look(index, inputs, pass, cache, selection));
      attended = result.out.reshape({tokens, -1});
    }
    if (skinny) {
      x = ops::skinny_linear({.x = attended, .weight = layer.output, .residual = x, .settled = true});
      const Tensor hidden = ops::skinny_linear({.x = x,
                                                .weight = layer.gate_up,
                                                .norm = layer.post_norm,
                                                .eps = eps,
                                                .swiglu = true,
                                                .settled = true});
      x = ops::skinny_linear({.x = hidden, .weight = layer.down, .residual = x, .settled = true});
    } else {
      branch = at::linear(attended, layer.output);
      const Tensor hidden = normed(layer.post_norm);
      branch = at::linear(ops::swiglu(at::linear(hidden, layer.gate_up)), layer.down);
    }
  }
  return branch ? x + *branch : x;
}

Tensor Network::logits(const Tensor& residual) const {
  const double eps = weights_.config.rms_eps;
  const Tensor logits = skinny_linear_serves(residual.size(0))
                            ? ops::skinny_linear({.x = residual,
                                                  .weight = weights_.output,
                                                  .norm = weights_.norm,
                                                  .eps = eps,
                                                  .settled = true})
                            : at::linear(ops::rms_norm(residual, {}, weights_.norm, eps).y, weights_.output);
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

}  // namespace gsa::infer
