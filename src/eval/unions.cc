#include "eval/unions.h"

namespace gsa::eval {
namespace {

using at::Tensor;

// Bits set in int32 words, all together. torch has no such operator: pairs, nibbles and bytes are added up in
// place, in int64 because the sum of the first step needs all 32 bits.
double count_bits(const Tensor& words) {
  Tensor x = words.to(at::kLong).bitwise_and(0xffffffff);
  x = x - x.bitwise_right_shift(1).bitwise_and(0x55555555);
  x = x.bitwise_and(0x33333333) + x.bitwise_right_shift(2).bitwise_and(0x33333333);
  x = (x + x.bitwise_right_shift(4)).bitwise_and(0x0f0f0f0f);
  return x.mul(0x01010101).bitwise_right_shift(24).bitwise_and(0xff).sum().item<double>();
}

// Rows of words [n, W] joined two by two; an odd one at the end is left out.
Tensor joined(const Tensor& words) {
  const std::int64_t pairs = words.size(0) / 2;
  const Tensor both = words.narrow(0, 0, 2 * pairs).view({pairs, 2, words.size(1)});
  return both.select(1, 0).bitwise_or(both.select(1, 1));
}

}  // namespace

void add_unions(const Tensor& mask, const Tensor& k_t, std::array<UnionTotals, kTiles.size()>& unions) {
  Tensor words = mask;
  std::int64_t width = 1;
  for (std::size_t i = 0; i < kTiles.size(); ++i) {
    for (; width < kTiles[i]; width *= 2) words = joined(words);
    const std::int64_t tiles = words.size(0);
    if (tiles == 0) return;
    const double selected = k_t.narrow(0, 0, tiles * width).sum().item<double>();
    unions[i].add({count_bits(words), selected / static_cast<double>(width), tiles});
  }
}

}  // namespace gsa::eval
