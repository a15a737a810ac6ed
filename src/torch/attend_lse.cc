// attend_lse: the log-sum-exp of dense attention for a sample of the queries.
#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/fake.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/schema.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  using namespace schema;
  // The lse of attend() over every visible key, without its output: Real [B, L, n_h]. Queries outside
  // query_tiles get 0. It is the target of indexer_kl, a constant: no gradient.
  define(m, "attend_lse(Tensor q, Tensor k, *, ", kTiles, ", float? scale=None, ", kLayout, ") -> Tensor");
}

namespace {

// ---- Implementation

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

// ---- Fake kernel

Tensor attend_lse_fake(const Tensor& q, const Tensor& k, const OptTensor&, std::optional<double>,
                       const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                       const OptTensor& q_position) {
  const std::int64_t dims = fake::token_dims({cu_seqlens_q, cu_seqlens_k, q_position});
  fake::check_attention("attend_lse", q, k, std::nullopt, dims);
  return fake::empty(fake::joined(fake::tokens_of(q, dims), q.sym_size(-2)), q, fake::real_type(q));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) { implement(m, "attend_lse", &attend_lse); }
TORCH_LIBRARY_IMPL(gsa, Meta, m) { m.impl("attend_lse", &attend_lse_fake); }
TORCH_LIBRARY_IMPL(gsa, Autograd, m) { m.impl("attend_lse", not_differentiable()); }

}  // namespace gsa::binding

namespace gsa::ops {

Tensor attend_lse(const Tensor& q, const Tensor& k, const OptTensor& query_tiles, std::optional<double> scale,
                  const Layout& layout) {
  static const auto op = binding::find_operator<decltype(binding::attend_lse)>("gsa::attend_lse");
  return op.call(q, k, query_tiles, scale, layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position);
}

}  // namespace gsa::ops
