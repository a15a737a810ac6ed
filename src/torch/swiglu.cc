// swiglu and its backward pass.
#include "gsa/error.h"
#include "torch/backend.h"
#include "torch/fake.h"
#include "torch/gradient.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/rows.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // silu(g) u for x = [g | u], [..., 2 n] -> [..., n].
  m.def("swiglu(Tensor x) -> Tensor");
  m.def("swiglu_backward(Tensor dy, Tensor x) -> Tensor dx");
}

namespace {

// ---- Arguments

SwigluShape swiglu_shape(const char* op, const Tensor& x) {
  check_vectors(op, "x", x);
  if (x.size(-1) % 2 != 0) {
    bad_argument(op, "x", "an even last dimension: g and u side by side", to_string(x.sizes()));
  }
  const std::int64_t size = x.size(-1) / 2;
  return {.dtype = dtype_of(op, "x", x, /*allow_float32=*/true),
          .tokens = size == 0 ? 0 : x.numel() / (2 * size),
          .size = size};
}

Shape halved(const Tensor& x) {
  Shape shape = x.sizes().vec();
  shape.back() /= 2;
  return shape;
}

// ---- Implementation

Tensor swiglu(const Tensor& x) {
  constexpr char op[] = "swiglu";
  const SwigluShape shape = swiglu_shape(op, x);
  const Tensor in = x.contiguous();
  const Tensor y = empty(op, "x", halved(x), x.scalar_type(), x.device());
  backend_of(x)->swiglu({.shape = shape, .x = data_of(in), .y = mutable_data_of(y)});
  return y;
}

Tensor swiglu_backward(const Tensor& dy, const Tensor& x) {
  constexpr char op[] = "swiglu_backward";
  const SwigluShape shape = swiglu_shape(op, x);
  check_like(op, "dy", dy, x.scalar_type(), halved(x), x.device());
  const Tensor in = x.contiguous(), d = dy.contiguous();
  const Tensor dx = empty(op, "x", x.sizes().vec(), x.scalar_type(), x.device());
  backend_of(x)->swiglu_backward(
      {.shape = shape, .x = data_of(in), .dy = data_of(d), .dx = mutable_data_of(dx)});
  return dx;
}

// ---- Fake kernels

Tensor swiglu_fake(const Tensor& x) {
  check_vectors("swiglu", "x", x);
  const fake::SymShape tokens = fake::tokens_of(x, x.dim() - 1);
  return fake::empty(fake::joined(tokens, x.sym_size(-1) / 2), x, x.scalar_type());
}

Tensor swiglu_backward_fake(const Tensor&, const Tensor& x) { return fake::empty_as(x); }

// ---- Gradient

class Swiglu : public Function<Swiglu> {
 public:
  struct Saved {
    Tensor x;
    auto slots() { return std::tie(x); }
  };

  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    const at::AutoDispatchBelowADInplaceOrView below;
    save(ctx, Saved{.x = x});
    ctx->set_materialize_grads(false);
    return ops::swiglu(x);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(1);
    static const auto op = find_operator<decltype(swiglu_backward)>("gsa::swiglu_backward");
    return {op.call(grads[0], load<Saved>(ctx).x)};
  }
};

Tensor swiglu_autograd(const Tensor& x) { return Swiglu::apply(x); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "swiglu", &swiglu);
  implement(m, "swiglu_backward", &swiglu_backward);
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  m.impl("swiglu", &swiglu_fake);
  m.impl("swiglu_backward", &swiglu_backward_fake);
}

TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  m.impl("swiglu", &swiglu_autograd);
  m.impl("swiglu_backward", not_differentiable());
}

}  // namespace gsa::binding

namespace gsa::ops {

Tensor swiglu(const Tensor& x) {
  static const auto op = binding::find_operator<decltype(binding::swiglu)>("gsa::swiglu");
  return op.call(x);
}

}  // namespace gsa::ops
