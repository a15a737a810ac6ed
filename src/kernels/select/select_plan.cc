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

SelectRowsConfig choose_select_rows(const SelectRowsFacts& facts) {
  if (facts.longest_keys <= kShortRow) {
    return {.keys = kShortRow, .threads = 64, .why = "rows of at most 4096 keys"};
  }
  if (facts.longest_keys <= 2 * kShortRow) {
    return {.keys = 2 * kShortRow, .threads = 128, .why = "rows of at most 8192 keys"};
  }
  if (facts.longest_keys <= 4 * kShortRow) {
    return {.keys = 4 * kShortRow, .threads = 128, .why = "rows of at most 16384 keys"};
  }
  if (facts.longest_keys <= 8 * kShortRow) {
    return {.keys = 8 * kShortRow, .threads = 256, .why = "rows of at most 32768 keys"};
  }
  // Few rows: all threads of a multiprocessor for each.
  if (facts.rows <= 2 * facts.device.multiprocessors) {
    return {.keys = 0, .threads = 512, .why = "few rows of more than 32768 keys"};
  }
  return {.keys = 0, .threads = 256, .why = "rows of more than 32768 keys"};
}

std::string to_string(const SelectRowsConfig& config) {
  return concat(config.keys > 0 ? "walked once by " : "read again and again by ", config.threads,
                " threads: ", config.why);
}

std::string to_string(const SelectConfig& config) {
  return concat(config.way == Way::one_pass ? std::string("one pass")
                                            : concat("stored scores, ", config.tiles, " tiles at a time"),
                config.wgmma ? ", wgmma: " : ", mma: ", config.why);
}

}  // namespace gsa::cuda
