#include "torch/fake.h"

#include <ATen/ops/empty.h>

#include "gsa/error.h"

namespace gsa::binding::fake {

void check_devices(const char* op, std::initializer_list<Named> tensors) {
  const Named& first = *tensors.begin();
  for (const Named& other : tensors) {
    if (other.tensor && other.tensor->defined() && other.tensor->device() != first.tensor->device()) {
      bad_argument(op, other.name, concat("a tensor on ", first.tensor->device().str(), ", as ", first.name),
                   other.tensor->device().str());
    }
  }
}

void check_rank(const char* op, const char* argument, const Tensor& tensor, std::int64_t rank) {
  if (tensor.dim() != rank) {
    bad_argument(op, argument, concat(rank, " dimensions"), concat(tensor.dim(), " dimensions"));
  }
}

void check_indexer(const char* op, const IndexerTensors& indexer, std::int64_t dims) {
  check_rank(op, "q", indexer.q, dims + 2);
  check_rank(op, "k", indexer.k, dims + 1);
  check_rank(op, "w", indexer.w, dims + 1);
  check_devices(op, {{"q", indexer.q}, {"k", indexer.k}, {"w", indexer.w}, {"bias", indexer.bias}});
}

void check_attention(const char* op, const Tensor& q, const Tensor& k, const OptTensor& v,
                     std::int64_t dims) {
  check_rank(op, "q", q, dims + 2);
  check_rank(op, "k", k, dims + 2);
  if (v) check_rank(op, "v", *v, dims + 2);
  check_devices(op, {{"q", q}, {"k", k}, {"v", v}});
}

void check_index(const char* op, const Tensor& q, const IndexerTensors& indexer, std::int64_t dims) {
  check_rank(op, "index_q", indexer.q, dims + 2);
  check_rank(op, "index_k", indexer.k, dims + 1);
  check_rank(op, "index_w", indexer.w, dims + 1);
  check_devices(op, {{"q", q},
                     {"index_q", indexer.q},
                     {"index_k", indexer.k},
                     {"index_w", indexer.w},
                     {"index_bias", indexer.bias}});
}

std::int64_t token_dims(const LayoutTensors& layout) { return layout.cu_seqlens_q ? 1 : 2; }

SymShape tokens_of(const Tensor& tensor, std::int64_t dims) {
  return tensor.sym_sizes().slice(0, static_cast<std::size_t>(dims)).vec();
}

SymShape joined(SymShape shape, const c10::SymInt& last) {
  shape.push_back(last);
  return shape;
}

c10::SymInt row_width(const char* op, const Tensor& k, const LayoutTensors& layout,
                      const std::optional<c10::SymInt>& max_keys) {
  if (!layout.cu_seqlens_q) return k.sym_size(1);
  if (!max_keys) {
    bad_argument(op, "max_keys", "a number: without data, cu_seqlens_k does not tell the longest sequence",
                 "None");
  }
  return *max_keys;
}

c10::SymInt mask_words(const c10::SymInt& keys) { return (keys + 31) / 32; }

at::ScalarType real_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor empty(const SymShape& shape, const Tensor& like, at::ScalarType type) {
  return at::empty_symint(shape, like.options().dtype(type));
}

Tensor empty_as(const Tensor& tensor) {
  return at::empty_symint(tensor.sym_sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

}  // namespace gsa::binding::fake
