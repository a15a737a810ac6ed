// select and attend together, a chunk of queries at a time: the mask of one chunk is all that exists of the
// selection, and the backward pass rebuilds it from thresholds, unless the caller keeps the mask of all.
#include "kernels/attend/attend.h"
#include "kernels/select/select.h"
#include "torch/backend.h"
#include "torch/chunks.h"
#include "torch/operators.h"
#include "torch/signatures.h"

namespace gsa::binding {

namespace {

// Of the mask of all queries, where it is to be kept.
struct KeptMask {
  std::optional<std::int64_t> max_keys;
};

// The results of sparse_attend, and that mask (else undefined).
Tensor7 run(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q, const Tensor& index_k,
            const Tensor& index_w, const OptTensor& index_bias, std::optional<double> scale,
            double index_scale, std::string_view form, std::string_view budget, std::int64_t k_base,
            std::int64_t k_min, std::int64_t k_max, const OptTensor& mean_variance,
            std::string_view accumulation, const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
            const OptTensor& q_position, const std::optional<KeptMask>& keep) {
  const char* const op = keep ? "sparse_attend_with_mask" : "sparse_attend";
  bind_accumulation(op, accumulation);  // of the backward pass
  const auto [layout, attention, indexer] =
      bind_layer(op, q, k, &v, scale, {index_q, index_k, index_w, index_bias, index_scale, form},
                 {cu_seqlens_q, cu_seqlens_k, q_position});
  const BoundBudget bound_budget =
      bind_budget(op, {budget, k_base, k_min, k_max, mean_variance}, layout.device);

  const AttendShape& shape = attention.shape;
  const at::ScalarType real = real_type(shape.dtype);
  const std::int64_t real_size = static_cast<std::int64_t>(c10::elementSize(real));
  const Tensor out = empty(op, "q", q.sizes().vec(), q.scalar_type(), layout.device);
  const Tensor lse = empty(op, "q", joined(layout.q_tokens, {shape.heads}), real, layout.device);
  const Tensor k_t = empty(op, "q", layout.q_tokens, at::kInt, layout.device);
  const Tensor variance = empty(op, "q", layout.q_tokens, real, layout.device);
  const Tensor threshold = empty(op, "q", layout.q_tokens, real, layout.device);
  const Tensor tie_cut = empty(op, "q", layout.q_tokens, at::kInt, layout.device);

  const std::unique_ptr<Backend> backend = backend_of(q);
  const Rows out_rows = result_rows(out, shape.heads, shape.head_size);
  const std::vector<Chunk> chunks = plan_chunks(layout.table.view(), backend->chunk_limits());
  Tensor kept;
  if (keep) {
    const std::int64_t words = mask_words(row_width(op, layout, keep->max_keys));
    kept = empty(op, "q", joined(layout.q_tokens, {words}), at::kInt, layout.device);
  }
  const ChunkMask masks = keep ? ChunkMask(kept) : ChunkMask(op, chunks, layout.device);
  for (const Chunk& chunk : chunks) {
    const Mask mask = masks.of(chunk);
    backend->select({.dtype = shape.dtype,
                     .indexer = part_of(indexer.view, chunk, shape.dtype),
                     .budget = bound_budget.view,
                     .sequences = chunk.table.view(),
                     .mask = mask,
                     .k_t = k_t.mutable_data_ptr<std::int32_t>() + chunk.q_first,
                     .variance = shifted(variance.mutable_data_ptr(), chunk.q_first, real_size),
                     .threshold = shifted(threshold.mutable_data_ptr(), chunk.q_first, real_size),
                     .tie_cut = tie_cut.mutable_data_ptr<std::int32_t>() + chunk.q_first});
    ConstMask selected = mask;
    selected.max_selected = bound_budget.most();
    backend->attend({.shape = shape,
                     .q = shifted(attention.q.rows, chunk.q_first, shape.dtype),
                     .k = shifted(attention.k.rows, chunk.k_first, shape.dtype),
                     .v = shifted(attention.v.rows, chunk.k_first, shape.dtype),
                     .mask = selected,
                     .sequences = chunk.table.view(),
                     .out = shifted(out_rows, chunk.q_first, shape.dtype),
                     .lse = shifted(lse.mutable_data_ptr(), chunk.q_first * shape.heads, real_size)});
  }
  return {out, lse, k_t, variance, threshold, tie_cut, kept};
}

Tensor6 sparse_attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q,
                      const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                      std::optional<double> scale, double index_scale, std::string_view form,
                      std::string_view budget, std::int64_t k_base, std::int64_t k_min, std::int64_t k_max,
                      const OptTensor& mean_variance, std::string_view accumulation,
                      const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                      const OptTensor& q_position) {
  auto [out, lse, k_t, variance, threshold, tie_cut, none] =
      run(q, k, v, index_q, index_k, index_w, index_bias, scale, index_scale, form, budget, k_base, k_min,
          k_max, mean_variance, accumulation, cu_seqlens_q, cu_seqlens_k, q_position, std::nullopt);
  return {out, lse, k_t, variance, threshold, tie_cut};
}

Tensor7 sparse_attend_with_mask(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q,
                                const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                                std::optional<double> scale, double index_scale, std::string_view form,
                                std::string_view budget, std::int64_t k_base, std::int64_t k_min,
                                std::int64_t k_max, const OptTensor& mean_variance,
                                std::string_view accumulation, const OptTensor& cu_seqlens_q,
                                const OptTensor& cu_seqlens_k, const OptTensor& q_position,
                                std::optional<std::int64_t> max_keys) {
  return run(q, k, v, index_q, index_k, index_w, index_bias, scale, index_scale, form, budget, k_base, k_min,
             k_max, mean_variance, accumulation, cu_seqlens_q, cu_seqlens_k, q_position, KeptMask{max_keys});
}

Tensor3 sparse_attend_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& index_q, const Tensor& index_k, const Tensor& index_w,
                               const OptTensor& index_bias, const Tensor& out, const Tensor& lse,
                               const Tensor& threshold, const Tensor& tie_cut, const OptTensor& mask,
                               std::optional<double> scale, double index_scale, std::string_view form,
                               std::optional<std::int64_t> most_selected, std::string_view accumulation,
                               const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                               const OptTensor& q_position) {
  constexpr char op[] = "sparse_attend_backward";
  const cuda::Accumulation order = bind_accumulation(op, accumulation);
  if (most_selected) check_range(op, "most_selected", "a number of keys", *most_selected, 1, kMaxTokens);
  const auto [layout, attention, indexer] =
      bind_layer(op, q, k, &v, scale, {index_q, index_k, index_w, index_bias, index_scale, form},
                 {cu_seqlens_q, cu_seqlens_k, q_position});
  const AttendShape& shape = attention.shape;
  const at::ScalarType real = real_type(shape.dtype);
  check_like(op, "dout", dout, q.scalar_type(), q.sizes().vec(), layout.device);
  check_like(op, "out", out, q.scalar_type(), q.sizes().vec(), layout.device);
  const BoundRows bound_dout = head_rows(dout), bound_out = head_rows(out);
  const Tensor bound_lse = bind_per_query(op, "lse", lse, real, layout, {shape.heads});
  const Tensor bound_threshold = bind_per_query(op, "threshold", threshold, real, layout);
  const Tensor bound_tie_cut = bind_per_query(op, "tie_cut", tie_cut, at::kInt, layout);
  const BoundMask bound_mask = bind_mask(op, mask, layout);

  const std::int64_t real_size = static_cast<std::int64_t>(c10::elementSize(real));
  const std::unique_ptr<Backend> backend = backend_of(q);
  const Tensor dq = empty(op, "q", q.sizes().vec(), q.scalar_type(), layout.device);
  const Tensor dk = zeros(op, "k", k.sizes().vec(), real, layout.device);
  const Tensor dv = zeros(op, "v", k.sizes().vec(), real, layout.device);

  const Rows dq_rows = result_rows(dq, shape.heads, shape.head_size);
  const std::int64_t key_elements = shape.kv_heads * shape.head_size;
  const std::vector<Chunk> chunks = plan_chunks(layout.table.view(), backend->chunk_limits());
  const ChunkMask masks = mask ? ChunkMask(bound_mask.tensor) : ChunkMask(op, chunks, layout.device);
  for (const Chunk& chunk : chunks) {
    const Mask chunk_mask = masks.of(chunk);
    if (!mask) {
      backend->select_mask({.dtype = shape.dtype,
                            .indexer = part_of(indexer.view, chunk, shape.dtype),
                            .sequences = chunk.table.view(),
                            .threshold = shifted(bound_threshold.const_data_ptr(), chunk.q_first, real_size),
                            .tie_cut = bound_tie_cut.const_data_ptr<std::int32_t>() + chunk.q_first,
                            .mask = chunk_mask});
    }
    ConstMask selected = chunk_mask;
    selected.max_selected = most_selected.value_or(0);
    backend->attend_backward(
        {.shape = shape,
         .q = shifted(attention.q.rows, chunk.q_first, shape.dtype),
         .k = shifted(attention.k.rows, chunk.k_first, shape.dtype),
         .v = shifted(attention.v.rows, chunk.k_first, shape.dtype),
         .mask = selected,
         .sequences = chunk.table.view(),
         .out = shifted(bound_out.rows, chunk.q_first, shape.dtype),
         .lse = shifted(bound_lse.const_data_ptr(), chunk.q_first * shape.heads, real_size),
         .dout = shifted(bound_dout.rows, chunk.q_first, shape.dtype),
         .dq = shifted(dq_rows, chunk.q_first, shape.dtype),
         .dk = shifted(dk.mutable_data_ptr(), chunk.k_first * key_elements, real_size),
         .dv = shifted(dv.mutable_data_ptr(), chunk.k_first * key_elements, real_size)},
        order);
  }
  return {dq, dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "sparse_attend", &sparse_attend);
  implement(m, "sparse_attend_with_mask", &sparse_attend_with_mask);
  implement(m, "sparse_attend_backward", &sparse_attend_backward);
}

}  // namespace gsa::binding
