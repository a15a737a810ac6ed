#include "torch/tensor_checks.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "core/checked.h"
#include "gsa/error.h"

namespace gsa::binding {

std::string to_string(at::IntArrayRef sizes) {
  std::string text = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) text += concat(i == 0 ? "" : ", ", sizes[i]);
  return text + "]";
}

DType dtype_of(const char* op, const char* argument, const Tensor& tensor, bool allow_float32) {
  const at::ScalarType type = tensor.scalar_type();
  if (tensor.is_cuda() && type != at::kBFloat16 && type != at::kHalf &&
      !(allow_float32 && type == at::kFloat)) {
    bad_argument(op, argument,
                 concat(allow_float32 ? "float32, " : "", "bfloat16 or float16 on a CUDA device"),
                 c10::toString(type));
  }
  switch (type) {
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kBFloat16:
      return DType::bf16;
    case at::kHalf:
      return DType::f16;
    default:
      bad_argument(op, argument, "float32, bfloat16, float16 or float64", c10::toString(type));
  }
}

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return at::kFloat;
    case DType::f64:
      return at::kDouble;
    case DType::bf16:
      return at::kBFloat16;
    case DType::f16:
      return at::kHalf;
  }
  throw Error("gsa: a dtype without a torch type");
}

at::ScalarType real_type(DType dtype) { return dtype == DType::f64 ? at::kDouble : at::kFloat; }

void check_device(const char* op, const char* argument, const Tensor& tensor, const at::Device& device) {
  if (tensor.device() != device) {
    bad_argument(op, argument, concat("a tensor on ", device.str()), tensor.device().str());
  }
}

void check_type(const char* op, const char* argument, const Tensor& tensor, at::ScalarType type) {
  if (tensor.scalar_type() != type) {
    bad_argument(op, argument, c10::toString(type), c10::toString(tensor.scalar_type()));
  }
}

void check_rank(const char* op, const char* argument, const Tensor& tensor, std::int64_t rank,
                const char* names) {
  if (tensor.dim() != rank) {
    bad_argument(op, argument, concat(rank, " dimensions ", names),
                 concat(tensor.dim(), " dimensions ", to_string(tensor.sizes())));
  }
}

void check_vectors(const char* op, const char* argument, const Tensor& tensor) {
  if (tensor.dim() < 1) {
    bad_argument(op, argument, "at least 1 dimension [..., d]", to_string(tensor.sizes()));
  }
}

void check_shape(const char* op, const char* argument, const Tensor& tensor, const Shape& shape) {
  if (tensor.sizes() != at::IntArrayRef(shape)) {
    bad_argument(op, argument, concat("shape ", to_string(shape)), to_string(tensor.sizes()));
  }
}

void check_like(const char* op, const char* argument, const Tensor& tensor, at::ScalarType type,
                const Shape& shape, const at::Device& device) {
  check_device(op, argument, tensor, device);
  check_type(op, argument, tensor, type);
  check_shape(op, argument, tensor, shape);
}

void check_range(const char* op, const char* argument, const char* what, std::int64_t value, std::int64_t low,
                 std::int64_t high) {
  if (value < low || value > high) {
    bad_argument(op, argument, concat(what, " in ", low, " .. ", high), concat(value));
  }
}

void check_finite(const char* op, const char* argument, double value) {
  if (!std::isfinite(value)) bad_argument(op, argument, "a finite number", concat(value));
}

void check_contiguous(const char* op, const char* argument, const Tensor& tensor) {
  if (!tensor.is_contiguous()) bad_argument(op, argument, "a contiguous tensor", "one that is not");
}

void check_result(const char* op, const char* argument, at::IntArrayRef shape, at::ScalarType type) {
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(type));
  bool any = true;
  for (const std::int64_t size : shape) any = any && size != 0;
  for (const std::int64_t size : shape) bytes = any ? checked_mul(bytes, size, op, argument) : 0;
  if (bytes > kMaxBytes) {
    bad_argument(op, argument, concat("a size whose result takes at most ", kMaxBytes, " bytes"),
                 concat("a result of shape ", to_string(shape), ", ", bytes, " bytes"));
  }
}

Tensor empty(const char* op, const char* argument, const Shape& shape, at::ScalarType type,
             const at::Device& device) {
  check_result(op, argument, shape, type);
  return at::empty(shape, at::TensorOptions().dtype(type).device(device));
}

Tensor zeros(const char* op, const char* argument, const Shape& shape, at::ScalarType type,
             const at::Device& device) {
  return empty(op, argument, shape, type, device).zero_();
}

}  // namespace gsa::binding
