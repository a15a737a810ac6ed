#include "torch/arguments.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "gsa/error.h"
#include "kernels/attention/query_tiles.h"
#include "torch/parallel.h"

namespace gsa::binding {

namespace {

constexpr std::int64_t kMaxHeads = 1 << 16;

ScoreForm score_form(const char* op, std::string_view form) {
  if (form == "sigmoid") return ScoreForm::sigmoid;
  if (form == "relu") return ScoreForm::relu;
  bad_argument(op, "form", "'sigmoid' or 'relu'", concat("'", form, "'"));
}

BudgetMode budget_mode(const char* op, std::string_view mode) {
  if (mode == "inverse") return BudgetMode::inverse;
  if (mode == "proportional") return BudgetMode::proportional;
  if (mode == "fixed") return BudgetMode::fixed;
  bad_argument(op, "budget", "'inverse', 'proportional' or 'fixed'", concat("'", mode, "'"));
}

void check_mean_variance(const char* op, const OptTensor& tensor, const at::Device& device) {
  if (!tensor) return;
  if (!tensor->device().is_cpu()) check_device(op, "mean_variance", *tensor, device);
  if (tensor->numel() != 1) bad_argument(op, "mean_variance", "one element", to_string(tensor->sizes()));
  if (tensor->scalar_type() != at::kDouble && tensor->scalar_type() != at::kFloat) {
    bad_argument(op, "mean_variance", "float64 or float32", c10::toString(tensor->scalar_type()));
  }
}

// Any bit that stands for a position beyond the visible ones, in a row of `words` words.
bool has_bits_beyond(const std::uint32_t* row, std::int64_t words, std::int64_t visible) {
  const std::int64_t full = visible / 32, rest = visible % 32;
  std::uint32_t found = rest == 0 ? 0 : row[full] >> rest;
  for (std::int64_t i = full + (rest != 0); i < words; ++i) found |= row[i];
  return found != 0;
}

void check_mask_bits(const char* op, const ConstMask& mask, const Sequences& sequences,
                     const Parallel& parallel) {
  constexpr std::int64_t kBlock = 256;  // queries a task
  for (std::int64_t n = 0; n < sequences.count; ++n) {
    const std::int64_t queries = sequences.queries(n), first = sequences.first_position(n);
    const auto check_block = [&](std::int64_t block, int) {
      for (std::int64_t i = block * kBlock; i < std::min(queries, (block + 1) * kBlock); ++i) {
        const std::int64_t row = sequences.q_begin[n] + i;
        if (has_bits_beyond(mask.words + row * mask.words_per_query, mask.words_per_query, first + i + 1)) {
          bad_argument(op, "mask",
                       concat("no bit beyond position ", first + i, " for query ", i, " of sequence ", n),
                       "a bit beyond it");
        }
      }
    };
    parallel.run((queries + kBlock - 1) / kBlock, check_block);
  }
}

}  // namespace

void check_indexer_ranks(const char* op, const IndexerNames& names, const IndexerTensors& tensors,
                         const LayoutTensors& layout) {
  const bool packed = layout.packed();
  check_rank(op, names.q, tensors.q, layout.token_dims() + 2,
             packed ? "[T, indexer heads, d]" : "[B, L, indexer heads, d]");
  check_rank(op, names.k, tensors.k, layout.token_dims() + 1, packed ? "[T, d]" : "[B, S, d]");
}

BoundIndexer bind_indexer_but_keys(const char* op, const IndexerNames& names, const IndexerTensors& tensors,
                                   const TokenLayout& layout, std::optional<at::ScalarType> key_type) {
  const std::int64_t heads = tensors.q.size(-2), head_size = tensors.q.size(-1);
  check_range(op, names.q, "a number of indexer heads", heads, 1, kMaxIndexHeads);
  check_range(op, names.q, "an indexer head size", head_size, 1, kMaxHeadSize);
  const DType dtype = dtype_of(op, names.q, tensors.q);
  const at::ScalarType type = scalar_type(dtype);
  check_like(op, names.q, tensors.q, type, joined(layout.q_tokens, {heads, head_size}), layout.device);
  check_like(op, names.k, tensors.k, key_type.value_or(type), joined(layout.k_tokens, {head_size}),
             layout.device);
  check_like(op, names.w, tensors.w, type, joined(layout.q_tokens, {heads}), layout.device);
  if (tensors.bias) check_like(op, names.bias, *tensors.bias, type, {heads}, layout.device);
  check_finite(op, names.scale, tensors.scale);

  BoundIndexer bound{dtype,
                     {},
                     head_rows(tensors.q),
                     {},
                     scalar_rows(tensors.w),
                     tensors.bias ? tensors.bias->contiguous() : Tensor()};
  bound.view = {.heads = heads,
                .head_size = head_size,
                .q = bound.q.rows,
                .k = {},
                .w = bound.w.rows,
                .bias = tensors.bias ? bound.bias.const_data_ptr() : nullptr,
                .scale = tensors.scale,
                .form = score_form(op, tensors.form)};
  return bound;
}

BoundIndexer bind_indexer(const char* op, const IndexerNames& names, const IndexerTensors& tensors,
                          const TokenLayout& layout) {
  BoundIndexer bound = bind_indexer_but_keys(op, names, tensors, layout);
  bound.k = vector_rows(tensors.k);
  bound.view.k = bound.k.rows;
  return bound;
}

std::int64_t BoundBudget::max_selected() const {
  // Only the variance moves k_t away from the base.
  const bool moves = view.mode != BudgetMode::fixed && (view.mean_variance >= 0 || mean_variance.defined());
  return moves ? view.max : std::clamp(view.base, view.min, view.max);
}

BoundBudget bind_budget(const char* op, const BudgetTensors& tensors, const at::Device& device) {
  check_range(op, "k_base", "a number of keys", tensors.base, 1, kMaxTokens);
  check_range(op, "k_max", "a number of keys", tensors.max, 1, kMaxTokens);
  check_range(op, "k_min", "a number of keys up to k_max", tensors.min, 1, tensors.max);
  check_mean_variance(op, tensors.mean_variance, device);
  BoundBudget bound;
  bound.view.mode = budget_mode(op, tensors.mode);
  bound.view.base = tensors.base;
  bound.view.min = tensors.min;
  bound.view.max = tensors.max;
  if (!tensors.mean_variance) return bound;
  if (tensors.mean_variance->device().is_cpu()) {
    bound.view.mean_variance = tensors.mean_variance->item().toDouble();
    check_finite(op, "mean_variance", bound.view.mean_variance);
  } else {
    bound.mean_variance = tensors.mean_variance->to(at::kDouble);
    bound.view.device_mean_variance = bound.mean_variance.const_data_ptr<double>();
  }
  return bound;
}

void check_attention_ranks(const char* op, const Tensor& q, const Tensor& k, const LayoutTensors& layout) {
  const bool packed = layout.packed();
  check_rank(op, "q", q, layout.token_dims() + 2, packed ? "[T, heads, d]" : "[B, L, heads, d]");
  check_rank(op, "k", k, layout.token_dims() + 2,
             packed ? "[T, key/value heads, d]" : "[B, S, key/value heads, d]");
}

AttendShape attention_shape(const char* op, const Tensor& q, const Tensor& k, const Tensor* v,
                            std::optional<double> scale, const TokenLayout& layout) {
  const std::int64_t heads = q.size(-2), head_size = q.size(-1), kv_heads = k.size(-2);
  check_range(op, "q", "a number of heads", heads, 1, kMaxHeads);
  check_range(op, "q", "a head size", head_size, 1, kMaxHeadSize);
  check_range(op, "k", "a number of key/value heads", kv_heads, 1, kMaxHeads);
  if (heads % kv_heads != 0) {
    bad_argument(op, "k", concat("a number of key/value heads that divides ", heads, " heads"),
                 concat(kv_heads));
  }
  const DType dtype = dtype_of(op, "q", q);
  const at::ScalarType type = scalar_type(dtype);
  const Shape key_shape = joined(layout.k_tokens, {kv_heads, head_size});
  check_like(op, "q", q, type, joined(layout.q_tokens, {heads, head_size}), layout.device);
  check_like(op, "k", k, type, key_shape, layout.device);
  if (v != nullptr) check_like(op, "v", *v, type, key_shape, layout.device);
  const double used_scale = scale.value_or(1 / std::sqrt(static_cast<double>(head_size)));
  check_finite(op, "scale", used_scale);
  return {.dtype = dtype, .heads = heads, .kv_heads = kv_heads, .head_size = head_size, .scale = used_scale};
}

BoundAttention bind_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor* v,
                              std::optional<double> scale, const TokenLayout& layout) {
  return {attention_shape(op, q, k, v, scale, layout), head_rows(q), head_rows(k),
          v != nullptr ? head_rows(*v) : BoundRows{}};
}

