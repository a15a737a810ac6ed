// rotary: queries, keys and values out of one product, rotated by their positions; and its backward pass.
#include "gsa/error.h"
#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/fake.h"
#include "torch/gradient.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/rows.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // x [T, (q_heads + k_heads + v_heads) d], cos and sin Real [T, pairs], pairs <= d / 2 -> q, k, v [T, heads,
  // d]: queries and keys rotated in their first 2 pairs dimensions (half-split layout), values as they are.
  m.def(
      "rotary(Tensor x, Tensor cos, Tensor sin, int q_heads, int k_heads, int v_heads) "
      "-> (Tensor q, Tensor k, Tensor v)");
  m.def("rotary_backward(Tensor dq, Tensor dk, Tensor dv, Tensor cos, Tensor sin) -> Tensor dx");
}

namespace {

// ---- Arguments

struct BoundRotary {
  RotaryShape shape;
  Tensor cos, sin;
};

// The end of both passes' checks: of heads that `tensor` holds, the argument of this name, of the sizes that
// `shape` has so far.
BoundRotary bind_rotary(const char* op, const char* argument, const Tensor& tensor, RotaryShape shape,
                        const Tensor& cos, const Tensor& sin) {
  check_range(op, argument, "a head size", shape.head_size, 1, kMaxHeadSize);
  check_rotary_tables(op, {"cos", cos, "sin", sin}, shape.tokens, shape.head_size, real_type(shape.dtype),
                      tensor.device());
  shape.pairs = cos.size(1);
  return {shape, cos.contiguous(), sin.contiguous()};
}

// ---- Implementation

Tensor3 rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t q_heads,
               std::int64_t k_heads, std::int64_t v_heads) {
  constexpr char op[] = "rotary";
  constexpr std::int64_t kMaxRotaryHeads = 1 << 20;
  check_rank(op, "x", x, 2, "[T, heads x head_size]");
  const DType dtype = dtype_of(op, "x", x, /*allow_float32=*/true);
  const std::int64_t tokens = x.size(0), heads = q_heads + k_heads + v_heads;
  check_range(op, "q_heads", "a number of heads", q_heads, 0, kMaxRotaryHeads);
  check_range(op, "k_heads", "a number of heads", k_heads, 0, kMaxRotaryHeads);
  check_range(op, "v_heads", "a number of heads", v_heads, 0, kMaxRotaryHeads);
  if (heads == 0 || x.size(1) % heads != 0) {
    bad_argument(op, "x", concat("[T, ", heads, " heads of one size side by side]"), to_string(x.sizes()));
  }
  const std::int64_t size = x.size(1) / heads;
  const BoundRotary bound = bind_rotary(op, "x", x,
                                        {.dtype = dtype,
                                         .tokens = tokens,
                                         .q_heads = q_heads,
                                         .k_heads = k_heads,
                                         .v_heads = v_heads,
                                         .head_size = size},
                                        cos, sin);
  const Tensor in = x.contiguous();
  const auto part = [&](std::int64_t count) {
    return empty(op, "x", {tokens, count, size}, x.scalar_type(), x.device());
  };
  const Tensor q = part(q_heads), k = part(k_heads), v = part(v_heads);
  backend_of(x)->rotary({.shape = bound.shape,
                         .x = data_of(in),
                         .cos = data_of(bound.cos),
                         .sin = data_of(bound.sin),
                         .q = mutable_data_of(q),
                         .k = mutable_data_of(k),
                         .v = mutable_data_of(v)});
  return {q, k, v};
}

