// The C++ types of the registered operators, for those who call them through the dispatcher. Schemas, with
// the meaning of every argument, are in registration.cc.
#pragma once

#include <string_view>

#include "torch/operators.h"

namespace gsa::binding {

using SelectFn = Tensor5(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias,
                         double scale, std::string_view form, std::string_view budget, std::int64_t k_base,
                         std::int64_t k_min, std::int64_t k_max, const OptTensor& mean_variance,
                         const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                         const OptTensor& q_position, std::optional<c10::SymInt> max_keys);

using SelectMaskFn = Tensor(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias,
                            const Tensor& threshold, const Tensor& tie_cut, double scale,
                            std::string_view form, const OptTensor& cu_seqlens_q,
                            const OptTensor& cu_seqlens_k, const OptTensor& q_position,
                            std::optional<c10::SymInt> max_keys);

using IndexScoresFn = Tensor(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias,
                             double scale, std::string_view form, const OptTensor& cu_seqlens_q,
                             const OptTensor& cu_seqlens_k, const OptTensor& q_position,
                             std::optional<c10::SymInt> max_keys);

using AttendFn = Tensor2(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& mask,
                         std::optional<double> scale, std::string_view accumulation,
                         const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                         const OptTensor& q_position);

using AttendBackwardFn = Tensor3(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const OptTensor& mask, const Tensor& out, const Tensor& lse,
                                 std::optional<double> scale, std::string_view accumulation,
                                 const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                                 const OptTensor& q_position);

using AttendLseFn = Tensor(const Tensor& q, const Tensor& k, const OptTensor& query_tiles,
                           std::optional<double> scale, const OptTensor& cu_seqlens_q,
                           const OptTensor& cu_seqlens_k, const OptTensor& q_position);

using SparseAttendFn = Tensor6(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q,
                               const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                               std::optional<double> scale, double index_scale, std::string_view form,
                               std::string_view budget, std::int64_t k_base, std::int64_t k_min,
                               std::int64_t k_max, const OptTensor& mean_variance,
                               std::string_view accumulation, const OptTensor& cu_seqlens_q,
                               const OptTensor& cu_seqlens_k, const OptTensor& q_position);

using SparseAttendWithMaskFn = Tensor7(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const Tensor& index_q, const Tensor& index_k, const Tensor& index_w,
                                       const OptTensor& index_bias, std::optional<double> scale,
                                       double index_scale, std::string_view form, std::string_view budget,
                                       std::int64_t k_base, std::int64_t k_min, std::int64_t k_max,
                                       const OptTensor& mean_variance, std::string_view accumulation,
                                       const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                                       const OptTensor& q_position, std::optional<c10::SymInt> max_keys);

using SparseAttendBackwardFn = Tensor3(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                       const Tensor& index_q, const Tensor& index_k, const Tensor& index_w,
                                       const OptTensor& index_bias, const Tensor& out, const Tensor& lse,
                                       const Tensor& threshold, const Tensor& tie_cut, const OptTensor& mask,
                                       std::optional<double> scale, double index_scale, std::string_view form,
                                       std::optional<std::int64_t> most_selected,
                                       std::string_view accumulation, const OptTensor& cu_seqlens_q,
                                       const OptTensor& cu_seqlens_k, const OptTensor& q_position);

using DecodeFn = Tensor3(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& block_table,
                         const Tensor& lengths, const OptTensor& index_q, const OptTensor& index_k,
                         const OptTensor& index_w, const OptTensor& index_bias, const OptTensor& gate,
                         std::int64_t max_length, std::optional<double> scale, double index_scale,
                         std::string_view form, std::string_view budget, std::int64_t k_base,
                         std::int64_t k_min, std::int64_t k_max, const OptTensor& mean_variance,
                         const OptTensor& index_k_scale);

using QuantizeIndexKeysFn = Tensor2(const Tensor& keys);

using GateFn = Tensor(const Tensor& x, const Tensor& z);
using GateBackwardFn = Tensor2(const Tensor& dy, const Tensor& x, const Tensor& z);

using IndexerKlFn = Tensor2(const Tensor& q, const Tensor& k, const Tensor& lse, const Tensor& index_q,
                            const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                            const OptTensor& mask, const OptTensor& threshold, const OptTensor& tie_cut,
                            const OptTensor& query_tiles, std::optional<double> scale, double index_scale,
                            std::string_view form, const OptTensor& cu_seqlens_q,
                            const OptTensor& cu_seqlens_k, const OptTensor& q_position);

using IndexerKlBackwardFn = Tensor4(const Tensor& dloss, const Tensor& q, const Tensor& k, const Tensor& lse,
                                    const Tensor& index_q, const Tensor& index_k, const Tensor& index_w,
                                    const OptTensor& index_bias, const OptTensor& mask,
                                    const OptTensor& threshold, const OptTensor& tie_cut,
                                    const Tensor& index_lse, const OptTensor& query_tiles,
                                    std::optional<double> scale, double index_scale, std::string_view form,
                                    const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                                    const OptTensor& q_position);

}  // namespace gsa::binding
