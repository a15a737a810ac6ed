// gate and its backward pass.
#include "core/checked.h"
#include "gsa/error.h"
#include "torch/backend.h"
#include "torch/fake.h"
#include "torch/gradient.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/rows.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // x * sigmoid(z). x [..., heads, d]; z as x, or [..., heads]: one gate a head. Differentiable in both.
  m.def("gate(Tensor x, Tensor z) -> Tensor");
  m.def("gate_backward(Tensor dy, Tensor x, Tensor z) -> (Tensor dx, Tensor dz)");
}

namespace {

// ---- Arguments

struct BoundGate {
  GateShape shape;
  BoundRows x, z;
};

BoundGate bind_gate(const char* op, const Tensor& x, const Tensor& z) {
  if (x.dim() < 2) {
    bad_argument(op, "x", "at least 2 dimensions [..., heads, d]", to_string(x.sizes()));
  }
  const DType dtype = dtype_of(op, "x", x, /*allow_float32=*/true);
  check_device(op, "z", z, x.device());
  check_type(op, "z", z, x.scalar_type());
  const at::IntArrayRef per_head = x.sizes().slice(0, static_cast<std::size_t>(x.dim() - 1));
  const bool head_wise = z.sizes() == per_head;
  if (!head_wise && z.sizes() != x.sizes()) {
    bad_argument(op, "z",
                 concat("shape ", to_string(x.sizes()), " or, one gate a head, ", to_string(per_head)),
                 to_string(z.sizes()));
  }
  check_result(op, "x", x.sizes(), x.scalar_type());
  std::int64_t tokens = 1;
  for (std::int64_t i = 0; i < x.dim() - 2; ++i) tokens = checked_mul(tokens, x.size(i), op, "x");
  return {{.dtype = dtype,
           .tokens = tokens,
           .heads = x.size(-2),
           .head_size = x.size(-1),
           .head_wise = head_wise},
          head_rows(x),
          head_wise ? scalar_rows(z) : head_rows(z)};
}

Rows z_rows(const Tensor& dz, const GateShape& shape) {
  return result_rows(dz, shape.heads, shape.head_wise ? 1 : shape.head_size);
}

// ---- Implementation

Tensor gate(const Tensor& x, const Tensor& z) {
  constexpr char op[] = "gate";
  const BoundGate bound = bind_gate(op, x, z);
  const std::unique_ptr<Backend> backend = backend_of(x);
  const Tensor y = empty(op, "x", x.sizes().vec(), x.scalar_type(), x.device());
  if (y.numel() > 0) {
    backend->gate({.shape = bound.shape,
                   .x = bound.x.rows,
                   .z = bound.z.rows,
                   .y = result_rows(y, bound.shape.heads, bound.shape.head_size)});
  }
  return y;
}

Tensor2 gate_backward(const Tensor& dy, const Tensor& x, const Tensor& z) {
  constexpr char op[] = "gate_backward";
  const BoundGate bound = bind_gate(op, x, z);
  check_like(op, "dy", dy, x.scalar_type(), x.sizes().vec(), x.device());
  const std::unique_ptr<Backend> backend = backend_of(x);
  const BoundRows bound_dy = head_rows(dy);
  const Tensor dx = empty(op, "x", x.sizes().vec(), x.scalar_type(), x.device());
  // A gate over a head of size 0 has a gradient all the same: zero.
  const Tensor dz = x.numel() > 0 ? empty(op, "z", z.sizes().vec(), z.scalar_type(), x.device())
                                  : zeros(op, "z", z.sizes().vec(), z.scalar_type(), x.device());
  if (x.numel() > 0) {
    backend->gate_backward({.shape = bound.shape,
                            .x = bound.x.rows,
                            .z = bound.z.rows,
                            .dy = bound_dy.rows,
                            .dx = result_rows(dx, bound.shape.heads, bound.shape.head_size),
                            .dz = z_rows(dz, bound.shape)});
  }
  return {dx, dz};
}

// ---- Fake kernels

void check_fake(const char* op, const Tensor& x, const Tensor& z) {
  if (x.dim() < 2) {
    bad_argument(op, "x", "at least 2 dimensions [..., heads, d]", concat(x.dim(), " dimensions"));
  }
  if (z.dim() != x.dim() && z.dim() != x.dim() - 1) {
    bad_argument(op, "z", concat(x.dim(), " or ", x.dim() - 1, " dimensions"),
                 concat(z.dim(), " dimensions"));
  }
  fake::check_devices(op, {{"x", x}, {"z", z}});
}

Tensor gate_fake(const Tensor& x, const Tensor& z) {
  check_fake("gate", x, z);
  return fake::empty_as(x);
}

Tensor2 gate_backward_fake(const Tensor& dy, const Tensor& x, const Tensor& z) {
  check_fake("gate_backward", x, z);
  fake::check_devices("gate_backward", {{"x", x}, {"dy", dy}});
  return {fake::empty_as(x), fake::empty_as(z)};
}

// ---- Gradient

class Gate : public Function<Gate> {
 public:
  struct Saved {
    Tensor x, z;
    auto slots() { return std::tie(x, z); }
  };

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& z) {
    const at::AutoDispatchBelowADInplaceOrView below;
    save(ctx, Saved{.x = x, .z = z});
    ctx->set_materialize_grads(false);
    return ops::gate(x, z);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(2);
    const auto saved = load<Saved>(ctx);
    static const auto op = find_operator<decltype(gate_backward)>("gsa::gate_backward");
    auto [dx, dz] = op.call(grads[0], saved.x, saved.z);
    return {wanted(ctx, 0, dx), wanted(ctx, 1, dz)};
  }
};

Tensor gate_autograd(const Tensor& x, const Tensor& z) { return Gate::apply(x, z); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "gate", &gate);
  implement(m, "gate_backward", &gate_backward);
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  m.impl("gate", &gate_fake);
  m.impl("gate_backward", &gate_backward_fake);
}

TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  m.impl("gate", &gate_autograd);
  m.impl("gate_backward", not_differentiable());
}

}  // namespace gsa::binding

namespace gsa::ops {

Tensor gate(const Tensor& x, const Tensor& z) {
  static const auto op = binding::find_operator<decltype(binding::gate)>("gsa::gate");
  return op.call(x, z);
}

}  // namespace gsa::ops
