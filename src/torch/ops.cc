#include "torch/ops.h"

#include "torch/signatures.h"

namespace gsa::ops {

using binding::find_operator;

Selection select(const IndexerInputs& indexer, const BudgetOptions& budget, const Layout& layout) {
  static const auto op = find_operator<binding::SelectFn>("gsa::select");
  auto [mask, k_t, variance, threshold, tie_cut] =
      op.call(indexer.q, indexer.k, indexer.w, indexer.bias, indexer.scale, indexer.form, budget.mode,
              budget.base, budget.min, budget.max, budget.mean_variance, layout.cu_seqlens_q,
              layout.cu_seqlens_k, layout.q_position, std::nullopt);
  return {mask, k_t, variance, threshold, tie_cut};
}

Tensor select_mask(const IndexerInputs& indexer, const Tensor& threshold, const Tensor& tie_cut,
                   const Layout& layout) {
  static const auto op = find_operator<binding::SelectMaskFn>("gsa::select_mask");
  return op.call(indexer.q, indexer.k, indexer.w, indexer.bias, threshold, tie_cut, indexer.scale,
                 indexer.form, layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position, std::nullopt);
}

Tensor index_scores(const IndexerInputs& indexer, const Layout& layout) {
  static const auto op = find_operator<binding::IndexScoresFn>("gsa::index_scores");
  return op.call(indexer.q, indexer.k, indexer.w, indexer.bias, indexer.scale, indexer.form,
                 layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position, std::nullopt);
}

Attention attend(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& mask,
                 std::optional<double> scale, const Layout& layout, const std::string& accumulation) {
  static const auto op = find_operator<binding::AttendFn>("gsa::attend");
  auto [out, lse] = op.call(q, k, v, mask, scale, accumulation, layout.cu_seqlens_q, layout.cu_seqlens_k,
                            layout.q_position);
  return {out, lse};
}

Tensor attend_lse(const Tensor& q, const Tensor& k, const OptTensor& query_tiles, std::optional<double> scale,
                  const Layout& layout) {
  static const auto op = find_operator<binding::AttendLseFn>("gsa::attend_lse");
  return op.call(q, k, query_tiles, scale, layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position);
}

SparseAttention sparse_attend(const Tensor& q, const Tensor& k, const Tensor& v, const IndexerInputs& indexer,
                              const BudgetOptions& budget, std::optional<double> scale, const Layout& layout,
                              const std::string& accumulation) {
  static const auto op = find_operator<binding::SparseAttendFn>("gsa::sparse_attend");
  auto [out, lse, k_t, variance, threshold, tie_cut] =
      op.call(q, k, v, indexer.q, indexer.k, indexer.w, indexer.bias, scale, indexer.scale, indexer.form,
              budget.mode, budget.base, budget.min, budget.max, budget.mean_variance, accumulation,
              layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position);
  return {{out, lse}, {Tensor(), k_t, variance, threshold, tie_cut}};
}

SparseAttention sparse_attend_with_mask(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const IndexerInputs& indexer, const BudgetOptions& budget,
                                        std::optional<double> scale, const Layout& layout,
                                        const std::string& accumulation) {
  static const auto op = find_operator<binding::SparseAttendWithMaskFn>("gsa::sparse_attend_with_mask");
  auto [out, lse, k_t, variance, threshold, tie_cut, mask] =
      op.call(q, k, v, indexer.q, indexer.k, indexer.w, indexer.bias, scale, indexer.scale, indexer.form,
              budget.mode, budget.base, budget.min, budget.max, budget.mean_variance, accumulation,
              layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position, std::nullopt);
  return {{out, lse}, {mask, k_t, variance, threshold, tie_cut}};
}

Decoded decode(const Tensor& q, const PagedCache& cache, const std::optional<IndexerInputs>& indexer,
               const BudgetOptions& budget, const OptTensor& gate, std::optional<double> scale) {
  static const auto op = find_operator<binding::DecodeFn>("gsa::decode");
  const bool sparse = indexer.has_value();
  auto [out, lse, k_t] = op.call(
      q, cache.k, cache.v, cache.block_table, cache.lengths, sparse ? OptTensor(indexer->q) : OptTensor(),
      sparse ? cache.index_k : OptTensor(), sparse ? OptTensor(indexer->w) : OptTensor(),
      sparse ? indexer->bias : OptTensor(), gate, cache.max_length, scale, sparse ? indexer->scale : 1,
      sparse ? indexer->form : "sigmoid", budget.mode, budget.base, budget.min, budget.max,
      budget.mean_variance, sparse ? cache.index_k_scale : OptTensor());
  return {out, lse, k_t};
}

QuantizedKeys quantize_index_keys(const Tensor& keys) {
  static const auto op = find_operator<binding::QuantizeIndexKeysFn>("gsa::quantize_index_keys");
  auto [values, scale] = op.call(keys);
  return {values, scale};
}

Tensor gate(const Tensor& x, const Tensor& z) {
  static const auto op = find_operator<binding::GateFn>("gsa::gate");
  return op.call(x, z);
}

KlLoss indexer_kl(const Tensor& q, const Tensor& k, const Tensor& lse, const IndexerInputs& indexer,
                  const OptTensor& mask, const OptTensor& threshold, const OptTensor& tie_cut,
                  std::optional<double> scale, const Layout& layout, const OptTensor& query_tiles) {
  static const auto op = find_operator<binding::IndexerKlFn>("gsa::indexer_kl");
  auto [loss, index_lse] = op.call(q, k, lse, indexer.q, indexer.k, indexer.w, indexer.bias, mask, threshold,
                                   tie_cut, query_tiles, scale, indexer.scale, indexer.form,
                                   layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position);
  return {loss, index_lse};
}

}  // namespace gsa::ops
