// Floats as unsigned integers in the same order; -0 and 0 are one. Not for NaN.
#pragma once

#include <cstdint>

namespace gsa::cuda {

__device__ __forceinline__ std::uint32_t order_of(float x) {
  const std::uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));  // -0 becomes 0
  return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ float from_order(std::uint32_t order) {
  return __uint_as_float(order ^ ((order >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

}  // namespace gsa::cuda
