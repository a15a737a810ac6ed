// rms_norm, of a sum where there is a branch to add, and its backward pass.
#include "torch/backend.h"
#include "torch/fake.h"
#include "torch/gradient.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/rows.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // s = x + branch, y = s / sqrt(mean(s^2) + eps) * weight over the last dimension. x, branch [..., d],
  // weight [d]; rstd Real [...]. Without a branch s is x, and sum comes back empty.
  m.def(
      "rms_norm(Tensor x, Tensor? branch, Tensor weight, float eps) -> (Tensor y, Tensor sum, Tensor rstd)");
  // dsum: the gradient that reaches s from elsewhere. sum is s: x where there was no branch. dx is the
  // gradient of x and of the branch.
  m.def(
      "rms_norm_backward(Tensor dy, Tensor? dsum, Tensor sum, Tensor weight, Tensor rstd) "
      "-> (Tensor dx, Tensor dweight)");
}

namespace {

// ---- Arguments

// argument: the name of x.
RmsNormShape norm_shape(const char* op, const char* argument, const Tensor& x, const Tensor& weight,
                        double eps) {
  constexpr std::int64_t kMaxSize = 1 << 20;
  check_vectors(op, argument, x);
  check_range(op, argument, "a last dimension", x.size(-1), 1, kMaxSize);
  const DType dtype = dtype_of(op, argument, x, /*allow_float32=*/true);
  check_like(op, "weight", weight, x.scalar_type(), {x.size(-1)}, x.device());
  const std::int64_t size = x.size(-1);
  return {.dtype = dtype, .tokens = x.numel() / size, .size = size, .eps = eps};
}

Shape token_shape(const Tensor& x) { return x.sizes().slice(0, static_cast<std::size_t>(x.dim() - 1)).vec(); }

// ---- Implementation

Tensor3 rms_norm(const Tensor& x, const OptTensor& branch, const Tensor& weight, double eps) {
  constexpr char op[] = "rms_norm";
  const RmsNormShape shape = norm_shape(op, "x", x, weight, eps);
  if (branch) check_like(op, "branch", *branch, x.scalar_type(), x.sizes().vec(), x.device());
  const Tensor in = x.contiguous(), more = branch ? branch->contiguous() : Tensor(), w = weight.contiguous();
  const Tensor y = empty(op, "x", x.sizes().vec(), x.scalar_type(), x.device());
  const Tensor sum = branch ? empty(op, "x", x.sizes().vec(), x.scalar_type(), x.device())
                            : empty(op, "x", {0}, x.scalar_type(), x.device());
  const Tensor rstd = empty(op, "x", token_shape(x), real_type(shape.dtype), x.device());
  backend_of(x)->rms_norm({.shape = shape,
                           .x = data_of(in),
                           .branch = branch ? data_of(more) : nullptr,
                           .weight = data_of(w),
                           .y = mutable_data_of(y),
                           .sum = branch ? mutable_data_of(sum) : nullptr,
                           .rstd = mutable_data_of(rstd)});
  return {y, sum, rstd};
}

Tensor2 rms_norm_backward(const Tensor& dy, const OptTensor& dsum, const Tensor& sum, const Tensor& weight,
                          const Tensor& rstd) {
  constexpr char op[] = "rms_norm_backward";
  const RmsNormShape shape = norm_shape(op, "sum", sum, weight, 0);
  check_like(op, "dy", dy, sum.scalar_type(), sum.sizes().vec(), sum.device());
  if (dsum) check_like(op, "dsum", *dsum, sum.scalar_type(), sum.sizes().vec(), sum.device());
  check_like(op, "rstd", rstd, real_type(shape.dtype), token_shape(sum), sum.device());
  const Tensor d = dy.contiguous(), other = dsum ? dsum->contiguous() : Tensor(), s = sum.contiguous();
  const Tensor w = weight.contiguous(), r = rstd.contiguous();
  const Tensor dx = empty(op, "sum", sum.sizes().vec(), sum.scalar_type(), sum.device());
  const Tensor dweight = empty(op, "weight", {shape.size}, real_type(shape.dtype), sum.device());
  backend_of(sum)->rms_norm_backward({.shape = shape,
                                      .dy = data_of(d),
                                      .dsum = dsum ? data_of(other) : nullptr,
                                      .sum = data_of(s),
                                      .weight = data_of(w),
                                      .rstd = data_of(r),
                                      .dx = mutable_data_of(dx),
                                      .dweight = mutable_data_of(dweight)});
  return {dx, dweight.to(weight.scalar_type())};
}

// ---- Fake kernels

Tensor3 rms_norm_fake(const Tensor& x, const OptTensor& branch, const Tensor&, double) {
  check_vectors("rms_norm", "x", x);
  return {fake::empty_as(x), branch ? fake::empty_as(x) : fake::empty({0}, x, x.scalar_type()),
          fake::empty(fake::tokens_of(x, x.dim() - 1), x, fake::real_type(x))};
}

Tensor2 rms_norm_backward_fake(const Tensor&, const OptTensor&, const Tensor& sum, const Tensor& weight,
                               const Tensor&) {
  return {fake::empty_as(sum), fake::empty_as(weight)};
}

// ---- Gradient

class RmsNorm : public Function<RmsNorm> {
 public:
  struct Saved {
    Tensor sum, weight, rstd;
    auto slots() { return std::tie(sum, weight, rstd); }
  };

