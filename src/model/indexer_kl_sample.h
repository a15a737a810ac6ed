// What the indexer's loss runs over: which keys of a query, and which queries. No torch header.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace gsa::nn {

// Of the sparse phase; in warm-up it is always all.
//   selected   the keys that the query attended to
//   all        every visible key, with a target from dense attention: keys that are not selected are learned
//              about too
enum class KlSupport { selected, all };

const char* name_of(KlSupport support);
KlSupport kl_support_by_name(std::string_view name);  // throws with a suggestion

// The loss of a share of the queries in place of all of them: tiles of kQueryTile positions, drawn by a
// stratified sample in which every tile has the probability `share`.
struct KlSample {
  double share = 1;  // 1/n with a whole n
  std::uint64_t seed = 0;
};

// n, where share is 1/n; absent where there is no whole n >= 1.
std::optional<std::int64_t> parts_of_share(double share);
// What is said then.
constexpr const char* kShareExpected = "1/n with a whole n (1, 0.5, 0.25, 0.125, ...)";

// Tile numbers, ascending. The tiles of all sequences are numbered in order (QueryTiles in
// gsa/tensor_view.h); of every `parts` consecutive ones one is drawn, each with the same probability. Where
// fewer are left at the end, the draw may fall on one that is not there, so that those too have probability
// 1 / parts. starts: [sequences + 1], cumulative. A function of its arguments alone.
std::vector<std::int64_t> sample_query_tiles(std::span<const std::int64_t> starts, std::int64_t parts,
                                             std::uint64_t seed);

}  // namespace gsa::nn
