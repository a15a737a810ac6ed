// select, select_mask and index_scores.
#include "kernels/select/select.h"

#include <algorithm>
#include <limits>

#include "gsa/error.h"
#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/operators.h"
#include "torch/signatures.h"

namespace gsa::binding {

namespace {

Mask writable(const Tensor& mask) {
  return {reinterpret_cast<std::uint32_t*>(mask.mutable_data_ptr<std::int32_t>()), mask.size(-1)};
}

// What every one of them does first.
struct Prepared {
  std::unique_ptr<Backend> backend;
  TokenLayout layout;
  Shape rows;  // of the result: a row for each query
  BoundIndexer indexer;
};

enum class RowOf { mask_words, scores };

Prepared prepare(const char* op, RowOf row, const IndexerTensors& tensors,
                 const LayoutTensors& layout_tensors, std::optional<std::int64_t> max_keys) {
  const Tensor& q = tensors.q;
  check_indexer_ranks(op, kPlainNames, tensors, layout_tensors);
  std::unique_ptr<Backend> backend = backend_of(q);
  TokenLayout layout = read_layout(op, "q", q, "k", tensors.k, layout_tensors);
  const std::int64_t keys = row_width(op, layout, max_keys);
  Shape rows = joined(layout.q_tokens, {row == RowOf::scores ? keys : mask_words(keys)});
  check_result(op, "q", rows, row == RowOf::scores ? real_type(dtype_of(op, "q", q)) : at::kInt);
  BoundIndexer indexer = bind_indexer(op, kPlainNames, tensors, layout);
  return {std::move(backend), std::move(layout), std::move(rows), std::move(indexer)};
}

Tensor5 select(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias, double scale,
               std::string_view form, std::string_view budget, std::int64_t k_base, std::int64_t k_min,
               std::int64_t k_max, const OptTensor& mean_variance, const OptTensor& cu_seqlens_q,
               const OptTensor& cu_seqlens_k, const OptTensor& q_position,
               std::optional<std::int64_t> max_keys) {
  constexpr char op[] = "select";
  const auto [backend, layout, rows, indexer] = prepare(op, RowOf::mask_words, {q, k, w, bias, scale, form},
                                                        {cu_seqlens_q, cu_seqlens_k, q_position}, max_keys);
  const BoundBudget bound_budget =
      bind_budget(op, {budget, k_base, k_min, k_max, mean_variance}, layout.device);

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

Tensor select_mask(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias,
                   const Tensor& threshold, const Tensor& tie_cut, double scale, std::string_view form,
                   const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k, const OptTensor& q_position,
                   std::optional<std::int64_t> max_keys) {
  constexpr char op[] = "select_mask";
  const auto [backend, layout, rows, indexer] = prepare(op, RowOf::mask_words, {q, k, w, bias, scale, form},
                                                        {cu_seqlens_q, cu_seqlens_k, q_position}, max_keys);
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

Tensor index_scores(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias, double scale,
                    std::string_view form, const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                    const OptTensor& q_position, std::optional<std::int64_t> max_keys) {
  constexpr char op[] = "index_scores";
  const auto [backend, layout, rows, indexer] = prepare(op, RowOf::scores, {q, k, w, bias, scale, form},
                                                        {cu_seqlens_q, cu_seqlens_k, q_position}, max_keys);

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

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "select", &select);
  implement(m, "select_mask", &select_mask);
  implement(m, "index_scores", &index_scores);
}

}  // namespace gsa::binding
