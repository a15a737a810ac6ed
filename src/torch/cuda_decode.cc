// decode on CUDA devices: one fused pass that reads lengths and pages when it runs.
#include <torch/library.h>

#include "kernels/decode/decode_cuda.h"
#include "torch/cuda_context.h"
#include "torch/decode_arguments.h"

namespace gsa::binding {

namespace {

BoundDecode decode_cuda(const DecodeTensors& tensors) {
  constexpr char op[] = "decode";
  const Tensor &q = tensors.q, &k = tensors.k;
  check_device(op, "q", q, q.is_cuda() ? q.device() : k.device());
  CudaContext current(q.device());
  BoundDecode bound = bind_decode(op, tensors);
  if (q.size(0) > 0) {
    current.run([&](const cuda::Context& context) { cuda::decode(bound.args, context); });
  }
  return bound;
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, CUDA, m) { m.impl("decode", &decode_by<decode_cuda>); }

}  // namespace gsa::binding
