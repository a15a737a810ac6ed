// select, select_mask and index_scores.
#include <limits>

#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/fake.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/schema.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  using namespace schema;
  // Which keys a query attends to. No gradient.
  define(m, "select(", kIndexer, "=None, *, ", kScores, ", ", kBudget, ", ", kLayout, ", ", kWidth,
         ") -> (Tensor mask, Tensor k_t, Tensor variance, Tensor threshold, Tensor tie_cut)");
  // The mask of select() again, bit for bit.
  define(m, "select_mask(", kIndexer, ", Tensor threshold, Tensor tie_cut, *, ", kScores, ", ", kLayout, ", ",
         kWidth, ") -> Tensor");
  // The scores that select() compares: Real [B, L, S], -inf where a key is not visible. Quadratic: for
  // looking.
  define(m, "index_scores(", kIndexer, "=None, *, ", kScores, ", ", kLayout, ", ", kWidth, ") -> Tensor");
}

namespace {

// ---- Arguments

// What the three share. max_keys: the width of a row of the result.
struct SelectArguments {
  IndexerTensors indexer;
  LayoutTensors layout;
  std::optional<c10::SymInt> max_keys;
};

// The registered signatures; `run` is the implementation or the fake kernel.
template <Tensor5 (*run)(const SelectArguments& in, const BudgetTensors& budget)>
Tensor5 select_by(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias, double scale,
                  std::string_view form, std::string_view budget, std::int64_t k_base, std::int64_t k_min,
                  std::int64_t k_max, const OptTensor& mean_variance, const OptTensor& cu_seqlens_q,
                  const OptTensor& cu_seqlens_k, const OptTensor& q_position,
                  std::optional<c10::SymInt> max_keys) {
  return run({.indexer = {.q = q, .k = k, .w = w, .bias = bias, .scale = scale, .form = form},
              .layout = {cu_seqlens_q, cu_seqlens_k, q_position},
              .max_keys = std::move(max_keys)},
             {.mode = budget, .base = k_base, .min = k_min, .max = k_max, .mean_variance = mean_variance});
}

template <Tensor (*run)(const SelectArguments& in, const Tensor& threshold, const Tensor& tie_cut)>
Tensor select_mask_by(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias,
                      const Tensor& threshold, const Tensor& tie_cut, double scale, std::string_view form,
                      const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                      const OptTensor& q_position, std::optional<c10::SymInt> max_keys) {
  return run({.indexer = {.q = q, .k = k, .w = w, .bias = bias, .scale = scale, .form = form},
              .layout = {cu_seqlens_q, cu_seqlens_k, q_position},
              .max_keys = std::move(max_keys)},
             threshold, tie_cut);
}

template <Tensor (*run)(const SelectArguments& in)>
Tensor index_scores_by(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias, double scale,
                       std::string_view form, const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                       const OptTensor& q_position, std::optional<c10::SymInt> max_keys) {
  return run({.indexer = {.q = q, .k = k, .w = w, .bias = bias, .scale = scale, .form = form},
              .layout = {cu_seqlens_q, cu_seqlens_k, q_position},
              .max_keys = std::move(max_keys)});
}

// What every one of them does first.
struct Prepared {
  std::unique_ptr<Backend> backend;
  TokenLayout layout;
  Shape rows;  // of the result: a row for each query
  BoundIndexer indexer;
};

enum class RowOf { mask_words, scores };

Prepared prepare(const char* op, RowOf row, const SelectArguments& in) {
  const Tensor& q = in.indexer.q;
  check_indexer_ranks(op, kPlainNames, in.indexer, in.layout);
  std::unique_ptr<Backend> backend = backend_of(q);
  TokenLayout layout = read_layout(op, "q", q, "k", in.indexer.k, in.layout);
  const std::int64_t keys = row_width(op, layout, in.max_keys);
  Shape rows = joined(layout.q_tokens, {row == RowOf::scores ? keys : mask_words(keys)});
  check_result(op, "q", rows, row == RowOf::scores ? real_type(dtype_of(op, "q", q)) : at::kInt);
  BoundIndexer indexer = bind_indexer(op, kPlainNames, in.indexer, layout);
  return {std::move(backend), std::move(layout), std::move(rows), std::move(indexer)};
}

// ---- Implementation

Mask writable(const Tensor& mask) {
  return {reinterpret_cast<std::uint32_t*>(mask.mutable_data_ptr<std::int32_t>()), mask.size(-1)};
}

Tensor5 select(const SelectArguments& in, const BudgetTensors& budget) {
  constexpr char op[] = "select";
  const auto [backend, layout, rows, indexer] = prepare(op, RowOf::mask_words, in);
  const BoundBudget bound_budget = bind_budget(op, budget, layout.device);

  const at::ScalarType real = real_type(indexer.dtype);
  const Tensor mask = empty(op, "q", rows, at::kInt, layout.device);
  const Tensor k_t = empty(op, "q", layout.q_tokens, at::kInt, layout.device);
  const Tensor variance = empty(op, "q", layout.q_tokens, real, layout.device);
  const Tensor threshold = empty(op, "q", layout.q_tokens, real, layout.device);
  const Tensor tie_cut = empty(op, "q", layout.q_tokens, at::kInt, layout.device);
  if (layout.queries() > 0) {
    backend->select({.dtype = indexer.dtype,
                     .indexer = indexer.view,
                     .budget = bound_budget.view,
                     .sequences = layout.table.view(),
                     .mask = writable(mask),
                     .k_t = k_t.mutable_data_ptr<std::int32_t>(),
                     .variance = variance.mutable_data_ptr(),
                     .threshold = threshold.mutable_data_ptr(),
                     .tie_cut = tie_cut.mutable_data_ptr<std::int32_t>()});
  }
  return {mask, k_t, variance, threshold, tie_cut};
}

Tensor select_mask(const SelectArguments& in, const Tensor& threshold, const Tensor& tie_cut) {
  constexpr char op[] = "select_mask";
  const auto [backend, layout, rows, indexer] = prepare(op, RowOf::mask_words, in);
  const Tensor bound_threshold = bind_per_query(op, "threshold", threshold, real_type(indexer.dtype), layout);
  const Tensor bound_tie_cut = bind_per_query(op, "tie_cut", tie_cut, at::kInt, layout);

  const Tensor mask = empty(op, "q", rows, at::kInt, layout.device);
  if (layout.queries() > 0) {
    backend->select_mask({.dtype = indexer.dtype,
                          .indexer = indexer.view,
                          .sequences = layout.table.view(),
                          .threshold = bound_threshold.const_data_ptr(),
                          .tie_cut = bound_tie_cut.const_data_ptr<std::int32_t>(),
                          .mask = writable(mask)});
  }
  return mask;
}

Tensor index_scores(const SelectArguments& in) {
  constexpr char op[] = "index_scores";
  const auto [backend, layout, rows, indexer] = prepare(op, RowOf::scores, in);

  const Tensor scores = empty(op, "q", rows, real_type(indexer.dtype), layout.device);
  // Sequences differ in length when packed: what lies beyond one's own keys is not visible either.
  if (layout.q_tokens.size() == 1) scores.fill_(-std::numeric_limits<double>::infinity());
  if (layout.queries() > 0) {
    backend->index_scores({.dtype = indexer.dtype,
                           .indexer = indexer.view,
                           .sequences = layout.table.view(),
                           .scores = scores.mutable_data_ptr(),
                           .scores_stride = rows.back()});
  }
  return scores;
}

// ---- Fake kernels

// Of a result with a row for each query, which has room for `width` entries.
Tensor fake_rows(const SelectArguments& in, const c10::SymInt& width, at::ScalarType type) {
  const Tensor& q = in.indexer.q;
  return fake::empty(fake::joined(fake::tokens_of(q, fake::token_dims(in.layout)), width), q, type);
}

Tensor5 select_fake(const SelectArguments& in, const BudgetTensors&) {
  const Tensor& q = in.indexer.q;
  const std::int64_t dims = fake::token_dims(in.layout);
  fake::check_indexer("select", in.indexer, dims);
  const c10::SymInt keys = fake::row_width("select", in.indexer.k, in.layout, in.max_keys);
  const auto per_query = [&](at::ScalarType type) { return fake::empty(fake::tokens_of(q, dims), q, type); };
  return {fake_rows(in, fake::mask_words(keys), at::kInt), per_query(at::kInt), per_query(fake::real_type(q)),
          per_query(fake::real_type(q)), per_query(at::kInt)};
}

Tensor select_mask_fake(const SelectArguments& in, const Tensor& threshold, const Tensor& tie_cut) {
  fake::check_indexer("select_mask", in.indexer, fake::token_dims(in.layout));
  fake::check_devices("select_mask", {{"q", in.indexer.q}, {"threshold", threshold}, {"tie_cut", tie_cut}});
  const c10::SymInt keys = fake::row_width("select_mask", in.indexer.k, in.layout, in.max_keys);
  return fake_rows(in, fake::mask_words(keys), at::kInt);
}

Tensor index_scores_fake(const SelectArguments& in) {
  fake::check_indexer("index_scores", in.indexer, fake::token_dims(in.layout));
  return fake_rows(in, fake::row_width("index_scores", in.indexer.k, in.layout, in.max_keys),
                   fake::real_type(in.indexer.q));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "select", &select_by<select>);
  implement(m, "select_mask", &select_mask_by<select_mask>);
  implement(m, "index_scores", &index_scores_by<index_scores>);
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  m.impl("select", &select_by<select_fake>);
  m.impl("select_mask", &select_mask_by<select_mask_fake>);
  m.impl("index_scores", &index_scores_by<index_scores_fake>);
}

TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  for (const char* name : {"select", "select_mask", "index_scores"}) m.impl(name, no_gradient());
}

}  // namespace gsa::binding

namespace gsa::ops {

Selection select(const IndexerInputs& indexer, const BudgetOptions& budget, const Layout& layout) {
  static const auto op = binding::find_operator<decltype(binding::select_by<nullptr>)>("gsa::select");
  auto [mask, k_t, variance, threshold, tie_cut] =
      op.call(indexer.q, indexer.k, indexer.w, indexer.bias, indexer.scale, indexer.form, budget.mode,
              budget.base, budget.min, budget.max, budget.mean_variance, layout.cu_seqlens_q,
              layout.cu_seqlens_k, layout.q_position, std::nullopt);
  return {mask, k_t, variance, threshold, tie_cut};
}

Tensor select_mask(const IndexerInputs& indexer, const Tensor& threshold, const Tensor& tie_cut,
                   const Layout& layout) {
  static const auto op =
      binding::find_operator<decltype(binding::select_mask_by<nullptr>)>("gsa::select_mask");
  return op.call(indexer.q, indexer.k, indexer.w, indexer.bias, threshold, tie_cut, indexer.scale,
                 indexer.form, layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position, std::nullopt);
}

Tensor index_scores(const IndexerInputs& indexer, const Layout& layout) {
  static const auto op =
      binding::find_operator<decltype(binding::index_scores_by<nullptr>)>("gsa::index_scores");
  return op.call(indexer.q, indexer.k, indexer.w, indexer.bias, indexer.scale, indexer.form,
                 layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position, std::nullopt);
}

}  // namespace gsa::ops
