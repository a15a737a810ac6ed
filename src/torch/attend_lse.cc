// attend_lse: the log-sum-exp of dense attention for a sample of the queries.
#include "kernels/attend_lse/attend_lse.h"

#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/operators.h"
#include "torch/signatures.h"

namespace gsa::binding {

namespace {

Tensor attend_lse(const Tensor& q, const Tensor& k, const OptTensor& query_tiles, std::optional<double> scale,
                  const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k, const OptTensor& q_position) {
  constexpr char op[] = "attend_lse";
  const LayoutTensors layout_tensors{cu_seqlens_q, cu_seqlens_k, q_position};
  check_attention_ranks(op, q, k, layout_tensors);
  const std::unique_ptr<Backend> backend = backend_of(q);
  const TokenLayout layout = read_layout(op, "q", q, "k", k, layout_tensors);
  const BoundAttention attention = bind_attention(op, q, k, nullptr, scale, layout);
  const BoundTiles tiles = bind_query_tiles(op, query_tiles, layout);
  const AttendShape& shape = attention.shape;
  const Tensor lse =
      empty(op, "q", joined(layout.q_tokens, {shape.heads}), real_type(shape.dtype), layout.device);
  if (layout.queries() > 0) {
    backend->attend_lse({.shape = shape,
                         .q = attention.q.rows,
                         .k = attention.k.rows,
                         .sequences = layout.table.view(),
                         .tiles = tiles.view(),
                         .lse = lse.mutable_data_ptr()});
  }
  return lse;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) { implement(m, "attend_lse", &attend_lse); }

}  // namespace gsa::binding
