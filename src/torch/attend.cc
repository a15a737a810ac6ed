// attend and its backward pass.
#include "kernels/attend/attend.h"

#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/operators.h"
#include "torch/signatures.h"

namespace gsa::binding {

namespace {

Tensor2 attend(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& mask,
               std::optional<double> scale, std::string_view accumulation, const OptTensor& cu_seqlens_q,
               const OptTensor& cu_seqlens_k, const OptTensor& q_position) {
  constexpr char op[] = "attend";
  bind_accumulation(op, accumulation);  // of the backward pass
  const LayoutTensors layout_tensors{cu_seqlens_q, cu_seqlens_k, q_position};
  check_attention_ranks(op, q, k, layout_tensors);
  const std::unique_ptr<Backend> backend = backend_of(q);
  const TokenLayout layout = read_layout(op, "q", q, "k", k, layout_tensors);
  const BoundAttention attention = bind_attention(op, q, k, &v, scale, layout);
  const BoundMask bound_mask = bind_mask(op, mask, layout);

  const AttendShape& shape = attention.shape;
  const Tensor out = empty(op, "q", q.sizes().vec(), q.scalar_type(), layout.device);
  const Tensor lse =
      empty(op, "q", joined(layout.q_tokens, {shape.heads}), real_type(shape.dtype), layout.device);
  if (layout.queries() > 0) {
    backend->attend({.shape = shape,
                     .q = attention.q.rows,
                     .k = attention.k.rows,
                     .v = attention.v.rows,
                     .mask = bound_mask.view,
                     .sequences = layout.table.view(),
                     .out = result_rows(out, shape.heads, shape.head_size),
                     .lse = lse.mutable_data_ptr()});
  }
  return {out, lse};
}

Tensor3 attend_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptTensor& mask, const Tensor& out, const Tensor& lse,
                        std::optional<double> scale, std::string_view accumulation,
                        const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                        const OptTensor& q_position) {
  constexpr char op[] = "attend_backward";
  const cuda::Accumulation order = bind_accumulation(op, accumulation);
  const LayoutTensors layout_tensors{cu_seqlens_q, cu_seqlens_k, q_position};
  check_attention_ranks(op, q, k, layout_tensors);
  const std::unique_ptr<Backend> backend = backend_of(q);
  const TokenLayout layout = read_layout(op, "q", q, "k", k, layout_tensors);
  const BoundAttention attention = bind_attention(op, q, k, &v, scale, layout);
  const AttendShape& shape = attention.shape;
  const at::ScalarType real = real_type(shape.dtype);
  check_like(op, "dout", dout, q.scalar_type(), q.sizes().vec(), layout.device);
  check_like(op, "out", out, q.scalar_type(), q.sizes().vec(), layout.device);
  const BoundRows bound_dout = head_rows(dout), bound_out = head_rows(out);
  const Tensor bound_lse = bind_per_query(op, "lse", lse, real, layout, {shape.heads});
  const BoundMask bound_mask = bind_mask(op, mask, layout);

  const Tensor dq = empty(op, "q", q.sizes().vec(), q.scalar_type(), layout.device);
  const Tensor dk = zeros(op, "k", k.sizes().vec(), real, layout.device);
  const Tensor dv = zeros(op, "v", k.sizes().vec(), real, layout.device);
  if (layout.queries() > 0) {
    backend->attend_backward({.shape = shape,
                              .q = attention.q.rows,
                              .k = attention.k.rows,
                              .v = attention.v.rows,
                              .mask = bound_mask.view,
                              .sequences = layout.table.view(),
                              .out = bound_out.rows,
                              .lse = bound_lse.const_data_ptr(),
                              .dout = bound_dout.rows,
                              .dq = result_rows(dq, shape.heads, shape.head_size),
                              .dk = dk.mutable_data_ptr(),
                              .dv = dv.mutable_data_ptr()},
                             order);
  }
  return {dq, dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "attend", &attend);
  implement(m, "attend_backward", &attend_backward);
}

}  // namespace gsa::binding
