#include "kernels/attend/attend_backward_plan.h"

#include <algorithm>

#include "gsa/error.h"

namespace gsa::cuda {
namespace {

using Kernel = AttendBackwardConfig::Kernel;

constexpr std::int64_t kMegabyte = 1 << 20;
constexpr int kRows = 128;  // of a tile of the Hopper kernel: queries x heads of a group

// Why the Hopper kernel cannot take it; null: it can.
const char* hopper_lacks(const AttendBackwardFacts& facts) {
  if (!facts.device.hopper()) return "not compute capability 9.0";
  if (facts.head_size != 64 && facts.head_size != 128) return "a head size other than 64 and 128";
  const bool group = facts.group >= 1 && facts.group <= 16 && (facts.group & (facts.group - 1)) == 0;
  if (!group) return "heads in groups other than 1, 2, 4, 8 and 16";
  return facts.aligned ? nullptr : "rows that do not begin at multiples of 16 bytes";
}

// Bytes of dk and dv, which are fp32, of one key and head.
std::int64_t row_bytes(const AttendBackwardFacts& facts) { return 8 * facts.head_size; }

// What of the L2 cache the sums may take: measured on an H200, which has 50 MB.
std::int64_t room_for_sums(const Device& device) {
  return std::min<std::int64_t>(40 * kMegabyte, static_cast<std::int64_t>(device.l2_cache) / 5 * 4);
}

// The largest divisor of all heads that is at most `heads`.
int divisor(std::int64_t all, std::int64_t heads) {
  heads = std::clamp<std::int64_t>(heads, 1, std::max<std::int64_t>(all, 1));
  while (all % heads != 0) --heads;
  return static_cast<int>(heads);
}

// Sequences whose queues run side by side, `heads` of each. With deterministic accumulation the wait for a
// hand-over costs more than sums that leave the cache now and then: hence twice as many queues, and 16 in any
// case.
int sequences_together(const AttendBackwardFacts& facts, std::int64_t heads, std::int64_t room) {
  constexpr std::int64_t kQueues = 16;
  const bool ordered = facts.accumulation == Accumulation::ordered;
  const std::int64_t all = std::max<std::int64_t>(facts.total_keys * heads * row_bytes(facts), 1);
  const std::int64_t fitting = facts.sequences * (ordered ? 2 * room : room) / all;
  const std::int64_t least = ordered ? (kQueues + heads - 1) / heads : 1;
  return static_cast<int>(std::max<std::int64_t>(
      1, std::min<std::int64_t>({std::max(fitting, least), facts.sequences, kMaxScheduledSequences})));
}

// As many heads side by side as their sums stay in a cache of some 32 MB: a walk over keys comes back to the
// same rows with every tile. Where tiles wait for semaphores, at least four.
TileSchedule generic_schedule(const AttendBackwardFacts& facts) {
  const std::int64_t longest = row_bytes(facts) * std::max<std::int64_t>(facts.longest_keys, 1);
  const std::int64_t least = facts.accumulation == Accumulation::ordered ? 4 : 1;
  TileSchedule schedule;
  schedule.heads = divisor(facts.kv_heads, std::max(32 * kMegabyte / longest, least));
  schedule.sequences = sequences_together(facts, schedule.heads, 40 * kMegabyte);
  return schedule;
}

}  // namespace

AttendBackwardConfig choose_attend_backward(const AttendBackwardFacts& facts) {
  AttendBackwardConfig config;
  if (const char* const why = hopper_lacks(facts); why != nullptr) {
    config.why = why;
    // 128 rows share what is added to dk and dv, which is the larger part of the traffic. With a mask they would
    // visit the union of twice as many queries.
    config.warps = !facts.masked && facts.generic_shared <= facts.device.shared_memory ? 8 : 4;
    config.schedule = generic_schedule(facts);
    return config;
  }
  config.kernel = Kernel::hopper;
  config.tile_queries = static_cast<int>(std::min<std::int64_t>(kRows / facts.group, 64));
  TileSchedule& schedule = config.schedule;
  const std::int64_t room = room_for_sums(facts.device);
  const std::int64_t longest = facts.longest_keys * row_bytes(facts);  // bytes of sums of a head
  schedule.heads = static_cast<int>(facts.kv_heads);
  schedule.sequences = sequences_together(facts, facts.kv_heads, room);
  config.why = "sums of a sequence stay in the L2 cache";
  if (facts.kv_heads * longest <= room) return config;
  if (facts.accumulation == Accumulation::atomic && facts.masked && 2 * longest > room) {
    // Nobody waits for anybody: one head after the other. (At 32K 2 to 5 % faster than groups of all heads;
    // with half as many keys, where two heads fit, 6 % slower.)
    config.why = "its sums fill the L2 cache";
    schedule.heads = 1;
    return config;
  }
  config.why = "tiles find in the L2 cache what their neighbours added";
  schedule.group_tiles = static_cast<int>(std::clamp<std::int64_t>(facts.longest_keys / 1024, 1, 32));
  return config;
}

std::string to_string(const AttendBackwardConfig& config) {
  const TileSchedule& schedule = config.schedule;
  const auto some = [](int count, const char* noun) {
    return concat(count, " ", noun, count == 1 ? "" : "s");
  };
  return concat(
      config.kernel == Kernel::generic ? concat("generic, ", config.warps, " warps")
                                       : concat("hopper, tiles of ", config.tile_queries, " queries"),
      ", ", some(schedule.heads, "head"), " of ", some(schedule.sequences, "sequence"), " at a time",
      schedule.group_tiles > 1 ? concat(", in groups of ", schedule.group_tiles, " tiles") : "", ": ",
      config.why);
}

}  // namespace gsa::cuda
