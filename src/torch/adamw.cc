// adamw_: one step of AdamW in one pass over a parameter.
#include "torch/backend.h"
#include "torch/fake.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/rows.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // One step of AdamW (kernels/adamw/adamw.h) for a parameter whose fp32 master, mean and square are given,
  // all of one shape; weight, where given, gets the result in its own type. step counts from 1.
  m.def(
      "adamw_(Tensor(a!) master, Tensor(b!) mean, Tensor(c!) square, Tensor(d!)? weight, Tensor gradient, *, "
      "float lr, float beta1, float beta2, float eps, float decay, float factor, int step) -> ()");
}

namespace {

// ---- Arguments

// The registered signature; `run` is the implementation or the fake kernel.
template <void (*run)(const Tensor& master, const Tensor& mean, const Tensor& square, const OptTensor& weight,
                      const Tensor& gradient, const ops::AdamWStep& step)>
void adamw_by(const Tensor& master, const Tensor& mean, const Tensor& square, const OptTensor& weight,
              const Tensor& gradient, double lr, double beta1, double beta2, double eps, double decay,
              double factor, std::int64_t step) {
  run(master, mean, square, weight, gradient,
      {.lr = lr,
       .beta1 = beta1,
       .beta2 = beta2,
       .eps = eps,
       .decay = decay,
       .factor = factor,
       .number = step});
}

// ---- Implementation

void adamw_(const Tensor& master, const Tensor& mean, const Tensor& square, const OptTensor& weight,
            const Tensor& gradient, const ops::AdamWStep& step) {
  constexpr char op[] = "adamw_";
  const auto check_array = [&](const char* name, const Tensor& tensor, at::ScalarType type) {
    check_like(op, name, tensor, type, master.sizes().vec(), master.device());
    check_contiguous(op, name, tensor);
  };
  check_array("master", master, at::kFloat);
  check_array("mean", mean, at::kFloat);
  check_array("square", square, at::kFloat);
  if (weight) check_array("weight", *weight, weight->scalar_type());
  check_like(op, "gradient", gradient, gradient.scalar_type(), master.sizes().vec(), master.device());
  const Tensor g = gradient.contiguous();
  backend_of(master)->adamw(
      {.count = master.numel(),
       .gradient_type = dtype_of(op, "gradient", gradient, /*allow_float32=*/true),
       .weight_type = weight ? dtype_of(op, "weight", *weight, /*allow_float32=*/true) : DType::f32,
       .gradient = data_of(g),
       .master = static_cast<float*>(mutable_data_of(master)),
       .mean = static_cast<float*>(mutable_data_of(mean)),
       .square = static_cast<float*>(mutable_data_of(square)),
       .weight = weight ? mutable_data_of(*weight) : nullptr,
       .lr = step.lr,
       .beta1 = step.beta1,
       .beta2 = step.beta2,
       .eps = step.eps,
       .decay = step.decay,
       .factor = step.factor,
       .step = step.number});
}

// ---- Fake kernel

void adamw_fake(const Tensor&, const Tensor&, const Tensor&, const OptTensor&, const Tensor&,
                const ops::AdamWStep&) {}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "adamw_", &adamw_by<adamw_>);
  works_in_place(m, "adamw_");
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) { m.impl("adamw_", &adamw_by<adamw_fake>); }

}  // namespace gsa::binding

namespace gsa::ops {

void adamw_(const Tensor& master, const Tensor& mean, const Tensor& square, const OptTensor& weight,
            const Tensor& gradient, const AdamWStep& step) {
  static const auto op = binding::find_operator<decltype(binding::adamw_by<nullptr>)>("gsa::adamw_");
  op.call(master, mean, square, weight, gradient, step.lr, step.beta1, step.beta2, step.eps, step.decay,
          step.factor, step.number);
}

}  // namespace gsa::ops
