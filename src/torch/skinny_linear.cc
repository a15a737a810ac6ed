// skinny_linear. On the CPU the operators that it stands for run one by one.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "gsa/error.h"
#include "torch/backend.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/schema.h"

namespace gsa::binding {

namespace {
constexpr const char* kNames[] = {"skinny_linear", "few_linear"};  // the second: deprecated, for one release
}

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // h weight^T + bias for x [rows, size] and weight [outputs, size], where h is x, or x normalised and times
  // norm [size]. residual [rows, outputs] is added to the rounded product; with swiglu the result is
  // silu(g) u of the product [g | u]. On a CUDA device: compute capability 9.0, at most 16 rows of bfloat16
  // or float16. settled: norm, weight and bias were complete before the last kernels on the stream began. No
  // gradient.
  for (const char* const name : kNames) {
    schema::define(
        m, name,
        "(Tensor x, Tensor weight, Tensor? norm=None, Tensor? bias=None, Tensor? residual=None, *, "
        "float eps=0.0, bool swiglu=False, bool settled=False) -> Tensor");
  }
}

namespace {

constexpr char kSkinnyLinear[] = "skinny_linear";

// ---- Arguments

// The registered signature; `run` is the implementation or the fake kernel.
template <Tensor (*run)(const ops::SkinnyLinearInputs& in)>
Tensor skinny_linear_by(const Tensor& x, const Tensor& weight, const OptTensor& norm, const OptTensor& bias,
                        const OptTensor& residual, double eps, bool swiglu, bool settled) {
  return run({.x = x,
              .weight = weight,
              .norm = norm,
              .bias = bias,
              .residual = residual,
              .eps = eps,
              .swiglu = swiglu,
              .settled = settled});
}

void check_swiglu_alone(const ops::SkinnyLinearInputs& in) {
  if (in.swiglu && (in.bias || in.residual)) {
    bad_argument(kSkinnyLinear, "swiglu", "neither bias nor residual beside it",
                 in.bias ? "a bias" : "a residual");
  }
}

// Returns the number of outputs.
std::int64_t check_tensors(const ops::SkinnyLinearInputs& in) {
  check_rank(kSkinnyLinear, "x", in.x, 2, "[rows, size]");
  check_rank(kSkinnyLinear, "weight", in.weight, 2, "[outputs, size]");
  dtype_of(kSkinnyLinear, "x", in.x, /*allow_float32=*/true);
  const at::ScalarType type = in.x.scalar_type();
  const at::Device device = in.x.device();
  const std::int64_t rows = in.x.size(0), size = in.x.size(1), products = in.weight.size(0);
  check_like(kSkinnyLinear, "weight", in.weight, type, {products, size}, device);
  if (in.swiglu && products % 2 != 0) {
    bad_argument(kSkinnyLinear, "weight", "an even number of rows for swiglu", concat(products));
  }
  check_swiglu_alone(in);
  const std::int64_t outputs = in.swiglu ? products / 2 : products;
  if (in.norm) check_like(kSkinnyLinear, "norm", *in.norm, type, {size}, device);
  if (in.bias) check_like(kSkinnyLinear, "bias", *in.bias, type, {outputs}, device);
  if (in.residual) check_like(kSkinnyLinear, "residual", *in.residual, type, {rows, outputs}, device);
  return outputs;
}

// ---- Implementation

// The operators that skinny_linear stands for, one by one.
Tensor by_torch(const ops::SkinnyLinearInputs& in) {
  // Autocast would change the type of the product inside; our operators keep that of their arguments.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Tensor h = in.norm ? ops::rms_norm(in.x, {}, *in.norm, in.eps).y : in.x;
  const Tensor z = at::linear(h, in.weight, in.bias);
  return in.swiglu ? ops::swiglu(z) : in.residual ? *in.residual + z : z;
}

Tensor by_kernel(const ops::SkinnyLinearInputs& in, std::int64_t outputs) {
  const std::unique_ptr<Backend> backend = backend_of(in.x);
  // Contiguous tensors that begin where 16 bytes do stay as they are; a copy of a weight would be a kernel
  // that has just begun.
  std::vector<Tensor> held;
  bool copied = false;
  const auto data = [&](const OptTensor& tensor, bool constant) -> const void* {
    if (!tensor || tensor->numel() == 0) return nullptr;
    const Tensor whole = tensor->contiguous();
    const bool aligned = reinterpret_cast<std::uintptr_t>(whole.const_data_ptr()) % 16 == 0;
    held.push_back(aligned ? whole : whole.clone());
    copied |= constant && !held.back().is_same(*tensor);
    return held.back().const_data_ptr();
  };
  SkinnyLinearArgs args;
  args.dtype = dtype_of(kSkinnyLinear, "x", in.x, /*allow_float32=*/true);
  args.rows = in.x.size(0);
  args.size = in.x.size(1);
  args.outputs = outputs;
  args.swiglu = in.swiglu;
  args.eps = in.eps;
  args.x = data(in.x, false);
  args.norm = data(in.norm, true);
  args.weight = data(in.weight, true);
  args.bias = data(in.bias, true);
  args.residual = data(in.residual, false);
  args.settled = in.settled && !copied;
  const Tensor y = empty(kSkinnyLinear, "x", {args.rows, outputs}, in.x.scalar_type(), in.x.device());
  args.y = y.numel() > 0 ? y.mutable_data_ptr() : nullptr;
  backend->skinny_linear(args);
  return y;
}

Tensor run_skinny_linear(const ops::SkinnyLinearInputs& in) {
  const std::int64_t outputs = check_tensors(in);
  return in.x.is_cuda() ? by_kernel(in, outputs) : by_torch(in);
}

Tensor few_linear(const ops::SkinnyLinearInputs& in) {
  TORCH_WARN_ONCE(
      "gsa::few_linear is now called gsa::skinny_linear; the old name goes with the next release");
  return run_skinny_linear(in);
}

// ---- Fake kernel

Tensor skinny_linear_fake(const ops::SkinnyLinearInputs& in) {
  const Tensor &x = in.x, &weight = in.weight;
  check_rank(kSkinnyLinear, "x", x, 2, "[rows, size]");
  check_rank(kSkinnyLinear, "weight", weight, 2, "[outputs, size]");
  check_swiglu_alone(in);
  const c10::SymInt products = weight.sym_size(0);
  if (in.swiglu && products % 2 != 0) {
    bad_argument(kSkinnyLinear, "weight", "an even number of rows for swiglu", concat(products));
  }
  if (x.sym_size(1) != weight.sym_size(1)) {
    bad_argument(kSkinnyLinear, "weight", concat("rows of ", x.sym_size(1)), concat(weight.sym_size(1)));
  }
  return x.new_empty_symint({x.sym_size(0), in.swiglu ? products / 2 : products});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "skinny_linear", &skinny_linear_by<run_skinny_linear>);
  implement(m, "few_linear", &skinny_linear_by<few_linear>);
}
TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  for (const char* const name : kNames) m.impl(name, &skinny_linear_by<skinny_linear_fake>);
}
TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  for (const char* const name : kNames) m.impl(name, not_differentiable());
}

}  // namespace gsa::binding

namespace gsa::ops {

Tensor skinny_linear(const SkinnyLinearInputs& in) {
  static const auto op =
      binding::find_operator<decltype(binding::skinny_linear_by<nullptr>)>("gsa::skinny_linear");
  return op.call(in.x, in.weight, in.norm, in.bias, in.residual, in.eps, in.swiglu, in.settled);
}

bool skinny_linear_serves(const at::Device& device, at::ScalarType type, std::int64_t rows, std::int64_t size,
                          bool norm) {
  const bool half = type == at::kBFloat16 || type == at::kHalf;
  return device.is_cuda() && half && binding::cuda_built() &&
         binding::cuda_backend(device)->skinny_linear_takes(rows, size, norm);
}

}  // namespace gsa::ops
