// Tiles of rows in shared memory for mma.sync: how rows get there, fragments of them, products. And the
// special-function unit's instructions.
#pragma once

#include "kernels/common/log2e.h"
#include "kernels/common/mma.cuh"

namespace gsa::cuda {

inline constexpr float kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 2^x of a weight that is rebuilt from its log-sum-exp: at most 1, as x is above 0 in rounding alone; NaN
// stays. Stays where it is written, among products that run meanwhile; the compiler would gather
// exponentials.
__device__ __forceinline__ float weight_in_place(float x) {
  float y;
  asm volatile("{ .reg .f32 b; min.NaN.f32 b, %1, 0f00000000; ex2.approx.ftz.f32 %0, b; }"
               : "=f"(y)
               : "f"(x));
  return y;
}
__device__ __forceinline__ float log_two(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fffffff); }

// ---- Tiles in shared memory: rows of kSize elements, the 16-byte chunk c of row r at chunk c ^ (r % 8), so
// that the same chunk of eight rows lies in different banks. Of 32 elements two rows share 128 bytes.

template <int kSize>
__device__ __forceinline__ std::uint32_t tile_offset(int row, int chunk) {
  const int swizzle = kSize == 32 ? row >> 1 & 3 : row & 7;
  return static_cast<std::uint32_t>(row * (kSize * 2) + ((chunk ^ swizzle) << 4));
}

// Eight elements of a row, from `first` on; zeros beyond its size and where !valid.
template <typename T>
__device__ __forceinline__ void copy_chunk(std::uint32_t to, const T* row, int first, int size, bool valid,
                                           bool aligned) {
  const bool inside = valid && first < size;
  if (aligned) {
    cp_async_16(to, inside ? row + first : row, inside);
    return;
  }
  std::uint32_t words[4] = {};
  if (inside) {
    const auto* from = reinterpret_cast<const std::uint16_t*>(row + first);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (first + i < size) words[i / 2] |= static_cast<std::uint32_t>(from[i]) << (16 * (i % 2));
    }
  }
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

// 4 bytes; zeros where !valid.
__device__ __forceinline__ void copy_word(std::uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Fragments of 16 rows of a tile (operand a of a product), step k of 16 elements.
template <int kSize>
__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], std::uint32_t tile, int first_row, int k,
                                       int lane) {
  ldmatrix_x4(a, tile + tile_offset<kSize>(first_row + (lane & 15), 2 * k + (lane >> 4)));
}
// Fragments of 16 rows as operand b, reduced along the row: {b0, b1} of rows 0 .. 7, {b0, b1} of rows 8
// .. 15.
template <int kSize>
__device__ __forceinline__ void load_b(std::uint32_t (&b)[4], std::uint32_t tile, int first_row, int k,
                                       int lane) {
  const int row = first_row + (lane & 7) + ((lane >> 4) << 3);
  ldmatrix_x4(b, tile + tile_offset<kSize>(row, 2 * k + ((lane >> 3) & 1)));
}
// 16 rows x 16 columns as operand b, reduced along the rows' index: {b0, b1} of columns 0 .. 7 of the step,
// {b0, b1} of columns 8 .. 15.
template <int kSize>
__device__ __forceinline__ void load_b_trans(std::uint32_t (&b)[4], std::uint32_t tile, int first_row,
                                             int column_step, int lane) {
  ldmatrix_x4_trans(b, tile + tile_offset<kSize>(first_row + (lane & 15), 2 * column_step + (lane >> 4)));
}

// x[i] = 16 rows of tile a times rows 8 i .. 8 i + 7 of tile b.
template <typename T, int kSize, int kBlocks>
__device__ __forceinline__ void row_products(float (&x)[kBlocks][4], std::uint32_t a_tile, int a_row,
                                             std::uint32_t b_tile, int b_row, int lane) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
    for (int r = 0; r < 4; ++r) x[i][r] = 0.0f;
  }
#pragma unroll
  for (int k = 0; k < kSize / 16; ++k) {
    std::uint32_t a[4];
    load_a<kSize>(a, a_tile, a_row, k, lane);
#pragma unroll
    for (int i = 0; i < kBlocks; i += 2) {
      std::uint32_t b[4];
      load_b<kSize>(b, b_tile, b_row + 8 * i, k, lane);
      mma_16x8x16<T>(x[i], a, b[0], b[1]);
      mma_16x8x16<T>(x[i + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace gsa::cuda
