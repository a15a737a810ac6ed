// Gradients and fake kernels of the operators of fused.cc, and their C++ functions.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "gsa/error.h"
#include "torch/fused.h"
#include "torch/signatures.h"
#include "torch/tensor_checks.h"

namespace gsa::binding {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

using RmsNormFn = Tensor3(const Tensor& x, const OptTensor& branch, const Tensor& weight, double eps);
using RmsNormBackwardFn = Tensor2(const Tensor& dy, const OptTensor& dsum, const Tensor& sum,
                                  const Tensor& weight, const Tensor& rstd);
using RotaryFn = Tensor3(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t q_heads,
                         std::int64_t k_heads, std::int64_t v_heads);
using RotaryBackwardFn = Tensor(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos,
                                const Tensor& sin);
using SwigluFn = Tensor(const Tensor& x);
using SwigluBackwardFn = Tensor(const Tensor& dy, const Tensor& x);
using AdamWFn = void(const Tensor& master, const Tensor& mean, const Tensor& square, const OptTensor& weight,
                     const Tensor& gradient, double lr, double beta1, double beta2, double eps, double decay,
                     double factor, std::int64_t step);
using CrossEntropyFn = Tensor(const Tensor& logits, const Tensor& targets, std::int64_t ignored,
                              bool gradient);

OptTensor optional_of(const Tensor& tensor) { return tensor.defined() ? OptTensor(tensor) : OptTensor(); }

class RmsNorm : public Function<RmsNorm> {
 public:
  // pass_on: without a branch the second result is x itself, so that the gradient of the stream comes through
  // here and is added on the way.
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const OptTensor& branch,
                               const Tensor& weight, double eps, bool pass_on) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = find_operator<RmsNormFn>("gsa::rms_norm");
    auto [y, sum, rstd] = op.call(x, branch, weight, eps);
    ctx->save_for_backward({branch ? sum : x, weight, rstd});
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
      const variable_list saved = ctx->get_saved_variables();
      static const auto op = find_operator<RmsNormBackwardFn>("gsa::rms_norm_backward");
      std::tie(dx, dweight) = op.call(grads[0], optional_of(grads[1]), saved[0], saved[1], saved[2]);
    }
    if (ctx->needs_input_grad(0)) result[0] = dx;
    if (branch && ctx->needs_input_grad(1)) result[1] = dx;
    if (ctx->needs_input_grad(branch ? 2 : 1)) result[2] = dweight;
    return result;
  }
};

class Rotary : public Function<Rotary> {
 public:
  struct Heads {
    std::int64_t q, k, v;
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin,
                               const Heads& heads) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = find_operator<RotaryFn>("gsa::rotary");
    auto [q, k, v] = op.call(x, cos, sin, heads.q, heads.k, heads.v);
    ctx->save_for_backward({cos, sin});
    return {q, k, v};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    static const auto op = find_operator<RotaryBackwardFn>("gsa::rotary_backward");
    return {op.call(grads[0], grads[1], grads[2], saved[0], saved[1]), Tensor(), Tensor(), Tensor()};
  }
};

class Swiglu : public Function<Swiglu> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = find_operator<SwigluFn>("gsa::swiglu");
    ctx->save_for_backward({x});
    ctx->set_materialize_grads(false);
    return op.call(x);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(1);
    static const auto op = find_operator<SwigluBackwardFn>("gsa::swiglu_backward");
    return {op.call(grads[0], ctx->get_saved_variables()[0])};
  }
};

Tensor3 rms_norm_autograd(const Tensor& x, const OptTensor& branch, const Tensor& weight, double eps) {
  const variable_list results = RmsNorm::apply(x, branch, weight, eps, /*pass_on=*/false);
  return {results[0], results[1], results[2]};
}

Tensor3 rotary_autograd(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t q_heads,
                        std::int64_t k_heads, std::int64_t v_heads) {
  const variable_list results = Rotary::apply(x, cos, sin, Rotary::Heads{q_heads, k_heads, v_heads});
  return {results[0], results[1], results[2]};
}

Tensor swiglu_autograd(const Tensor& x) { return Swiglu::apply(x); }

// ---- shapes without data

using SymShape = std::vector<c10::SymInt>;

