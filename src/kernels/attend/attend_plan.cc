#include "kernels/attend/attend_plan.h"

#include "gsa/error.h"

namespace gsa::cuda {
namespace {

bool power_of_two(std::int64_t x) { return x > 0 && (x & (x - 1)) == 0; }

// 128 rows share what is copied, at the price of a larger union. Without a mask there is no price, and little
// where a query selects a good part of all keys.
int tile_rows_of(const AttendFacts& facts) {
  if (!facts.masked) return 128;
  constexpr int kMaxQueries = 64;  // of a tile with a mask: one bit each in a word
  const bool wide = facts.max_selected * 4 >= facts.longest_keys;
  return wide && 128 / facts.group <= kMaxQueries ? 128 : 64;
}

}  // namespace

AttendConfig choose_attend(const AttendFacts& facts) {
  if (facts.dtype != DType::bf16 && facts.dtype != DType::f16) {
    bad_argument("attend", "dtype", "bfloat16 or float16 on CUDA", name_of(facts.dtype));
  }
  if (facts.device.major < 8) {
    bad_argument("attend", "device", "compute capability 8.0 or later",
                 concat(facts.device.major, ".", facts.device.minor));
  }
  AttendConfig config;
  const bool size = facts.head_size == 128 || facts.head_size == 64;
  config.why = !facts.device.hopper()                           ? "not compute capability 9.0"
               : !size                                          ? "a head size other than 64 and 128"
               : !power_of_two(facts.group) || facts.group > 64 ? "heads in groups other than 1, 2, 4, ... 64"
               : !facts.aligned ? "rows that do not begin at multiples of 16 bytes"
                                : "";
  if (*config.why != '\0') return config;
  const int head_size = static_cast<int>(facts.head_size);
  config.rows = tile_rows_of(facts);
  config.stages = attend_stages(head_size, config.rows);
  config.shared_memory = attend_shared_memory(head_size, config.rows);
  if (config.shared_memory > facts.device.shared_memory) {
    AttendConfig generic;
    generic.why = "too little shared memory";
    return generic;
  }
  config.why = !facts.masked       ? "no mask"
               : config.rows == 64 ? "a mask, few of the keys"
                                   : "a mask, a good part of all keys";
  config.kernel = AttendConfig::Kernel::hopper;
  config.tile_queries = config.rows / static_cast<int>(facts.group);
  config.block_keys = kAttendBlockKeys;
  config.threads = config.rows * 2 + 128;
  return config;
}

std::string to_string(const AttendConfig& config) {
  if (config.kernel == AttendConfig::Kernel::generic) return concat("generic: ", config.why);
  return concat("hopper, ", config.rows, " rows (", config.tile_queries, " queries), blocks of ",
                config.block_keys, " keys, ", config.stages.k, " + ", config.stages.v, " stages, ",
                config.shared_memory / 1024, " KB, ", config.threads, " threads: ", config.why);
}

}  // namespace gsa::cuda
