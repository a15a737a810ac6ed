// How skinny_linear's kernel cuts a product, as numbers: which products it takes is decided without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "gsa/error.h"

namespace gsa::cuda::skinny {

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

// Blocks of threads: one a multiprocessor, and no more than have half a tile of outputs each.
inline int blocks_for(std::int64_t outputs, int multiprocessors) {
  return static_cast<int>(
      std::min<std::int64_t>(multiprocessors, std::max<std::int64_t>(1, outputs / (kTile / 2))));
}

// A line to print, such as "8 columns, 132 blocks, 80 KB: up to 8 rows".
inline std::string describe(std::int64_t rows, const Layout& layout, int blocks) {
  const int columns = columns_for(rows);
  return concat(columns, " columns, ", blocks, " blocks, ", layout.bytes / 1024,
                " KB: ", columns == 8 ? "up to 8 rows" : "9 to 16 rows");
}

}  // namespace gsa::cuda::skinny
