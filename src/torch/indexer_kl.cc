// indexer_kl and its backward pass. A support given by thresholds is rebuilt a chunk of queries at
// a time, as in sparse_attend.cc; one given by a mask, or all visible keys (of every query or of a sample),
// runs in one piece.
#include "kernels/indexer_kl/indexer_kl.h"

#include "gsa/error.h"
#include "torch/backend.h"
#include "torch/chunks.h"
#include "torch/operators.h"
#include "torch/signatures.h"

namespace gsa::binding {

namespace {

// The arguments that forward and backward share.
struct KlTensors {
  const Tensor& q;
  const Tensor& k;
  const Tensor& lse;
  IndexerTensors indexer;
  const OptTensor& mask;
  const OptTensor& threshold;
  const OptTensor& tie_cut;
  const OptTensor& query_tiles;
  std::optional<double> scale;
  LayoutTensors layout;
};

struct BoundKl : BoundLayer {
  std::unique_ptr<Backend> backend;
  BoundMask mask;
  BoundTiles tiles;
  Tensor lse, threshold, tie_cut;

  at::ScalarType real() const { return real_type(attention.shape.dtype); }
  std::int64_t real_size() const { return static_cast<std::int64_t>(c10::elementSize(real())); }
};

void check_support(const char* op, const KlTensors& tensors) {
  if (tensors.threshold.has_value() != tensors.tie_cut.has_value()) {
    bad_argument(op, tensors.threshold ? "tie_cut" : "threshold",
                 "threshold and tie_cut together, or neither", "None");
  }
  if (tensors.mask && tensors.threshold) {
    bad_argument(op, "threshold", "None beside a mask: one of them gives the support", "a tensor");
  }
  if (tensors.query_tiles && (tensors.mask || tensors.threshold)) {
    bad_argument(op, "query_tiles",
                 concat("None beside ", tensors.mask ? "a mask" : "thresholds",
                        ": the support of a sample is every visible key"),
                 "a tensor");
  }
}

BoundKl bind_kl(const char* op, const KlTensors& tensors) {
  check_support(op, tensors);
  BoundKl bound;
  static_cast<BoundLayer&>(bound) =
      bind_layer(op, tensors.q, tensors.k, nullptr, tensors.scale, tensors.indexer, tensors.layout);
  bound.backend = backend_of(tensors.q);
  bound.lse =
      bind_per_query(op, "lse", tensors.lse, bound.real(), bound.layout, {bound.attention.shape.heads});
  bound.mask = bind_mask(op, tensors.mask, bound.layout);
  bound.tiles = bind_query_tiles(op, tensors.query_tiles, bound.layout);
  if (tensors.threshold) {
    bound.threshold = bind_per_query(op, "threshold", *tensors.threshold, bound.real(), bound.layout);
    bound.tie_cut = bind_per_query(op, "tie_cut", *tensors.tie_cut, at::kInt, bound.layout);
  }
  return bound;
}

// Calls run(inputs, chunk) for each chunk; without thresholds there is one chunk that holds everything.
template <typename Run>
void for_each_chunk(const char* op, const BoundKl& bound, const Run& run) {
  const AttendShape& shape = bound.attention.shape;
  if (bound.layout.queries() == 0) return;
  if (!bound.threshold.defined()) {
    Chunk whole;
    whole.table = bound.layout.table;
    run(IndexerKlInputs{.shape = shape,
                        .q = bound.attention.q.rows,
                        .k = bound.attention.k.rows,
                        .lse = bound.lse.const_data_ptr(),
                        .indexer = bound.indexer.view,
                        .mask = bound.mask.view,
                        .sequences = whole.table.view(),
                        .tiles = bound.tiles.view()},
        whole);
    return;
  }
  const std::vector<Chunk> chunks = plan_chunks(bound.layout.table.view(), bound.backend->chunk_limits());
  const ChunkMask masks(op, chunks, bound.layout.device);
  for (const Chunk& chunk : chunks) {
    const Mask mask = masks.of(chunk);
    const Indexer indexer = part_of(bound.indexer.view, chunk, shape.dtype);
    bound.backend->select_mask(
        {.dtype = shape.dtype,
         .indexer = indexer,
         .sequences = chunk.table.view(),
         .threshold = shifted(bound.threshold.const_data_ptr(), chunk.q_first, bound.real_size()),
         .tie_cut = bound.tie_cut.const_data_ptr<std::int32_t>() + chunk.q_first,
         .mask = mask});
    run(IndexerKlInputs{.shape = shape,
                        .q = shifted(bound.attention.q.rows, chunk.q_first, shape.dtype),
                        .k = shifted(bound.attention.k.rows, chunk.k_first, shape.dtype),
                        .lse = shifted(bound.lse.const_data_ptr(), chunk.q_first * shape.heads,
                                       bound.real_size()),
                        .indexer = indexer,
                        .mask = mask,
                        .sequences = chunk.table.view()},
        chunk);
  }
}

Tensor2 indexer_kl(const Tensor& q, const Tensor& k, const Tensor& lse, const Tensor& index_q,
                   const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                   const OptTensor& mask, const OptTensor& threshold, const OptTensor& tie_cut,
                   const OptTensor& query_tiles, std::optional<double> scale, double index_scale,
                   std::string_view form, const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                   const OptTensor& q_position) {
  constexpr char op[] = "indexer_kl";
  const BoundKl bound = bind_kl(op, {q,
                                     k,
                                     lse,
                                     {index_q, index_k, index_w, index_bias, index_scale, form},
                                     mask,
                                     threshold,
                                     tie_cut,
                                     query_tiles,
                                     scale,
                                     {cu_seqlens_q, cu_seqlens_k, q_position}});
  const Tensor loss = empty(op, "q", bound.layout.q_tokens, bound.real(), bound.layout.device);
  const Tensor index_lse = empty(op, "q", bound.layout.q_tokens, bound.real(), bound.layout.device);
  for_each_chunk(op, bound, [&](const IndexerKlInputs& inputs, const Chunk& chunk) {
    bound.backend->indexer_kl(
        {.in = inputs,
         .loss = shifted(loss.mutable_data_ptr(), chunk.q_first, bound.real_size()),
         .index_lse = shifted(index_lse.mutable_data_ptr(), chunk.q_first, bound.real_size())});
  });
  return {loss, index_lse};
}

Tensor4 indexer_kl_backward(const Tensor& dloss, const Tensor& q, const Tensor& k, const Tensor& lse,
                            const Tensor& index_q, const Tensor& index_k, const Tensor& index_w,
                            const OptTensor& index_bias, const OptTensor& mask, const OptTensor& threshold,
                            const OptTensor& tie_cut, const Tensor& index_lse, const OptTensor& query_tiles,
                            std::optional<double> scale, double index_scale, std::string_view form,
                            const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                            const OptTensor& q_position) {
  constexpr char op[] = "indexer_kl_backward";
  const BoundKl bound = bind_kl(op, {q,
                                     k,
                                     lse,
                                     {index_q, index_k, index_w, index_bias, index_scale, form},
                                     mask,
                                     threshold,
                                     tie_cut,
                                     query_tiles,
                                     scale,
                                     {cu_seqlens_q, cu_seqlens_k, q_position}});
  const Tensor weight = bind_per_query(op, "dloss", dloss, bound.real(), bound.layout);
  const Tensor bound_index_lse = bind_per_query(op, "index_lse", index_lse, bound.real(), bound.layout);

  const Indexer& indexer = bound.indexer.view;
  const DType dtype = bound.indexer.dtype;
  const at::ScalarType type = index_q.scalar_type();
  const Tensor dq = empty(op, "index_q", index_q.sizes().vec(), type, bound.layout.device);
  const Tensor dw = empty(op, "index_w", index_w.sizes().vec(), type, bound.layout.device);
  const Tensor dk = zeros(op, "index_k", index_k.sizes().vec(), bound.real(), bound.layout.device);
  const Tensor dbias =
      zeros(op, "index_bias", {index_bias ? indexer.heads : 0}, bound.real(), bound.layout.device);
  const Rows dq_rows = result_rows(dq, indexer.heads, indexer.head_size);
  const Rows dw_rows = result_rows(dw, indexer.heads, 1);
  for_each_chunk(op, bound, [&](const IndexerKlInputs& inputs, const Chunk& chunk) {
    bound.backend->indexer_kl_backward(
        {.in = inputs,
         .index_lse = shifted(bound_index_lse.const_data_ptr(), chunk.q_first, bound.real_size()),
         .weight = shifted(weight.const_data_ptr(), chunk.q_first, bound.real_size()),
         .dq = shifted(dq_rows, chunk.q_first, dtype),
         .dw = shifted(dw_rows, chunk.q_first, dtype),
         .dk = shifted(dk.mutable_data_ptr(), chunk.k_first * indexer.head_size, bound.real_size()),
         .dbias = index_bias ? dbias.mutable_data_ptr() : nullptr});
  });
  return {dq, dk.to(type), dw, dbias.to(type)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "indexer_kl", &indexer_kl);
  implement(m, "indexer_kl_backward", &indexer_kl_backward);
}

}  // namespace gsa::binding
