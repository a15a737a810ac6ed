// Vectorised loads and stores of 16 bytes, or single elements where sizes or addresses do not allow it
// (vec_plan.h): how kernels that are bound by memory read and write rows.
#pragma once

#include <climits>
#include <cstdint>
#include <initializer_list>

#include "gsa/dtype.h"
#include "gsa/error.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/plans.h"
#include "kernels/common/vec_plan.h"

namespace gsa::cuda {

template <typename T, int width>
struct alignas(sizeof(T) * width) Vec {
  T value[width];
};

template <typename T, int width>
__device__ __forceinline__ Vec<T, width> load_vec(const T* from) {
  return *reinterpret_cast<const Vec<T, width>*>(from);
}

template <typename T, int width>
__device__ __forceinline__ void store_vec(T* to, const Vec<T, width>& vec) {
  *reinterpret_cast<Vec<T, width>*>(to) = vec;
}

// Calls body with a value of the element type; false, and no call, where kernels have none for it.
template <typename Body>
bool with_element(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      body(float());
      return true;
    case DType::bf16:
      body(__nv_bfloat16());
      return true;
    case DType::f16:
      body(__half());
      return true;
    case DType::f64:
      break;
  }
  return false;
}

// Calls body.operator()<element type, width of a Vec>().
template <typename Body>
void with_vec(const char* op, DType dtype, const VecConfig& config, const Body& body) {
  const auto typed = [&]<typename T>(T) {
    constexpr int kWidth = 16 / sizeof(T);
    if (config.width == kWidth) {
      body.template operator()<T, kWidth>();
    } else {
      body.template operator()<T, 1>();
    }
  };
  if (with_element(dtype, typed)) return;
  bad_argument(op, "dtype", "float32, bfloat16 or float16 on a CUDA device", name_of(dtype));
}

// The same, where this is the only choice to make.
template <typename Body>
void with_vec(const char* op, DType dtype, std::initializer_list<std::int64_t> sizes,
              std::initializer_list<const void*> pointers, const Body& body) {
  const VecConfig config = choose_vec(dtype, sizes, pointers);
  if (prints_plans()) print_vec_plan(op, dtype, sizes, config);
  with_vec(op, dtype, config, body);
}

// Blocks of a launch in which each treats `each` of `items`.
inline unsigned blocks_for(const char* op, std::int64_t items, std::int64_t each) {
  const std::int64_t blocks = (items + each - 1) / each;
  if (blocks > INT_MAX) bad_argument(op, "elements", concat("at most 2^31 blocks of ", each), concat(items));
  return static_cast<unsigned>(blocks);
}

// sigmoid(z) within the rounding of float; for 16-bit results within 2^-20.
template <typename T>
__device__ __forceinline__ float vec_sigmoid(float z) {
  if constexpr (sizeof(T) == 4) {
    return __frcp_rn(1.0f + expf(-z));
  } else {
    return __fdividef(1.0f, 1.0f + __expf(-z));
  }
}

}  // namespace gsa::cuda