  // pass_on: without a branch the second result is x itself, so that the gradient of the stream comes through
  // here and is added on the way.
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const OptTensor& branch,
                               const Tensor& weight, double eps, bool pass_on) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = find_operator<decltype(rms_norm)>("gsa::rms_norm");
    auto [y, sum, rstd] = op.call(x, branch, weight, eps);
    save(ctx, Saved{.sum = branch ? sum : x, .weight = weight, .rstd = rstd});
    ctx->saved_data["branch"] = branch.has_value();
    ctx->set_materialize_grads(false);
    const bool passes_on = !branch && pass_on;
    if (branch || passes_on) {
      ctx->mark_non_differentiable({rstd});
    } else {
      ctx->mark_non_differentiable({rstd, sum});
    }
    return {y, passes_on ? x : sum, rstd};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(5);
    const bool branch = ctx->saved_data["branch"].toBool();
    Tensor dx = grads[1], dweight;
    if (grads[0].defined()) {
      const auto saved = load<Saved>(ctx);
      static const auto op = find_operator<decltype(rms_norm_backward)>("gsa::rms_norm_backward");
      std::tie(dx, dweight) = op.call(grads[0], optional_of(grads[1]), saved.sum, saved.weight, saved.rstd);
    }
    // An absent branch is not counted among the inputs.
    result[0] = wanted(ctx, 0, dx);
    if (branch) result[1] = wanted(ctx, 1, dx);
    result[2] = wanted(ctx, branch ? 2 : 1, dweight);
    return result;
  }
};

Tensor3 rms_norm_autograd(const Tensor& x, const OptTensor& branch, const Tensor& weight, double eps) {
  const variable_list results = RmsNorm::apply(x, branch, weight, eps, /*pass_on=*/false);
  return {results[0], results[1], results[2]};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "rms_norm", &rms_norm);
  implement(m, "rms_norm_backward", &rms_norm_backward);
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  m.impl("rms_norm", &rms_norm_fake);
  m.impl("rms_norm_backward", &rms_norm_backward_fake);
}

TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  m.impl("rms_norm", &rms_norm_autograd);
  m.impl("rms_norm_backward", not_differentiable());
}

}  // namespace gsa::binding

namespace gsa::ops {

Normed rms_norm(const Tensor& x, const OptTensor& branch, const Tensor& weight, double eps) {
  const auto results = binding::RmsNorm::apply(x, branch, weight, eps, /*pass_on=*/true);
  return {results[0], results[1]};
}

}  // namespace gsa::ops
