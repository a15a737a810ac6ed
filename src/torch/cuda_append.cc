// append on CUDA devices.
#include <torch/library.h>

#include "kernels/append/append_cuda.h"
#include "torch/append.h"
#include "torch/cuda_context.h"

namespace gsa::binding {

namespace {

std::tuple<Tensor, Tensor, Tensor> append_cuda(const Tensor& x, const Tensor& cos, const Tensor& sin,
                                               const OptTensor& index_cos, const OptTensor& index_sin,
                                               const Tensor& slots, const Tensor& k, const Tensor& v,
                                               const OptTensor& index_k, const OptTensor& index_k_scale,
                                               std::int64_t q_heads, std::int64_t index_heads,
                                               std::int64_t value_gate, std::int64_t index_w_column,
                                               bool sigmoid_w) {
  CudaContext current(x.device());
  const BoundAppend bound =
      bind_append({x, cos, sin, index_cos, index_sin, slots, k, v, index_k, index_k_scale, q_heads,
                   index_heads, value_gate, index_w_column, sigmoid_w});
  current.run([&](const cuda::Context& context) { cuda::append(bound.args, context); });
  return {bound.results.q, bound.results.index_q, bound.results.index_w};
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, CUDA, m) { m.impl("append", &append_cuda); }

}  // namespace gsa::binding
