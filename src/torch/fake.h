// For fake kernels: shapes and types of results without data, for torch.compile and meta tensors. Sizes may
// be symbolic, so only ranks and devices are checked; the kernels check the rest when they run.
#pragma once

#include <c10/core/SymInt.h>

#include <initializer_list>
#include <vector>

#include "torch/arguments.h"

namespace gsa::binding::fake {

using SymShape = std::vector<c10::SymInt>;

struct Named {
  const char* name;
  OptTensor tensor;
};

// All on the device of the first. A meta tensor among tensors with data has lost its own: the call cannot
// mean anything. Layout tensors are not listed, they stay on the CPU beside any device.
void check_devices(const char* op, std::initializer_list<Named> tensors);

// Ranks and devices. dims: those that stand for tokens, at the front.
void check_rank(const char* op, const char* argument, const Tensor& tensor, std::int64_t rank);
void check_indexer(const char* op, const IndexerTensors& indexer, std::int64_t dims);
void check_attention(const char* op, const Tensor& q, const Tensor& k, const OptTensor& v, std::int64_t dims);
// The indexer beside an attention.
void check_index(const char* op, const Tensor& q, const IndexerTensors& indexer, std::int64_t dims);

// Dimensions that stand for tokens: cu_seqlens_q alone says so here.
std::int64_t token_dims(const LayoutTensors& layout);
SymShape tokens_of(const Tensor& tensor, std::int64_t dims);  // the first dimensions of its shape
SymShape joined(SymShape shape, const c10::SymInt& last);

// The keys of the longest sequence, as far as shapes tell.
c10::SymInt row_width(const char* op, const Tensor& k, const LayoutTensors& layout,
                      const std::optional<c10::SymInt>& max_keys);
c10::SymInt mask_words(const c10::SymInt& keys);

at::ScalarType real_type(const Tensor& tensor);
Tensor empty(const SymShape& shape, const Tensor& like, at::ScalarType type);
Tensor empty_as(const Tensor& tensor);  // contiguous

}  // namespace gsa::binding::fake
