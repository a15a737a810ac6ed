#include "eval/masks.h"

#include <algorithm>

#include "eval/unions.h"

namespace gsa::eval {
namespace {

using at::Tensor;

constexpr std::int64_t kAlign = kTiles.back();  // chunks begin where every kind of tile does

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
                     std::int64_t chunk_words) {
  const auto bounds = starts.accessor<std::int64_t, 1>();
  MaskFacts facts;
  facts.has_first = torch::zeros({rows.k_t.size(0)}, rows.k_t.options().dtype(at::kBool));
  for (std::int64_t n = 0; n + 1 < bounds.size(0); ++n) {
    const std::int64_t begin = bounds[n], length = bounds[n + 1] - begin;
    const std::int64_t fitting = chunk_words / ((length + 31) / 32 + 1) / kAlign * kAlign;
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
