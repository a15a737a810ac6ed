#include "eval/masks.h"

#include <algorithm>

namespace gsa::eval {
namespace {

using at::Tensor;

constexpr std::int64_t kAlign = kTiles.back();  // stretches begin where every kind of tile does

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

}  // namespace

Tensor mask_words(std::int64_t begin, const QueryRun& run, const ops::IndexerInputs& indexer,
                  const SelectionRows& rows) {
  const auto queries = [&](const Tensor& x) {
    return x.narrow(0, begin + run.first, run.count).unsqueeze(0);
  };
  ops::IndexerInputs part = indexer;
  part.q = queries(indexer.q);
  part.w = queries(indexer.w);
  part.k = indexer.k.narrow(0, begin, run.first + run.count).unsqueeze(0);  // later keys are not visible
  return ops::select_mask(part, queries(rows.threshold), queries(rows.tie_cut)).squeeze(0);
}

MaskFacts read_masks(const Tensor& starts, const ops::IndexerInputs& indexer, const SelectionRows& rows,
                     std::int64_t stretch_words) {
  const auto bounds = starts.accessor<std::int64_t, 1>();
  MaskFacts facts;
  facts.has_first = torch::zeros({rows.k_t.size(0)}, rows.k_t.options().dtype(at::kBool));
  for (std::int64_t n = 0; n + 1 < bounds.size(0); ++n) {
    const std::int64_t begin = bounds[n], length = bounds[n + 1] - begin;
    const std::int64_t fitting = stretch_words / ((length + 31) / 32 + 1) / kAlign * kAlign;
    const std::int64_t step = std::max(kAlign, fitting);
    for (std::int64_t first = 0; first < length; first += step) {
      const std::int64_t count = std::min(step, length - first);
      const Tensor mask = mask_words(begin, {first, count}, indexer, rows);
      facts.has_first.narrow(0, begin + first, count).copy_(mask.select(1, 0).bitwise_and(1));
      add_unions(mask, rows.k_t.narrow(0, begin + first, count), facts.unions);
    }
  }
  return facts;
}

Tensor visible_keys(const Tensor& starts, const at::Device& device) {
  const std::int64_t count = starts.numel() - 1;
  const Tensor begin = starts.narrow(0, 0, count), end = starts.narrow(0, 1, count);
  const std::int64_t tokens = starts[count].item<std::int64_t>();
  return (torch::arange(1, tokens + 1, at::kLong) - torch::repeat_interleave(begin, end - begin)).to(device);
}

}  // namespace gsa::eval
