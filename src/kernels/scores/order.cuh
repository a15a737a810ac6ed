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

// A range of scores in that order, in 1 << bits bins of equal width.
template <int bits>
struct OrderRange {
  std::uint32_t low, high;

  __device__ __forceinline__ int shift() const {
    return max(0, 32 - __clz(static_cast<int>(high - low)) - bits);
  }
  __device__ __forceinline__ bool holds(std::uint32_t order) const { return order - low <= high - low; }
  __device__ __forceinline__ int bin(std::uint32_t order) const {
    return static_cast<int>((order - low) >> shift());
  }
  // One of its bins.
  __device__ __forceinline__ OrderRange part(int bin) const {
    const int width = shift();
    const std::uint32_t from = low + (static_cast<std::uint32_t>(bin) << width);
    return {from, min(high, from + ((1u << width) - 1))};
  }
};

}  // namespace gsa::cuda