Tensor rotary_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos,
                       const Tensor& sin) {
  constexpr char op[] = "rotary_backward";
  const DType dtype = dtype_of(op, "dq", dq, /*allow_float32=*/true);
  check_rank(op, "dq", dq, 3, "[T, heads, head_size]");
  const std::int64_t tokens = dq.size(0), size = dq.size(2);
  check_rank(op, "dk", dk, 3, "[T, heads, head_size]");
  check_rank(op, "dv", dv, 3, "[T, heads, head_size]");
  check_like(op, "dk", dk, dq.scalar_type(), {tokens, dk.size(1), size}, dq.device());
  check_like(op, "dv", dv, dq.scalar_type(), {tokens, dv.size(1), size}, dq.device());
  const BoundRotary bound = bind_rotary(op, "dq", dq,
                                        {.dtype = dtype,
                                         .tokens = tokens,
                                         .q_heads = dq.size(1),
                                         .k_heads = dk.size(1),
                                         .v_heads = dv.size(1),
                                         .head_size = size},
                                        cos, sin);
  const Tensor q = dq.contiguous(), k = dk.contiguous(), v = dv.contiguous();
  const std::int64_t heads = q.size(1) + k.size(1) + v.size(1);
  const Tensor dx = empty(op, "dq", {tokens, heads * size}, dq.scalar_type(), dq.device());
  backend_of(dq)->rotary_backward({.shape = bound.shape,
                                   .dq = data_of(q),
                                   .dk = data_of(k),
                                   .dv = data_of(v),
                                   .cos = data_of(bound.cos),
                                   .sin = data_of(bound.sin),
                                   .dx = mutable_data_of(dx)});
  return dx;
}

// ---- Fake kernels

Tensor3 rotary_fake(const Tensor& x, const Tensor&, const Tensor&, std::int64_t q_heads, std::int64_t k_heads,
                    std::int64_t v_heads) {
  const std::int64_t heads = q_heads + k_heads + v_heads;
  check_rank("rotary", "x", x, 2, "[T, heads x head_size]");
  if (heads < 1) {
    bad_argument("rotary", "q_heads", "at least one head with k_heads and v_heads", concat(heads));
  }
  const c10::SymInt size = x.sym_size(1) / heads;
  const auto part = [&](std::int64_t count) {
    return fake::empty({x.sym_size(0), count, size}, x, x.scalar_type());
  };
  return {part(q_heads), part(k_heads), part(v_heads)};
}

Tensor rotary_backward_fake(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor&,
                            const Tensor&) {
  check_rank("rotary_backward", "dq", dq, 3, "[T, heads, head_size]");
  check_rank("rotary_backward", "dk", dk, 3, "[T, heads, head_size]");
  check_rank("rotary_backward", "dv", dv, 3, "[T, heads, head_size]");
  const c10::SymInt heads = dq.sym_size(1) + dk.sym_size(1) + dv.sym_size(1);
  return fake::empty({dq.sym_size(0), heads * dq.sym_size(2)}, dq, dq.scalar_type());
}

// ---- Gradient

class Rotary : public Function<Rotary> {
 public:
  struct Heads {
    std::int64_t q, k, v;
  };
  struct Saved {
    Tensor cos, sin;
    auto slots() { return std::tie(cos, sin); }
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin,
                               const Heads& heads) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const ops::Rotated rotated = ops::rotary(x, cos, sin, heads.q, heads.k, heads.v);
    save(ctx, Saved{.cos = cos, .sin = sin});
    return {rotated.q, rotated.k, rotated.v};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = load<Saved>(ctx);
    static const auto op = find_operator<decltype(rotary_backward)>("gsa::rotary_backward");
    return {op.call(grads[0], grads[1], grads[2], saved.cos, saved.sin), Tensor(), Tensor(), Tensor()};
  }
};

Tensor3 rotary_autograd(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t q_heads,
                        std::int64_t k_heads, std::int64_t v_heads) {
  const variable_list results =
      Rotary::apply(x, cos, sin, Rotary::Heads{.q = q_heads, .k = k_heads, .v = v_heads});
  return {results[0], results[1], results[2]};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "rotary", &rotary);
  implement(m, "rotary_backward", &rotary_backward);
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  m.impl("rotary", &rotary_fake);
  m.impl("rotary_backward", &rotary_backward_fake);
}

TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  m.impl("rotary", &rotary_autograd);
  m.impl("rotary_backward", not_differentiable());
}

}  // namespace gsa::binding

namespace gsa::ops {

Rotated rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t q_heads,
               std::int64_t k_heads, std::int64_t v_heads) {
  static const auto op = binding::find_operator<decltype(binding::rotary)>("gsa::rotary");
  auto [q, k, v] = op.call(x, cos, sin, q_heads, k_heads, v_heads);
  return {q, k, v};
}

}  // namespace gsa::ops
