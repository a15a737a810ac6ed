#include "model/indexer_kl_sample.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "core/suggest.h"
#include "gsa/error.h"
#include "kernels/attention/query_tiles.h"

namespace gsa::nn {
namespace {

constexpr const char* kSampleOp = "nn::GatedSparseAttention";

}  // namespace

const char* name_of(KlSupport support) {
  switch (support) {
    case KlSupport::selected:
      return "selected";
    case KlSupport::all:
      return "all";
  }
  bad_argument(kSampleOp, "kl_support", "selected or all", concat(static_cast<int>(support)));
}

KlSupport kl_support_by_name(std::string_view name) {
  for (const KlSupport support : {KlSupport::selected, KlSupport::all}) {
    if (name == name_of(support)) return support;
  }
  bad_argument(kSampleOp, "kl_support", "selected or all", with_suggestion(name, {"selected", "all"}));
}

std::optional<std::int64_t> parts_of_share(double share) {
  constexpr double kTolerance = 1e-5;  // 0.333333 means a third
  constexpr double kMaxParts = 1 << 20;
  const double parts = std::round(1 / share);
  const bool whole =
      share > 0 && parts >= 1 && parts <= kMaxParts && std::abs(share * parts - 1) <= kTolerance;
  return whole ? std::optional(static_cast<std::int64_t>(parts)) : std::nullopt;
}

std::vector<std::int64_t> sample_query_tiles(std::span<const std::int64_t> starts, std::int64_t parts,
                                             std::uint64_t seed) {
  std::int64_t total = 0;
  for (std::size_t n = 0; n + 1 < starts.size(); ++n) total += query_tiles(starts[n + 1] - starts[n], 0);
  std::vector<std::int64_t> drawn;
  for (std::int64_t first = 0, stratum = 0; first < total; first += parts, ++stratum) {
    const double at = philox_uniform(seed, 0, static_cast<std::uint64_t>(stratum));
    const std::int64_t tile = first + static_cast<std::int64_t>(at * static_cast<double>(parts));
    if (tile < total) drawn.push_back(tile);
  }
  return drawn;
}

}  // namespace gsa::nn
