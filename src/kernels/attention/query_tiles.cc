#include "kernels/attention/query_tiles.h"

#include <algorithm>

#include "gsa/error.h"
#include "kernels/common/checks.h"

namespace gsa {

std::int64_t total_query_tiles(const Sequences& s) {
  std::int64_t total = 0;
  for (std::int64_t n = 0; n < s.count; ++n) {
    if (s.queries(n) > 0) total += query_tiles(s.queries(n), s.first_position(n));
  }
  return total;
}

std::vector<SampledTile> sampled_tiles(const Sequences& s, const QueryTiles& tiles) {
  const bool every = tiles.number == nullptr;
  std::vector<SampledTile> result;
  if (!every) result.reserve(static_cast<std::size_t>(tiles.count));
  std::int64_t before = 0, next = 0;  // tiles of earlier sequences; the next number to look for
  for (std::int64_t n = 0; n < s.count; ++n) {
    if (s.queries(n) == 0) continue;
    const std::int64_t first = s.first_position(n), end = first + s.queries(n);
    const std::int64_t count = query_tiles(s.queries(n), first);
    const auto add = [&](std::int64_t tile) {
      const std::int64_t begin = std::max(first, (first / kQueryTile + tile) * kQueryTile);
      const std::int64_t stop = std::min(end, (first / kQueryTile + tile + 1) * kQueryTile);
      result.push_back({n, s.q_begin[n] + begin - first, stop - begin, begin});
    };
    if (every) {
      for (std::int64_t tile = 0; tile < count; ++tile) add(tile);
    } else {
      for (; next < tiles.count && tiles.number[next] < before + count; ++next) {
        add(tiles.number[next] - before);
      }
    }
    before += count;
  }
  return result;
}

void check::query_tiles(const char* op, const QueryTiles& tiles, const Sequences& sequences) {
  if (tiles.number == nullptr) {
    in_range(op, "tiles.count", tiles.count, 0, 0);
    return;
  }
  const std::int64_t total = total_query_tiles(sequences);
  in_range(op, "tiles.count", tiles.count, 0, total);
  for (std::int64_t i = 0; i < tiles.count; ++i) {
    in_range(op, "tiles.number", tiles.number[i], 0, total - 1);
    if (i > 0 && tiles.number[i] <= tiles.number[i - 1]) {
      bad_argument(op, "tiles.number", "numbers that ascend, each once",
                   concat(tiles.number[i], " after ", tiles.number[i - 1]));
    }
  }
}

}  // namespace gsa