BoundLayer bind_layer(const char* op, const Tensor& q, const Tensor& k, const Tensor* v,
                      std::optional<double> scale, const IndexerTensors& indexer,
                      const LayoutTensors& layout) {
  check_attention_ranks(op, q, k, layout);
  check_indexer_ranks(op, kIndexNames, indexer, layout);
  BoundLayer bound;
  bound.layout = read_layout(op, "q", q, "k", k, layout);
  bound.attention = bind_attention(op, q, k, v, scale, bound.layout);
  bound.indexer = bind_indexer(op, kIndexNames, indexer, bound.layout);
  if (bound.indexer.dtype != bound.attention.shape.dtype) {
    bad_argument(op, "index_q", concat(name_of(bound.attention.shape.dtype), ", the type of q"),
                 name_of(bound.indexer.dtype));
  }
  return bound;
}

std::int64_t row_width(const char* op, const TokenLayout& layout,
                       const std::optional<c10::SymInt>& max_keys) {
  if (!max_keys) return layout.longest_keys;
  const std::int64_t width = max_keys->guard_int(__FILE__, __LINE__);
  if (layout.q_tokens.size() != 1) {
    bad_argument(op, "max_keys", "None without cu_seqlens: k says how many keys there are", concat(width));
  }
  check_range(op, "max_keys", "at least the keys of the longest sequence,", width, layout.longest_keys,
              kMaxTokens);
  return width;
}

