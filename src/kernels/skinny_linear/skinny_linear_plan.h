// How skinny_linear's kernel cuts a product, from facts alone: no CUDA header, so that choices are tested
// without a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "core/cuda_context.h"

namespace gsa::cuda {
namespace skinny {

inline constexpr int kWarps = 8;       // that multiply
inline constexpr int kTile = 16;       // rows of the weights that are multiplied together
inline constexpr int kStages = 2;      // of the ring
inline constexpr int kPad = 16;        // bytes more than a row has: eight rows then begin in different banks
inline constexpr int kSumStride = 20;  // floats from a column of partial sums to the next: without conflicts

constexpr int columns_for(std::int64_t rows) { return rows <= 8 ? 8 : 16; }
// Elements of a row that travel together. Memory likes long copies: with half as many a step of the
// paper's 1.7B takes 5 % longer. A multiple of what all warps take at once, so that no sum depends on it.
template <int columns>
inline constexpr int kChunkOf = columns == 8 ? 2048 : 1024;

// In bytes from the start of a block's shared memory. Barriers come first.
struct Layout {
  int sums = 2 * kStages * 8, norm = 0, x = 0, ring = 0;
  int x_stride = 0;  // of a row
  int stage = 0;     // of the ring
  std::int64_t bytes = 0;

  // A normed x is kept whole; another one travels with the weights.
  constexpr Layout(std::int64_t rows, std::int64_t size, bool normed) {
    const int columns = columns_for(rows), row = (columns == 8 ? kChunkOf<8> : kChunkOf<16>)*2 + kPad;
    norm = sums + 2 * kWarps * columns * kSumStride * 4;
    const std::int64_t whole = normed ? size * 2 + kPad : row;
    const std::int64_t x_begin = norm + (normed ? size * 2 : 0);
    const std::int64_t ring_begin = x_begin + (normed ? rows * whole : 0);
    x = static_cast<int>(x_begin);
    ring = static_cast<int>(ring_begin);
    x_stride = static_cast<int>(whole);
    stage = static_cast<int>((kTile + (normed ? 0 : rows)) * row);
    bytes = ring_begin + kStages * stage;
  }
};

}  // namespace skinny

struct SkinnyLinearFacts {
  Device device;
  std::int64_t rows = 0, size = 0, outputs = 0;
  bool normed = false;
};

struct SkinnyLinearConfig {
  int columns = 0;  // of the products: rows of x, padded
  int blocks = 0;
  skinny::Layout layout;
  const char* why = "";
};

// For products that skinny_linear takes (skinny_linear.h).
SkinnyLinearConfig choose_skinny_linear(const SkinnyLinearFacts& facts);

// A line to print, such as "8 columns, 132 blocks, 107 KB: up to 8 rows".
std::string to_string(const SkinnyLinearConfig& config);

}  // namespace gsa::cuda
