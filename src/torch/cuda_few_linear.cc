// few_linear on CUDA devices.
#include <torch/library.h>

#include "kernels/few_linear/few_linear_cuda.h"
#include "torch/cuda_context.h"
#include "torch/few_linear.h"
#include "torch/tensor_checks.h"

namespace gsa::binding {

namespace {

constexpr char kOp[] = "few_linear";

Tensor few_linear_cuda(const Tensor& x, const Tensor& weight, const OptTensor& norm, const OptTensor& bias,
                       const OptTensor& residual, double eps, bool swiglu, bool settled) {
  const std::int64_t outputs =
      check_few_linear_tensors({x, weight, norm, bias, residual, eps, swiglu, settled});
  CudaContext current(x.device());
  // Tensors without gaps that begin where 16 bytes do stay as they are; a copy of a weight would be a kernel
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
  FewLinearArgs args;
  args.dtype = dtype_of(kOp, "x", x, /*allow_float32=*/true);
  args.rows = x.size(0);
  args.size = x.size(1);
  args.outputs = outputs;
  args.swiglu = swiglu;
  args.eps = eps;
  args.x = data(x, false);
  args.norm = data(norm, true);
  args.weight = data(weight, true);
  args.bias = data(bias, true);
  args.residual = data(residual, false);
  args.settled = settled && !copied;
  const Tensor y = empty(kOp, "x", {args.rows, outputs}, x.scalar_type(), x.device());
  args.y = y.numel() > 0 ? y.mutable_data_ptr() : nullptr;
  current.run([&](const cuda::Context& context) { cuda::few_linear(args, context); });
  return y;
}

}  // namespace

bool cuda_few_linear_takes(const at::Device& device, std::int64_t rows, std::int64_t size, bool norm) {
  const c10::DeviceGuard guard(device);
  cuda::use_device(device.index());
  const cuda::Device& facts = cuda::current_device();
  return facts.hopper() && few_linear_takes(rows, size, norm, static_cast<std::int64_t>(facts.shared_memory));
}

TORCH_LIBRARY_IMPL(gsa, CUDA, m) { m.impl("few_linear", &few_linear_cuda); }

}  // namespace gsa::binding
