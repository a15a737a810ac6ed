// select and attend together on the CPU, a chunk of queries at a time: the mask of one chunk is all that
// exists of the selection, and the backward pass rebuilds it from thresholds.
#include <torch/library.h>

#include "kernels/attend/attend.h"
#include "kernels/select/select.h"
#include "torch/chunks.h"
#include "torch/parallel.h"
#include "torch/signatures.h"

namespace gsa::binding {

namespace {

Tensor6 sparse_attend_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q,
                          const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                          std::optional<double> scale, double index_scale, std::string_view form,
                          std::string_view budget, std::int64_t k_base, std::int64_t k_min,
                          std::int64_t k_max, const OptTensor& mean_variance, const OptTensor& cu_seqlens_q,
                          const OptTensor& cu_seqlens_k, const OptTensor& q_position) {
  constexpr char op[] = "sparse_attend";
  const auto [layout, attention, indexer] =
      bind_layer(op, q, k, &v, scale, {index_q, index_k, index_w, index_bias, index_scale, form},
                 {cu_seqlens_q, cu_seqlens_k, q_position});
  const Budget bound_budget = bind_budget(op, {budget, k_base, k_min, k_max, mean_variance});

  const AttendShape& shape = attention.shape;
  const at::ScalarType real = real_type(shape.dtype);
  const std::int64_t real_size = static_cast<std::int64_t>(c10::elementSize(real));
  const Tensor out = empty(op, "q", q.sizes().vec(), q.scalar_type());
  const Tensor lse = empty(op, "q", joined(layout.q_tokens, {shape.heads}), real);
  const Tensor k_t = empty(op, "q", layout.q_tokens, at::kInt);
  const Tensor variance = empty(op, "q", layout.q_tokens, real);
  const Tensor threshold = empty(op, "q", layout.q_tokens, real);
  const Tensor tie_cut = empty(op, "q", layout.q_tokens, at::kInt);

  const TorchParallel parallel;
  const Rows out_rows = result_rows(out, shape.heads, shape.head_size);
  const std::vector<Chunk> chunks = plan_chunks(layout.table.view());
  const ChunkMask masks(op, chunks);
  for (const Chunk& chunk : chunks) {
    const Mask mask = masks.of(chunk);
    gsa::select({.dtype = shape.dtype,
                 .indexer = part_of(indexer.view, chunk, shape.dtype),
                 .budget = bound_budget,
                 .sequences = chunk.table.view(),
                 .mask = mask,
                 .k_t = k_t.mutable_data_ptr<std::int32_t>() + chunk.q_first,
                 .variance = shifted(variance.mutable_data_ptr(), chunk.q_first, real_size),
                 .threshold = shifted(threshold.mutable_data_ptr(), chunk.q_first, real_size),
                 .tie_cut = tie_cut.mutable_data_ptr<std::int32_t>() + chunk.q_first},
                parallel);
    gsa::attend({.shape = shape,
                 .q = shifted(attention.q.rows, chunk.q_first, shape.dtype),
                 .k = shifted(attention.k.rows, chunk.k_first, shape.dtype),
                 .v = shifted(attention.v.rows, chunk.k_first, shape.dtype),
                 .mask = mask,
                 .sequences = chunk.table.view(),
                 .out = shifted(out_rows, chunk.q_first, shape.dtype),
                 .lse = shifted(lse.mutable_data_ptr(), chunk.q_first * shape.heads, real_size)},
                parallel);
  }
  return {out, lse, k_t, variance, threshold, tie_cut};
}

Tensor3 sparse_attend_backward_cpu(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& index_q, const Tensor& index_k, const Tensor& index_w,
                                   const OptTensor& index_bias, const Tensor& out, const Tensor& lse,
                                   const Tensor& threshold, const Tensor& tie_cut,
                                   std::optional<double> scale, double index_scale, std::string_view form,
                                   const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                                   const OptTensor& q_position) {
  constexpr char op[] = "sparse_attend_backward";
  const auto [layout, attention, indexer] =
      bind_layer(op, q, k, &v, scale, {index_q, index_k, index_w, index_bias, index_scale, form},
                 {cu_seqlens_q, cu_seqlens_k, q_position});
  const AttendShape& shape = attention.shape;
  const at::ScalarType real = real_type(shape.dtype);
  check_like(op, "dout", dout, q.scalar_type(), q.sizes().vec());
  check_like(op, "out", out, q.scalar_type(), q.sizes().vec());
  const BoundRows bound_dout = head_rows(dout), bound_out = head_rows(out);
  const Tensor bound_lse = bind_per_query(op, "lse", lse, real, layout, {shape.heads});
  const Tensor bound_threshold = bind_per_query(op, "threshold", threshold, real, layout);
  const Tensor bound_tie_cut = bind_per_query(op, "tie_cut", tie_cut, at::kInt, layout);

  const std::int64_t real_size = static_cast<std::int64_t>(c10::elementSize(real));
  const Tensor dq = empty(op, "q", q.sizes().vec(), q.scalar_type());
  const Tensor dk = zeros(op, "k", k.sizes().vec(), real);
  const Tensor dv = zeros(op, "v", k.sizes().vec(), real);

  const TorchParallel parallel;
  const Rows dq_rows = result_rows(dq, shape.heads, shape.head_size);
  const std::int64_t key_elements = shape.kv_heads * shape.head_size;
  const std::vector<Chunk> chunks = plan_chunks(layout.table.view());
  const ChunkMask masks(op, chunks);
  for (const Chunk& chunk : chunks) {
    const Mask mask = masks.of(chunk);
    gsa::select_mask({.dtype = shape.dtype,
                      .indexer = part_of(indexer.view, chunk, shape.dtype),
                      .sequences = chunk.table.view(),
                      .threshold = shifted(bound_threshold.const_data_ptr(), chunk.q_first, real_size),
                      .tie_cut = bound_tie_cut.const_data_ptr<std::int32_t>() + chunk.q_first,
                      .mask = mask},
                     parallel);
    gsa::attend_backward({.shape = shape,
                          .q = shifted(attention.q.rows, chunk.q_first, shape.dtype),
                          .k = shifted(attention.k.rows, chunk.k_first, shape.dtype),
                          .v = shifted(attention.v.rows, chunk.k_first, shape.dtype),
                          .mask = mask,
                          .sequences = chunk.table.view(),
                          .out = shifted(bound_out.rows, chunk.q_first, shape.dtype),
                          .lse = shifted(bound_lse.const_data_ptr(), chunk.q_first * shape.heads, real_size),
                          .dout = shifted(bound_dout.rows, chunk.q_first, shape.dtype),
                          .dq = shifted(dq_rows, chunk.q_first, shape.dtype),
                          .dk = shifted(dk.mutable_data_ptr(), chunk.k_first * key_elements, real_size),
                          .dv = shifted(dv.mutable_data_ptr(), chunk.k_first * key_elements, real_size)},
                         parallel);
  }
  return {dq, dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, CPU, m) {
  m.impl("sparse_attend", &sparse_attend_cpu);
  m.impl("sparse_attend_backward", &sparse_attend_backward_cpu);
}

}  // namespace gsa::binding
