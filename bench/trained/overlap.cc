#include "overlap.h"

#include <algorithm>
#include <array>

#include "eval/unions.h"

namespace gsa::bench {

std::optional<double> union_over_k(const nn::AttentionView& view) {
  const auto starts = view.starts.accessor<std::int64_t, 1>();
  const std::int64_t begin = starts[0], first = (starts[1] - begin) / 2, tile = eval::kTiles.front();
  const std::int64_t count = std::min<std::int64_t>(1024, first / tile * tile);
  if (count == 0) return std::nullopt;
  const at::Tensor mask = eval::mask_words(begin, {.first = first, .count = count}, *view.indexer,
                                           {view.k_t, view.threshold, view.tie_cut});
  std::array<eval::UnionTotals, eval::kTiles.size()> unions;
  eval::add_unions(mask, view.k_t.narrow(0, begin + first, count), unions);
  return unions.front().keys / unions.front().budget;
}

}  // namespace gsa::bench
