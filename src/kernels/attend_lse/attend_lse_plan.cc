#include "kernels/attend_lse/attend_lse_plan.h"

#include <algorithm>

#include "gsa/error.h"

namespace gsa::cuda {

AttendLseConfig choose_attend_lse(const AttendLseFacts& facts) {
  // Parts of a bounded number of tiles at a time: every tile of a long sequence may be asked for.
  constexpr std::size_t kPartBytes = std::size_t(64) << 20;
  AttendLseConfig config;
  config.why = !facts.device.hopper()                            ? "not compute capability 9.0"
               : facts.head_size != 64 && facts.head_size != 128 ? "a head size other than 64 and 128"
               : !facts.aligned ? "rows that do not begin at multiples of 16 bytes"
                                : "";
  if (*config.why == '\0') {
    config.kernel = AttendLseConfig::Kernel::hopper;
    config.why = "aligned heads of 64 or 128";
  }
  config.splits = static_cast<int>((facts.longest + lse::kSplitKeys - 1) / lse::kSplitKeys);
  config.tile_bytes =
      static_cast<std::size_t>(lse::kQueries * facts.heads * config.splits) * 2 * sizeof(float);
  config.at_once = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(kPartBytes / std::max<std::size_t>(1, config.tile_bytes)), 1,
      std::max<std::int64_t>(1, facts.tiles));
  return config;
}

std::string to_string(const AttendLseConfig& config) {
  return concat(config.kernel == AttendLseConfig::Kernel::hopper ? "hopper" : "generic", ", up to ",
                config.splits, config.splits == 1 ? " split" : " splits", " of the keys, ", config.at_once,
                config.at_once == 1 ? " tile" : " tiles", " at a time: ", config.why);
}

}  // namespace gsa::cuda