BoundMask bind_mask(const char* op, const OptTensor& mask, const TokenLayout& layout) {
  if (!mask) return {};
  const std::int64_t least = mask_words(layout.longest_keys);
  const bool packed = layout.q_tokens.size() == 1;
  const std::int64_t words = packed && mask->dim() == 2 ? std::max(least, mask->size(-1)) : least;
  if (mask->scalar_type() == at::kBool) {
    bad_argument(op, "mask", "int32 words of 32 positions each, as gsa::pack_mask makes of a bool mask",
                 "Bool");
  }
  check_like(op, "mask", *mask, at::kInt, joined(layout.q_tokens, {words}), layout.device);
  const Tensor kept = mask->contiguous();
  const ConstMask view{reinterpret_cast<const std::uint32_t*>(kept.const_data_ptr<std::int32_t>()), words};
  if (kept.device().is_cpu()) check_mask_bits(op, view, layout.table.view(), TorchParallel());
  return {kept, view};
}

QueryTiles BoundTiles::view() const {
  static const std::int32_t none = 0;  // an empty sample has a pointer too: null would mean every tile
  if (every) return {};
  return {numbers.empty() ? &none : numbers.data(), static_cast<std::int64_t>(numbers.size())};
}

BoundTiles bind_query_tiles(const char* op, const OptTensor& query_tiles, const TokenLayout& layout) {
  if (!query_tiles) return {};
  BoundTiles bound{.every = false, .numbers = {}};
  const std::int64_t total = total_query_tiles(layout.table.view());
  for (const std::int64_t number : integers(op, "query_tiles", *query_tiles)) {
    check_range(op, "query_tiles", "numbers of tiles,", number, 0, total - 1);
    if (!bound.numbers.empty() && number <= bound.numbers.back()) {
      bad_argument(op, "query_tiles", "numbers that ascend, each once",
                   concat(number, " after ", bound.numbers.back()));
    }
    bound.numbers.push_back(static_cast<std::int32_t>(number));
  }
  return bound;
}

Tensor bind_per_query(const char* op, const char* argument, const Tensor& tensor, at::ScalarType type,
                      const TokenLayout& layout, std::initializer_list<std::int64_t> tail) {
  check_like(op, argument, tensor, type, joined(layout.q_tokens, tail), layout.device);
  return tensor.contiguous();
}

void check_rotary_tables(const char* op, const RotaryTables& tables, std::int64_t tokens,
                         std::int64_t head_size, at::ScalarType real, const at::Device& device) {
  const auto& [cos_name, cos, sin_name, sin] = tables;
  check_rank(op, cos_name, cos, 2, "[T, pairs]");
  check_range(op, cos_name, "pairs, at most half a head,", cos.size(1), 0, head_size / 2);
  check_like(op, cos_name, cos, real, {tokens, cos.size(1)}, device);
  check_like(op, sin_name, sin, real, {tokens, cos.size(1)}, device);
}

}  // namespace gsa::binding
