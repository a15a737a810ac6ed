#pragma once

#include <cstddef>
#include <string>

namespace gsa {

// Storage types of tensors. Arithmetic runs in float for all but f64, which runs in double.
enum class DType { f32, f64, bf16, f16 };

constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::f32:
      return 4;
    case DType::f64:
      return 8;
    case DType::bf16:
    case DType::f16:
      return 2;
  }
  return 0;
}

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
  }
  return "unknown";
}

}  // namespace gsa
