#include "kernels/select/select_plan.h"

#include <algorithm>

#include "gsa/error.h"

namespace gsa::cuda {
namespace {

using Way = SelectConfig::Way;

constexpr std::int64_t kStoredKeys = 32768;  // beyond, one pass is faster than stored scores
constexpr std::int64_t kScoreBytes = std::int64_t{512} << 20;  // of stored scores, at a time
constexpr std::int64_t kHopperHeads = 4;

}  // namespace

bool hopper_scores(const SelectFacts& facts) {
  return facts.device.hopper() && facts.heads == kHopperHeads &&
         (facts.head_size == 32 || facts.head_size == 64) && facts.wide_rows;
}

bool hopper_pass(const SelectFacts& facts) { return hopper_scores(facts) && facts.head_size == 64; }

SelectConfig choose_select(const SelectFacts& facts) {
  SelectConfig config;
  const bool few = facts.tiles < facts.device.multiprocessors / 2;
  if (facts.longest_keys <= kStoredKeys) {
    config.why = "rows of at most 32768 keys";
  } else if (few) {
    config.why = "few queries";
  } else if (!facts.lists_fit) {
    config.why = "long lists, or heads that leave no shared memory for one pass";
  } else {
    config.way = Way::one_pass;
    config.wgmma = hopper_pass(facts);
    config.why = "rows of more than 32768 keys";
    return config;
  }
  config.wgmma = hopper_scores(facts);
  const std::int64_t stride = (facts.longest_keys + kStoredStep - 1) / kStoredStep * kStoredStep;
  config.tiles = std::clamp<std::int64_t>(kScoreBytes / std::max<std::int64_t>(1, stride * 4 * kSelectTile),
                                          1, std::max<std::int64_t>(1, facts.tiles));
  return config;
}

std::string to_string(const SelectConfig& config) {
  return concat(config.way == Way::one_pass ? std::string("one pass")
                                            : concat("stored scores, ", config.tiles, " tiles at a time"),
                config.wgmma ? ", wgmma: " : ", mma: ", config.why);
}

}  // namespace gsa::cuda
