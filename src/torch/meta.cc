// Shapes and types of results without data, for torch.compile and meta tensors. Sizes may be symbolic, so
// only ranks and devices are checked; the kernels check the rest when they run.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "gsa/error.h"
#include "torch/signatures.h"

namespace gsa::binding {

namespace {

using SymShape = std::vector<c10::SymInt>;

void check_rank(const char* op, const char* argument, const Tensor& tensor, std::int64_t rank) {
  if (tensor.dim() != rank) {
    bad_argument(op, argument, concat(rank, " dimensions"), concat(tensor.dim(), " dimensions"));
  }
}

struct Named {
  const char* name;
  Tensor tensor;  // undefined where an optional argument is absent
};

Tensor tensor_of(const OptTensor& tensor) { return tensor.value_or(Tensor()); }

// A meta tensor among tensors with data has lost its own: the call cannot mean anything. Layout tensors are
// not listed, they stay on the CPU beside any device.
void check_devices(const char* op, std::initializer_list<Named> tensors) {
  const Named& first = *tensors.begin();
  for (const Named& other : tensors) {
    if (other.tensor.defined() && other.tensor.device() != first.tensor.device()) {
      bad_argument(op, other.name, concat("a tensor on ", first.tensor.device().str(), ", as ", first.name),
                   other.tensor.device().str());
    }
  }
}

std::int64_t token_dims(const OptTensor& cu_seqlens_q) { return cu_seqlens_q ? 1 : 2; }

at::ScalarType real_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor empty(const SymShape& shape, const Tensor& like, at::ScalarType type) {
  return at::empty_symint(shape, like.options().dtype(type));
}

Tensor empty_as(const Tensor& tensor) {
  return at::empty_symint(tensor.sym_sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

SymShape tokens_of(const Tensor& tensor, std::int64_t dims) {
  return tensor.sym_sizes().slice(0, static_cast<std::size_t>(dims)).vec();
}

SymShape joined(SymShape shape, const c10::SymInt& last) {
  shape.push_back(last);
  return shape;
}

// The keys of the longest sequence, as far as shapes tell.
c10::SymInt row_width(const char* op, const Tensor& k, const OptTensor& cu_seqlens_q,
                      const std::optional<c10::SymInt>& max_keys) {
  if (!cu_seqlens_q) return k.sym_size(1);
  if (!max_keys) {
    bad_argument(op, "max_keys", "a number: without data, cu_seqlens_k does not tell the longest sequence",
                 "None");
  }
  return *max_keys;
}

c10::SymInt mask_words(const c10::SymInt& keys) { return (keys + 31) / 32; }

void check_indexer(const char* op, const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias,
                   std::int64_t dims) {
  check_rank(op, "q", q, dims + 2);
  check_rank(op, "k", k, dims + 1);
  check_rank(op, "w", w, dims + 1);
  check_devices(op, {{"q", q}, {"k", k}, {"w", w}, {"bias", tensor_of(bias)}});
}

void check_attention(const char* op, const Tensor& q, const Tensor& k, const OptTensor& v,
                     std::int64_t dims) {
  check_rank(op, "q", q, dims + 2);
  check_rank(op, "k", k, dims + 2);
  if (v) check_rank(op, "v", *v, dims + 2);
  check_devices(op, {{"q", q}, {"k", k}, {"v", tensor_of(v)}});
}

void check_index(const char* op, const Tensor& q, const Tensor& index_q, const Tensor& index_k,
                 const Tensor& index_w, const OptTensor& index_bias, std::int64_t dims) {
  check_rank(op, "index_q", index_q, dims + 2);
  check_rank(op, "index_k", index_k, dims + 1);
  check_rank(op, "index_w", index_w, dims + 1);
  check_devices(op, {{"q", q},
                     {"index_q", index_q},
                     {"index_k", index_k},
                     {"index_w", index_w},
                     {"index_bias", tensor_of(index_bias)}});
}

Tensor5 select_meta(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias, double,
                    std::string_view, std::string_view, std::int64_t, std::int64_t, std::int64_t,
                    const OptTensor&, const OptTensor& cu_seqlens_q, const OptTensor&, const OptTensor&,
                    std::optional<c10::SymInt> max_keys) {
  const std::int64_t dims = token_dims(cu_seqlens_q);
  check_indexer("select", q, k, w, bias, dims);
  const SymShape tokens = tokens_of(q, dims);
  const c10::SymInt words = mask_words(row_width("select", k, cu_seqlens_q, max_keys));
  return {empty(joined(tokens, words), q, at::kInt), empty(tokens, q, at::kInt),
          empty(tokens, q, real_type(q)), empty(tokens, q, real_type(q)), empty(tokens, q, at::kInt)};
}

Tensor select_mask_meta(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias,
                        const Tensor& threshold, const Tensor& tie_cut, double, std::string_view,
                        const OptTensor& cu_seqlens_q, const OptTensor&, const OptTensor&,
                        std::optional<c10::SymInt> max_keys) {
  const std::int64_t dims = token_dims(cu_seqlens_q);
  check_indexer("select_mask", q, k, w, bias, dims);
  check_devices("select_mask", {{"q", q}, {"threshold", threshold}, {"tie_cut", tie_cut}});
  const c10::SymInt words = mask_words(row_width("select_mask", k, cu_seqlens_q, max_keys));
  return empty(joined(tokens_of(q, dims), words), q, at::kInt);
}

Tensor index_scores_meta(const Tensor& q, const Tensor& k, const Tensor& w, const OptTensor& bias, double,
                         std::string_view, const OptTensor& cu_seqlens_q, const OptTensor&, const OptTensor&,
                         std::optional<c10::SymInt> max_keys) {
  const std::int64_t dims = token_dims(cu_seqlens_q);
  check_indexer("index_scores", q, k, w, bias, dims);
  return empty(joined(tokens_of(q, dims), row_width("index_scores", k, cu_seqlens_q, max_keys)), q,
               real_type(q));
}

Tensor2 attend_meta(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& mask,
                    std::optional<double>, std::string_view, const OptTensor& cu_seqlens_q, const OptTensor&,
                    const OptTensor&) {
  const std::int64_t dims = token_dims(cu_seqlens_q);
  check_attention("attend", q, k, v, dims);
  check_devices("attend", {{"q", q}, {"mask", tensor_of(mask)}});
  return {empty_as(q), empty(joined(tokens_of(q, dims), q.sym_size(-2)), q, real_type(q))};
}

Tensor3 attend_backward_meta(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                             const OptTensor& mask, const Tensor& out, const Tensor& lse,
                             std::optional<double>, std::string_view, const OptTensor& cu_seqlens_q,
                             const OptTensor&, const OptTensor&) {
  check_attention("attend_backward", q, k, v, token_dims(cu_seqlens_q));
  check_devices("attend_backward",
                {{"q", q}, {"dout", dout}, {"mask", tensor_of(mask)}, {"out", out}, {"lse", lse}});
  return {empty_as(q), empty_as(k), empty_as(v)};
}

Tensor attend_lse_meta(const Tensor& q, const Tensor& k, const OptTensor&, std::optional<double>,
                       const OptTensor& cu_seqlens_q, const OptTensor&, const OptTensor&) {
  const std::int64_t dims = token_dims(cu_seqlens_q);
  check_attention("attend_lse", q, k, std::nullopt, dims);
  return empty(joined(tokens_of(q, dims), q.sym_size(-2)), q, real_type(q));
}

Tensor6 sparse_attend_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q,
                           const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                           std::optional<double>, double, std::string_view, std::string_view, std::int64_t,
                           std::int64_t, std::int64_t, const OptTensor&, std::string_view,
                           const OptTensor& cu_seqlens_q, const OptTensor&, const OptTensor&) {
  const std::int64_t dims = token_dims(cu_seqlens_q);
  check_attention("sparse_attend", q, k, v, dims);
  check_index("sparse_attend", q, index_q, index_k, index_w, index_bias, dims);
  const SymShape tokens = tokens_of(q, dims);
  return {empty_as(q),
          empty(joined(tokens, q.sym_size(-2)), q, real_type(q)),
          empty(tokens, q, at::kInt),
          empty(tokens, q, real_type(q)),
          empty(tokens, q, real_type(q)),
          empty(tokens, q, at::kInt)};
}

Tensor7 sparse_attend_with_mask_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q,
                                     const Tensor& index_k, const Tensor& index_w,
                                     const OptTensor& index_bias, std::optional<double> scale,
                                     double index_scale, std::string_view form, std::string_view budget,
                                     std::int64_t k_base, std::int64_t k_min, std::int64_t k_max,
                                     const OptTensor& mean_variance, std::string_view accumulation,
                                     const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                                     const OptTensor& q_position, std::optional<c10::SymInt> max_keys) {
  auto [out, lse, k_t, variance, threshold, tie_cut] = sparse_attend_meta(
      q, k, v, index_q, index_k, index_w, index_bias, scale, index_scale, form, budget, k_base, k_min, k_max,
      mean_variance, accumulation, cu_seqlens_q, cu_seqlens_k, q_position);
  const c10::SymInt words = mask_words(row_width("sparse_attend_with_mask", k, cu_seqlens_q, max_keys));
  const Tensor mask = empty(joined(tokens_of(q, token_dims(cu_seqlens_q)), words), q, at::kInt);
  return {out, lse, k_t, variance, threshold, tie_cut, mask};
}

Tensor3 sparse_attend_backward_meta(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& index_q, const Tensor& index_k, const Tensor& index_w,
                                    const OptTensor& index_bias, const Tensor& out, const Tensor& lse,
                                    const Tensor& threshold, const Tensor& tie_cut, const OptTensor& mask,
                                    std::optional<double>, double, std::string_view,
                                    std::optional<std::int64_t>, std::string_view,
                                    const OptTensor& cu_seqlens_q, const OptTensor&, const OptTensor&) {
  const std::int64_t dims = token_dims(cu_seqlens_q);
  check_attention("sparse_attend_backward", q, k, v, dims);
  check_index("sparse_attend_backward", q, index_q, index_k, index_w, index_bias, dims);
  check_devices("sparse_attend_backward", {{"q", q},
                                           {"dout", dout},
                                           {"out", out},
                                           {"lse", lse},
                                           {"threshold", threshold},
                                           {"tie_cut", tie_cut},
                                           {"mask", tensor_of(mask)}});
  return {empty_as(q), empty_as(k), empty_as(v)};
}

Tensor3 decode_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& block_table,
                    const Tensor& lengths, const OptTensor& index_q, const OptTensor& index_k,
                    const OptTensor& index_w, const OptTensor& index_bias, const OptTensor& gate,
                    std::int64_t, std::optional<double>, double, std::string_view, std::string_view,
                    std::int64_t, std::int64_t, std::int64_t, const OptTensor&,
                    const OptTensor& index_k_scale) {
  check_rank("decode", "q", q, 4);
  check_rank("decode", "k", k, 4);
  check_rank("decode", "v", v, 4);
  check_devices("decode", {{"q", q},
                           {"k", k},
                           {"v", v},
                           {"block_table", block_table},
                           {"lengths", lengths},
                           {"index_q", tensor_of(index_q)},
                           {"index_k", tensor_of(index_k)},
                           {"index_w", tensor_of(index_w)},
                           {"index_bias", tensor_of(index_bias)},
                           {"gate", tensor_of(gate)},
                           {"index_k_scale", tensor_of(index_k_scale)}});
  const SymShape tokens = tokens_of(q, 2);
  return {empty_as(q), empty(joined(tokens, q.sym_size(2)), q, real_type(q)), empty(tokens, q, at::kInt)};
}

void check_gate(const char* op, const Tensor& x, const Tensor& z) {
  if (x.dim() < 2) {
    bad_argument(op, "x", "at least 2 dimensions [..., heads, d]", concat(x.dim(), " dimensions"));
  }
  if (z.dim() != x.dim() && z.dim() != x.dim() - 1) {
    bad_argument(op, "z", concat(x.dim(), " or ", x.dim() - 1, " dimensions"),
                 concat(z.dim(), " dimensions"));
  }
  check_devices(op, {{"x", x}, {"z", z}});
}

Tensor gate_meta(const Tensor& x, const Tensor& z) {
  check_gate("gate", x, z);
  return empty_as(x);
}

Tensor2 gate_backward_meta(const Tensor& dy, const Tensor& x, const Tensor& z) {
  check_gate("gate_backward", x, z);
  check_devices("gate_backward", {{"x", x}, {"dy", dy}});
  return {empty_as(x), empty_as(z)};
}

Tensor2 indexer_kl_meta(const Tensor& q, const Tensor& k, const Tensor& lse, const Tensor& index_q,
                        const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                        const OptTensor& mask, const OptTensor& threshold, const OptTensor& tie_cut,
                        const OptTensor&, std::optional<double>, double, std::string_view,
                        const OptTensor& cu_seqlens_q, const OptTensor&, const OptTensor&) {
  const std::int64_t dims = token_dims(cu_seqlens_q);
  check_attention("indexer_kl", q, k, std::nullopt, dims);
  check_index("indexer_kl", q, index_q, index_k, index_w, index_bias, dims);
  check_devices("indexer_kl", {{"q", q},
                               {"lse", lse},
                               {"mask", tensor_of(mask)},
                               {"threshold", tensor_of(threshold)},
                               {"tie_cut", tensor_of(tie_cut)}});
  const SymShape tokens = tokens_of(q, dims);
  return {empty(tokens, q, real_type(q)), empty(tokens, q, real_type(q))};
}

Tensor4 indexer_kl_backward_meta(const Tensor& dloss, const Tensor& q, const Tensor& k, const Tensor& lse,
                                 const Tensor& index_q, const Tensor& index_k, const Tensor& index_w,
                                 const OptTensor& index_bias, const OptTensor& mask,
                                 const OptTensor& threshold, const OptTensor& tie_cut,
                                 const Tensor& index_lse, const OptTensor&, std::optional<double>, double,
                                 std::string_view, const OptTensor& cu_seqlens_q, const OptTensor&,
                                 const OptTensor&) {
  const std::int64_t dims = token_dims(cu_seqlens_q);
  check_attention("indexer_kl_backward", q, k, std::nullopt, dims);
  check_index("indexer_kl_backward", q, index_q, index_k, index_w, index_bias, dims);
  check_devices("indexer_kl_backward", {{"q", q},
                                        {"dloss", dloss},
                                        {"lse", lse},
                                        {"mask", tensor_of(mask)},
                                        {"threshold", tensor_of(threshold)},
                                        {"tie_cut", tensor_of(tie_cut)},
                                        {"index_lse", index_lse}});
  const c10::SymInt biases = index_bias ? index_q.sym_size(-2) : c10::SymInt(0);
  return {empty_as(index_q), empty_as(index_k), empty_as(index_w),
          empty({biases}, index_q, index_q.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  m.impl("select", &select_meta);
  m.impl("select_mask", &select_mask_meta);
  m.impl("index_scores", &index_scores_meta);
  m.impl("attend", &attend_meta);
  m.impl("attend_backward", &attend_backward_meta);
  m.impl("attend_lse", &attend_lse_meta);
  m.impl("sparse_attend", &sparse_attend_meta);
  m.impl("sparse_attend_with_mask", &sparse_attend_with_mask_meta);
  m.impl("sparse_attend_backward", &sparse_attend_backward_meta);
  m.impl("decode", &decode_meta);
  m.impl("gate", &gate_meta);
  m.impl("gate_backward", &gate_backward_meta);
  m.impl("indexer_kl", &indexer_kl_meta);
  m.impl("indexer_kl_backward", &indexer_kl_backward_meta);
}

}  // namespace gsa::binding
