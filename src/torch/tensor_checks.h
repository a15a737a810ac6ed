// Checks on single tensors and numbers. Every complaint is a gsa::Error that names the operator, the
// argument, what was expected and what came.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gsa/dtype.h"

namespace gsa::binding {

using at::Tensor;
using OptTensor = std::optional<Tensor>;
using Shape = std::vector<std::int64_t>;

// Positions, k_t and tie_cut are 32-bit numbers, with room for one past the last.
constexpr std::int64_t kMaxTokens = 2147483646;
// Tables of sequences are built in memory, so a batch expanded to absurd size must not reach them.
constexpr std::int64_t kMaxSequences = std::int64_t{1} << 24;
constexpr std::int64_t kMaxHeadSize = 256;
constexpr std::int64_t kMaxIndexHeads = 128;
// No result may be larger: a mistake in a shape gets an error instead of a dying machine.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 40;

std::string to_string(at::IntArrayRef sizes);  // "[2, 3]"

// The element type of a tensor, one of those that the kernels of its device know: on the CPU all four, on a
// CUDA device bfloat16 and float16, and float32 where allow_float32 says so.
DType dtype_of(const char* op, const char* argument, const Tensor& tensor, bool allow_float32 = false);

// The type in which kernels accumulate: float32, and float64 for float64.
at::ScalarType scalar_type(DType dtype);
at::ScalarType real_type(DType dtype);

// On the device that the call runs on, which is that of its first tensor.
void check_device(const char* op, const char* argument, const Tensor& tensor, const at::Device& device);

void check_type(const char* op, const char* argument, const Tensor& tensor, at::ScalarType type);

// names is the shape as the user knows it, "[B, L, heads, d]".
void check_rank(const char* op, const char* argument, const Tensor& tensor, std::int64_t rank,
                const char* names);

// One dimension at least: [..., d].
void check_vectors(const char* op, const char* argument, const Tensor& tensor);

void check_shape(const char* op, const char* argument, const Tensor& tensor, const Shape& shape);

// A tensor that sits beside another: on this device, of this type and shape.
void check_like(const char* op, const char* argument, const Tensor& tensor, at::ScalarType type,
                const Shape& shape, const at::Device& device);

void check_range(const char* op, const char* argument, const char* what, std::int64_t value, std::int64_t low,
                 std::int64_t high);

void check_finite(const char* op, const char* argument, double value);

// The tensor is contiguous, where it is written or kernels know no strides.
void check_contiguous(const char* op, const char* argument, const Tensor& tensor);

// The size of a result is sane; argument is the one to blame for it. Also called before inputs are copied.
void check_result(const char* op, const char* argument, at::IntArrayRef shape, at::ScalarType type);

// Allocates a result after this check.
Tensor empty(const char* op, const char* argument, const Shape& shape, at::ScalarType type,
             const at::Device& device);
Tensor zeros(const char* op, const char* argument, const Shape& shape, at::ScalarType type,
             const at::Device& device);

}  // namespace gsa::binding
