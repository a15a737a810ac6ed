// few_linear: schema, checks, and its form on the CPU, where the operators it stands for run one by one.
#include "torch/few_linear.h"

#include <ATen/ops/linear.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "gsa/error.h"
#include "torch/fused.h"
#include "torch/signatures.h"
#include "torch/tensor_checks.h"

namespace gsa::binding {

namespace {

constexpr char kOp[] = "few_linear";

using FewLinearFn = Tensor(const Tensor&, const Tensor&, const OptTensor&, const OptTensor&, const OptTensor&,
                           double, bool, bool);

void check_swiglu_alone(bool swiglu, const OptTensor& bias, const OptTensor& residual) {
  if (swiglu && (bias || residual)) {
    bad_argument(kOp, "swiglu", "neither bias nor residual beside it", bias ? "a bias" : "a residual");
  }
}

}  // namespace

std::int64_t check_few_linear_tensors(const ops::FewLinearInputs& in) {
  check_rank(kOp, "x", in.x, 2, "[rows, size]");
  check_rank(kOp, "weight", in.weight, 2, "[outputs, size]");
  dtype_of(kOp, "x", in.x, /*allow_float32=*/true);
  const at::ScalarType type = in.x.scalar_type();
  const at::Device device = in.x.device();
  const std::int64_t rows = in.x.size(0), size = in.x.size(1), products = in.weight.size(0);
  check_like(kOp, "weight", in.weight, type, {products, size}, device);
  if (in.swiglu && products % 2 != 0) {
    bad_argument(kOp, "weight", "an even number of rows for swiglu", concat(products));
  }
  check_swiglu_alone(in.swiglu, in.bias, in.residual);
  const std::int64_t outputs = in.swiglu ? products / 2 : products;
  if (in.norm) check_like(kOp, "norm", *in.norm, type, {size}, device);
  if (in.bias) check_like(kOp, "bias", *in.bias, type, {outputs}, device);
  if (in.residual) check_like(kOp, "residual", *in.residual, type, {rows, outputs}, device);
  return outputs;
}

namespace {

Tensor few_linear_cpu(const Tensor& x, const Tensor& weight, const OptTensor& norm, const OptTensor& bias,
                      const OptTensor& residual, double eps, bool swiglu, bool settled) {
  check_few_linear_tensors({x, weight, norm, bias, residual, eps, swiglu, settled});
  // Autocast would change the type of the product inside; our operators keep that of their arguments.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Tensor h = norm ? ops::rms_norm(x, {}, *norm, eps).y : x;
  const Tensor z = at::linear(h, weight, bias);
  return swiglu ? ops::swiglu(z) : residual ? *residual + z : z;
}

Tensor few_linear_meta(const Tensor& x, const Tensor& weight, const OptTensor&, const OptTensor& bias,
                       const OptTensor& residual, double, bool swiglu, bool) {
  check_rank(kOp, "x", x, 2, "[rows, size]");
  check_rank(kOp, "weight", weight, 2, "[outputs, size]");
  check_swiglu_alone(swiglu, bias, residual);
  const c10::SymInt products = weight.sym_size(0);
  if (swiglu && products % 2 != 0) {
    bad_argument(kOp, "weight", "an even number of rows for swiglu", concat(products));
  }
  if (x.sym_size(1) != weight.sym_size(1)) {
    bad_argument(kOp, "weight", concat("rows of ", x.sym_size(1)), concat(weight.sym_size(1)));
  }
  return x.new_empty_symint({x.sym_size(0), swiglu ? products / 2 : products});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // h weight^T + bias for x [rows, size] and weight [outputs, size], where h is x, or x normalised and times
  // norm [size]. residual [rows, outputs] is added to the rounded product; with swiglu the result is
  // silu(g) u of the product [g | u]. On a CUDA device: compute capability 9.0, at most 16 rows of bfloat16
  // or float16. settled: norm, weight and bias were complete before the last kernels on the stream began. No
  // gradient.
  m.def(
      "few_linear(Tensor x, Tensor weight, Tensor? norm=None, Tensor? bias=None, Tensor? residual=None, *, "
      "float eps=0.0, bool swiglu=False, bool settled=False) -> Tensor");
}

TORCH_LIBRARY_IMPL(gsa, CPU, m) { m.impl("few_linear", &few_linear_cpu); }
TORCH_LIBRARY_IMPL(gsa, Meta, m) { m.impl("few_linear", &few_linear_meta); }

}  // namespace gsa::binding

namespace gsa::ops {

at::Tensor few_linear(const FewLinearInputs& in) {
  static const auto op = binding::find_operator<binding::FewLinearFn>("gsa::few_linear");
  return op.call(in.x, in.weight, in.norm, in.bias, in.residual, in.eps, in.swiglu, in.settled);
}

bool few_linear_serves(const at::Device& device, at::ScalarType type, std::int64_t rows, std::int64_t size,
                       bool norm) {
  const bool half = type == at::kBFloat16 || type == at::kHalf;
  return device.is_cuda() && half && binding::cuda_few_linear_takes(device, rows, size, norm);
}

}  // namespace gsa::ops
