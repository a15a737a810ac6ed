// Tensors as rows of [tokens, heads, size]: without a copy where the leading dimensions collapse into one
// strided token dimension, through a contiguous copy otherwise.
#pragma once

#include "gsa/dtype.h"
#include "gsa/tensor_view.h"
#include "torch/tensor_checks.h"

namespace gsa::binding {

// Holds the tensor that the rows point into. tokens is the product of the leading dimensions.
struct BoundRows {
  Tensor tensor;
  ConstRows rows;
};

BoundRows head_rows(const Tensor& tensor);    // [tokens..., heads, size]: size contiguous
BoundRows vector_rows(const Tensor& tensor);  // [tokens..., size]: size contiguous, no heads
BoundRows scalar_rows(const Tensor& tensor);  // [tokens..., heads]: one number a head, strided

// The rows of a contiguous tensor [tokens..., heads, size] or [tokens..., heads] that is written to.
Rows result_rows(const Tensor& tensor, std::int64_t heads, std::int64_t size);

// The same rows, starting at a later token.
ConstRows shifted(const ConstRows& rows, std::int64_t tokens, DType dtype);
Rows shifted(const Rows& rows, std::int64_t tokens, DType dtype);

// The memory of a contiguous tensor; null where it has no elements.
inline const void* data_of(const Tensor& tensor) {
  return tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr;
}
inline void* mutable_data_of(const Tensor& tensor) {
  return tensor.numel() > 0 ? tensor.mutable_data_ptr() : nullptr;
}

// A contiguous array of elements of the given size, starting at a later element.
inline const void* shifted(const void* data, std::int64_t elements, std::int64_t element_size) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + elements * element_size;
}
inline void* shifted(void* data, std::int64_t elements, std::int64_t element_size) {
  return data == nullptr ? nullptr : static_cast<char*>(data) + elements * element_size;
}

}  // namespace gsa::binding