Tensor empty_as(const Tensor& tensor) {
  return at::empty_symint(tensor.sym_sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

at::ScalarType real_of(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void check_vectors(const char* op, const char* argument, const Tensor& tensor) {
  if (tensor.dim() < 1) bad_argument(op, argument, "at least 1 dimension [..., d]", "none");
}

Tensor3 rms_norm_meta(const Tensor& x, const OptTensor& branch, const Tensor&, double) {
  check_vectors("rms_norm", "x", x);
  const SymShape tokens = x.sym_sizes().slice(0, static_cast<std::size_t>(x.dim() - 1)).vec();
  return {empty_as(x), branch ? empty_as(x) : at::empty_symint({c10::SymInt(0)}, x.options()),
          at::empty_symint(tokens, x.options().dtype(real_of(x)))};
}

Tensor2 rms_norm_backward_meta(const Tensor&, const OptTensor&, const Tensor& sum, const Tensor& weight,
                               const Tensor&) {
  return {empty_as(sum), empty_as(weight)};
}

Tensor3 rotary_meta(const Tensor& x, const Tensor&, const Tensor&, std::int64_t q_heads, std::int64_t k_heads,
                    std::int64_t v_heads) {
  const std::int64_t heads = q_heads + k_heads + v_heads;
  check_rank("rotary", "x", x, 2, "[T, heads x head_size]");
  if (heads < 1)
    bad_argument("rotary", "q_heads", "at least one head with k_heads and v_heads", concat(heads));
  const c10::SymInt size = x.sym_size(1) / heads;
  const auto part = [&](std::int64_t count) {
    return at::empty_symint({x.sym_size(0), c10::SymInt(count), size}, x.options());
  };
  return {part(q_heads), part(k_heads), part(v_heads)};
}

Tensor rotary_backward_meta(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor&,
                            const Tensor&) {
  check_rank("rotary_backward", "dq", dq, 3, "[T, heads, head_size]");
  check_rank("rotary_backward", "dk", dk, 3, "[T, heads, head_size]");
  check_rank("rotary_backward", "dv", dv, 3, "[T, heads, head_size]");
  const c10::SymInt heads = dq.sym_size(1) + dk.sym_size(1) + dv.sym_size(1);
  return at::empty_symint({dq.sym_size(0), heads * dq.sym_size(2)}, dq.options());
}

Tensor swiglu_meta(const Tensor& x) {
  check_vectors("swiglu", "x", x);
  SymShape shape = x.sym_sizes().vec();
  shape.back() = shape.back() / 2;
  return at::empty_symint(shape, x.options());
}

Tensor swiglu_backward_meta(const Tensor&, const Tensor& x) { return empty_as(x); }

Tensor cross_entropy_meta(const Tensor& logits, const Tensor&, std::int64_t, bool) {
  check_rank("cross_entropy_", "logits", logits, 2, "[T, classes]");
  return at::empty_symint({logits.sym_size(0)}, logits.options().dtype(real_of(logits)));
}

void adamw_meta(const Tensor&, const Tensor&, const Tensor&, const OptTensor&, const Tensor&, double, double,
                double, double, double, double, std::int64_t) {}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  m.impl("rms_norm", &rms_norm_autograd);
  m.impl("rotary", &rotary_autograd);
  m.impl("swiglu", &swiglu_autograd);
  // Differentiating these is an error that names them.
  for (const char* name : {"rms_norm_backward", "rotary_backward", "swiglu_backward"}) {
    m.impl(name, not_differentiable());
  }
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  m.impl("rms_norm", &rms_norm_meta);
  m.impl("rms_norm_backward", &rms_norm_backward_meta);
  m.impl("rotary", &rotary_meta);
  m.impl("rotary_backward", &rotary_backward_meta);
  m.impl("swiglu", &swiglu_meta);
  m.impl("swiglu_backward", &swiglu_backward_meta);
  m.impl("cross_entropy_", &cross_entropy_meta);
  m.impl("adamw_", &adamw_meta);
}

}  // namespace gsa::binding

namespace gsa::ops {

using binding::find_operator;

Normed rms_norm(const Tensor& x, const std::optional<Tensor>& branch, const Tensor& weight, double eps) {
  const auto results = binding::RmsNorm::apply(x, branch, weight, eps, /*pass_on=*/true);
  return {results[0], results[1]};
}

Rotated rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t q_heads,
               std::int64_t k_heads, std::int64_t v_heads) {
  static const auto op = find_operator<binding::RotaryFn>("gsa::rotary");
  auto [q, k, v] = op.call(x, cos, sin, q_heads, k_heads, v_heads);
  return {q, k, v};
}

Tensor swiglu(const Tensor& x) {
  static const auto op = find_operator<binding::SwigluFn>("gsa::swiglu");
  return op.call(x);
}

Tensor cross_entropy_(Tensor& logits, const Tensor& targets, std::int64_t ignored, bool gradient) {
  static const auto op = find_operator<binding::CrossEntropyFn>("gsa::cross_entropy_");
  return op.call(logits, targets, ignored, gradient);
}

void adamw_(const Tensor& master, const Tensor& mean, const Tensor& square,
            const std::optional<Tensor>& weight, const Tensor& gradient, const AdamWStep& step) {
  static const auto op = find_operator<binding::AdamWFn>("gsa::adamw_");
  op.call(master, mean, square, weight, gradient, step.lr, step.beta1, step.beta2, step.eps, step.decay,
          step.factor, step.number);
}

}  // namespace gsa::ops
