// decode on CUDA devices: one fused pass that reads lengths and pages when it runs.
#include <torch/library.h>

#include "kernels/decode/decode_cuda.h"
#include "torch/cuda_context.h"
#include "torch/decode_arguments.h"
#include "torch/signatures.h"

namespace gsa::binding {

namespace {

Tensor3 decode_cuda(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& block_table,
                    const Tensor& lengths, const OptTensor& index_q, const OptTensor& index_k,
                    const OptTensor& index_w, const OptTensor& index_bias, const OptTensor& gate,
                    std::int64_t max_length, std::optional<double> scale, double index_scale,
                    std::string_view form, std::string_view budget, std::int64_t k_base, std::int64_t k_min,
                    std::int64_t k_max, const OptTensor& mean_variance, const OptTensor& index_k_scale) {
  constexpr char op[] = "decode";
  check_device(op, "q", q, q.is_cuda() ? q.device() : k.device());
  CudaContext current(q.device());
  const BoundDecode bound = bind_decode(op, {q,
                                             k,
                                             v,
                                             block_table,
                                             lengths,
                                             index_q,
                                             index_k,
                                             index_w,
                                             index_bias,
                                             gate,
                                             max_length,
                                             scale,
                                             index_scale,
                                             form,
                                             {budget, k_base, k_min, k_max, mean_variance},
                                             index_k_scale});
  if (q.size(0) > 0) {
    current.run([&](const cuda::Context& context) { cuda::decode(bound.args, context); });
  }
  return {bound.out, bound.lse, bound.k_t};
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, CUDA, m) { m.impl("decode", &decode_cuda); }

}  // namespace gsa::binding
