// The arguments of decode, from the registered function to what kernels take; shared by the CPU's
// implementation and that of CUDA devices.
#pragma once

#include "kernels/decode/decode.h"
#include "torch/arguments.h"
#include "torch/signatures.h"

namespace gsa::binding {

struct DecodeTensors {
  const Tensor& q;  // [B, L, n_h, d]
  const Tensor& k;  // [pages, page_size, n_kv, d]
  const Tensor& v;
  const Tensor& block_table;  // int32 [B, blocks]
  const Tensor& lengths;      // int32 [B]
  const OptTensor& index_q;   // [B, L, H_I, d_I]
  const OptTensor& index_k;   // [pages, page_size, d_I], int8 where index_k_scale is given
  const OptTensor& index_w;   // [B, L, H_I]
  const OptTensor& index_bias;
  const OptTensor& gate;  // as q, or [B, L, n_h]
  std::int64_t max_length;
  std::optional<double> scale;
  double index_scale;
  std::string_view form;
  BudgetTensors budget;
  const OptTensor& index_k_scale;  // float32 [pages, page_size]
};

// Keeps alive what args points into. Results are allocated.
struct BoundDecode {
  DecodeArgs args;
  BoundBudget budget;
  BoundRows q, gate, index_q, index_w;
  Tensor k, v, index_k, index_k_scale, index_bias, block_table, lengths;
  Tensor out, lse, k_t;
};
BoundDecode bind_decode(const char* op, const DecodeTensors& tensors);

// The function to register for a device: `run` binds the arguments and calls that device's kernels.
template <BoundDecode (*run)(const DecodeTensors& tensors)>
Tensor3 decode_by(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& block_table,
                  const Tensor& lengths, const OptTensor& index_q, const OptTensor& index_k,
                  const OptTensor& index_w, const OptTensor& index_bias, const OptTensor& gate,
                  std::int64_t max_length, std::optional<double> scale, double index_scale,
                  std::string_view form, std::string_view budget, std::int64_t k_base, std::int64_t k_min,
                  std::int64_t k_max, const OptTensor& mean_variance, const OptTensor& index_k_scale) {
  const BoundDecode bound = run({q,
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
  return {bound.out, bound.lse, bound.k_t};
}

}  // namespace gsa::binding
