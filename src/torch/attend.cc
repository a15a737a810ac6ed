// attend and its backward pass.
#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/fake.h"
#include "torch/gradient.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/schema.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  using namespace schema;
  // Softmax attention over the mask, over all visible keys for None. Differentiable in q, k, v.
  define(m, "attend(Tensor q, Tensor k, Tensor v, Tensor? mask=None, *, float? scale=None, ", kAccumulation,
         ", ", kLayout, ") -> (Tensor out, Tensor lse)");
  // dout as out; out and lse as attend() returned them.
  define(m,
         "attend_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor out, Tensor lse,",
         " *, float? scale=None, ", kAccumulation, ", ", kLayout, ") -> (Tensor dq, Tensor dk, Tensor dv)");
}

namespace {

// ---- Arguments

struct AttendArguments {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const OptTensor& mask;
  std::optional<double> scale;
  std::string_view accumulation;
  LayoutTensors layout;
};

// The registered signature; `run` is the implementation, the fake kernel or the gradient.
template <Tensor2 (*run)(const AttendArguments& in)>
Tensor2 attend_by(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& mask,
                  std::optional<double> scale, std::string_view accumulation, const OptTensor& cu_seqlens_q,
                  const OptTensor& cu_seqlens_k, const OptTensor& q_position) {
  return run({.q = q,
              .k = k,
              .v = v,
              .mask = mask,
              .scale = scale,
              .accumulation = accumulation,
              .layout = {cu_seqlens_q, cu_seqlens_k, q_position}});
}

Tensor2 call_attend(const AttendArguments& in) {
  static const auto op = find_operator<decltype(attend_by<nullptr>)>("gsa::attend");
  return op.call(in.q, in.k, in.v, in.mask, in.scale, in.accumulation, in.layout.cu_seqlens_q,
                 in.layout.cu_seqlens_k, in.layout.q_position);
}

// The same for the backward pass: what the forward pass was given, and what it made.
struct AttendBackwardArguments {
  const Tensor& dout;
  AttendArguments forward;
  const Tensor& out;
  const Tensor& lse;
};

template <Tensor3 (*run)(const AttendBackwardArguments& in)>
Tensor3 attend_backward_by(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                           const OptTensor& mask, const Tensor& out, const Tensor& lse,
                           std::optional<double> scale, std::string_view accumulation,
                           const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                           const OptTensor& q_position) {
  return run({.dout = dout,
              .forward = {.q = q,
                          .k = k,
                          .v = v,
                          .mask = mask,
                          .scale = scale,
                          .accumulation = accumulation,
                          .layout = {cu_seqlens_q, cu_seqlens_k, q_position}},
              .out = out,
              .lse = lse});
}

Tensor3 call_attend_backward(const AttendBackwardArguments& in) {
  static const auto op = find_operator<decltype(attend_backward_by<nullptr>)>("gsa::attend_backward");
  const AttendArguments& forward = in.forward;
  return op.call(in.dout, forward.q, forward.k, forward.v, forward.mask, in.out, in.lse, forward.scale,
                 forward.accumulation, forward.layout.cu_seqlens_q, forward.layout.cu_seqlens_k,
                 forward.layout.q_position);
}

// ---- Implementation

Tensor2 attend(const AttendArguments& in) {
  constexpr char op[] = "attend";
  bind_accumulation(op, in.accumulation);  // of the backward pass
  const Tensor& q = in.q;
  check_attention_ranks(op, q, in.k, in.layout);
  const std::unique_ptr<Backend> backend = backend_of(q);
  const TokenLayout layout = read_layout(op, "q", q, "k", in.k, in.layout);
  const BoundAttention attention = bind_attention(op, q, in.k, &in.v, in.scale, layout);
  const BoundMask mask = bind_mask(op, in.mask, layout);

  const AttendShape& shape = attention.shape;
  const Tensor out = empty(op, "q", q.sizes().vec(), q.scalar_type(), layout.device);
  const Tensor lse =
      empty(op, "q", joined(layout.q_tokens, {shape.heads}), real_type(shape.dtype), layout.device);
  if (layout.queries() > 0) {
    backend->attend({.shape = shape,
                     .q = attention.q.rows,
                     .k = attention.k.rows,
                     .v = attention.v.rows,
                     .mask = mask.view,
                     .sequences = layout.table.view(),
                     .out = result_rows(out, shape.heads, shape.head_size),
                     .lse = lse.mutable_data_ptr()});
  }
  return {out, lse};
}

Tensor3 backward_of_attend(const AttendBackwardArguments& in) {
  constexpr char op[] = "attend_backward";
  const auto& [q, k, v, given_mask, scale, accumulation, given_layout] = in.forward;
  const cuda::Accumulation order = bind_accumulation(op, accumulation);
  check_attention_ranks(op, q, k, given_layout);
  const std::unique_ptr<Backend> backend = backend_of(q);
  const TokenLayout layout = read_layout(op, "q", q, "k", k, given_layout);
  const BoundAttention attention = bind_attention(op, q, k, &v, scale, layout);
  const AttendShape& shape = attention.shape;
  const at::ScalarType real = real_type(shape.dtype);
  check_like(op, "dout", in.dout, q.scalar_type(), q.sizes().vec(), layout.device);
  check_like(op, "out", in.out, q.scalar_type(), q.sizes().vec(), layout.device);
  const BoundRows dout = head_rows(in.dout), out = head_rows(in.out);
  const Tensor lse = bind_per_query(op, "lse", in.lse, real, layout, {shape.heads});
  const BoundMask mask = bind_mask(op, given_mask, layout);

  const Tensor dq = empty(op, "q", q.sizes().vec(), q.scalar_type(), layout.device);
  const Tensor dk = zeros(op, "k", k.sizes().vec(), real, layout.device);
  const Tensor dv = zeros(op, "v", k.sizes().vec(), real, layout.device);
  if (layout.queries() > 0) {
    backend->attend_backward({.shape = shape,
                              .q = attention.q.rows,
                              .k = attention.k.rows,
                              .v = attention.v.rows,
                              .mask = mask.view,
                              .sequences = layout.table.view(),
                              .out = out.rows,
                              .lse = lse.const_data_ptr(),
                              .dout = dout.rows,
                              .dq = result_rows(dq, shape.heads, shape.head_size),
                              .dk = dk.mutable_data_ptr(),
                              .dv = dv.mutable_data_ptr()},
                             order);
  }
  return {dq, dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

// ---- Fake kernels

Tensor2 attend_fake(const AttendArguments& in) {
  const Tensor& q = in.q;
  const std::int64_t dims = fake::token_dims(in.layout);
  fake::check_attention("attend", q, in.k, in.v, dims);
  fake::check_devices("attend", {{"q", q}, {"mask", in.mask}});
  return {fake::empty_as(q),
          fake::empty(fake::joined(fake::tokens_of(q, dims), q.sym_size(-2)), q, fake::real_type(q))};
}

Tensor3 attend_backward_fake(const AttendBackwardArguments& in) {
  constexpr char op[] = "attend_backward";
  const AttendArguments& forward = in.forward;
  fake::check_attention(op, forward.q, forward.k, forward.v, fake::token_dims(forward.layout));
  fake::check_devices(
      op, {{"q", forward.q}, {"dout", in.dout}, {"mask", forward.mask}, {"out", in.out}, {"lse", in.lse}});
  return {fake::empty_as(forward.q), fake::empty_as(forward.k), fake::empty_as(forward.v)};
}

// ---- Gradient

class Attend : public Function<Attend> {
 public:
  struct Saved {
    Tensor q, k, v;
    OptTensor mask;
    Tensor out, lse;
    OptTensor cu_seqlens_q, cu_seqlens_k, q_position;
    auto slots() { return std::tie(q, k, v, mask, out, lse, cu_seqlens_q, cu_seqlens_k, q_position); }
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttendArguments& in) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [out, lse] = call_attend(in);
    save(ctx, Saved{.q = q,
                    .k = k,
                    .v = v,
                    .mask = in.mask,
                    .out = out,
                    .lse = lse,
                    .cu_seqlens_q = in.layout.cu_seqlens_q,
                    .cu_seqlens_k = in.layout.cu_seqlens_k,
                    .q_position = in.layout.q_position});
    ctx->saved_data["scale"] = in.scale;
    ctx->saved_data["accumulation"] = std::string(in.accumulation);
    ctx->mark_non_differentiable({lse});
    ctx->set_materialize_grads(false);
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const auto saved = load<Saved>(ctx);
    auto [dq, dk, dv] = call_attend_backward(
        {.dout = grads[0],
         .forward = {.q = saved.q,
                     .k = saved.k,
                     .v = saved.v,
                     .mask = saved.mask,
                     .scale = ctx->saved_data["scale"].toOptional<double>(),
                     .accumulation = ctx->saved_data["accumulation"].toStringView(),
                     .layout = {saved.cu_seqlens_q, saved.cu_seqlens_k, saved.q_position}},
         .out = saved.out,
         .lse = saved.lse});
    result[0] = wanted(ctx, 0, dq);
    result[1] = wanted(ctx, 1, dk);
    result[2] = wanted(ctx, 2, dv);
    return result;
  }
};

Tensor2 attend_autograd(const AttendArguments& in) {
  const variable_list results = Attend::apply(in.q, in.k, in.v, in);
  return {results[0], results[1]};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "attend", &attend_by<attend>);
  implement(m, "attend_backward", &attend_backward_by<backward_of_attend>);
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  m.impl("attend", &attend_by<attend_fake>);
  m.impl("attend_backward", &attend_backward_by<attend_backward_fake>);
}

TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  m.impl("attend", &attend_by<attend_autograd>);
  m.impl("attend_backward", not_differentiable());
}

}  // namespace gsa::binding

namespace gsa::ops {

Attention attend(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& mask,
                 std::optional<double> scale, const Layout& layout, const std::string& accumulation) {
  auto [out, lse] = binding::call_attend({.q = q,
                                          .k = k,
                                          .v = v,
                                          .mask = mask,
                                          .scale = scale,
                                          .accumulation = accumulation,
                                          .layout = binding::tensors_of(layout)});
  return {out, lse};
}

AttentionGradients attend_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Attention& attention, const std::string& accumulation) {
  auto [dq, dk, dv] = binding::call_attend_backward({.dout = dout,
                                                     .forward = {.q = q,
                                                                 .k = k,
                                                                 .v = v,
                                                                 .mask = std::nullopt,
                                                                 .scale = std::nullopt,
                                                                 .accumulation = accumulation,
                                                                 .layout = binding::tensors_of(Layout{})},
                                                     .out = attention.out,
                                                     .lse = attention.lse});
  return {dq, dk, dv};
}

}  // namespace gsa::ops
