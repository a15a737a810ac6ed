#include "kernels/select/select_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "gsa/error.h"

namespace gsa::cuda {
namespace {

using Way = SelectConfig::Way;

constexpr std::int64_t kStoredKeys = 32768;  // beyond, one pass is faster than stored scores
constexpr std::int64_t kScoreBytes = std::int64_t{512} << 20;  // of stored scores, at a time
constexpr std::int64_t kHopperHeads = 4;

// Scratch of all tiles under way: what is aimed at, by a denser sample of the keys if need be, and the most.
constexpr std::int64_t kScratchBytes = 735'000'000;
constexpr std::int64_t kMaxScratchBytes = 1'090'000'000;

// A fixed small shape: the queries live in registers.
bool four_heads_of(std::int64_t size, const SelectFacts& facts) {
  return facts.heads == 4 && facts.head_size == size && facts.paired_query;
}

// As many tiles as blocks run at a time, or a few less where rounds of the same size are no more of them: on
// an H200 a tile of keys took Hopper's pass 1.88 us with 256 tiles at a time (a chunk of 16,384
// queries), 2.10 us with 264. Why is not known.
int tiles_at_once(const SelectFacts& facts) {
  const int tiles = static_cast<int>(facts.tiles);
  const int each = hopper_pass(facts) ? selecting::kHopperPassBlocks : selecting::kPassBlocks;
  const int slots = each * facts.device.multiprocessors;
  const int rounds = (tiles + slots - 1) / slots;
  const int even = (tiles + rounds - 1) / rounds;
  return std::min(tiles, even >= slots - slots / 16 ? even : slots);
}

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
  return concat(config.keys > 0 ? "single pass, " : "multi-pass, ", config.threads, " threads: ", config.why);
}

SelectScoresConfig choose_select_scores(const SelectFacts& facts, int tiles, int longest_keys) {
  using Kernel = SelectScoresConfig::Kernel;
  SelectScoresConfig config;
  config.kernel = four_heads_of(64, facts)   ? Kernel::four_of_64
                  : four_heads_of(32, facts) ? Kernel::four_of_32
                                             : Kernel::any_shape;
  const auto ring = static_cast<std::size_t>(selecting::kStages) *
                    static_cast<std::size_t>(selecting::key_stage_bytes(facts.steps()));
  const int query = selecting::query_bytes(static_cast<int>(facts.heads), facts.steps());
  const std::size_t with_query = ring + static_cast<std::size_t>(query);
  config.query_in_shared = config.kernel == Kernel::any_shape && with_query <= facts.device.shared_memory;
  config.shared_bytes = config.query_in_shared ? with_query : ring;
  // Enough blocks to fill the device a few times, where there are keys enough.
  constexpr int kWaves = 12, kMinTiles = 4, kMaxSplits = 65535;
  const int key_tiles = (longest_keys + selecting::kTileKeys - 1) / selecting::kTileKeys;
  const int wanted = std::max(1, kWaves * facts.device.multiprocessors / std::max(1, tiles));
  config.split_tiles = std::max(kMinTiles, (key_tiles + wanted - 1) / wanted);
  config.split_tiles = std::max(config.split_tiles, (key_tiles + kMaxSplits - 1) / kMaxSplits);
  config.splits = std::max(1, (key_tiles + config.split_tiles - 1) / config.split_tiles);
  return config;
}

SelectScoresConfig choose_hopper_scores(const SelectFacts& facts, int tiles, int longest_keys) {
  // Splits of the keys: blocks for the device several times over, but not so short that filling the ring
  // of keys is the work.
  constexpr int kWaves = 8, kSegment = selecting::kSegmentTiles;
  const int key_tiles = (longest_keys + selecting::kTileKeys - 1) / selecting::kTileKeys;
  const int wanted = std::max(1, kWaves * facts.device.multiprocessors / std::max(1, tiles));
  const int segments = (key_tiles + kSegment - 1) / kSegment;
  SelectScoresConfig config;
  config.kernel = SelectScoresConfig::Kernel::wgmma;
  config.split_tiles = (segments + wanted - 1) / wanted * kSegment;
  config.splits = (key_tiles + config.split_tiles - 1) / config.split_tiles;
  return config;
}

std::string to_string(const SelectScoresConfig& config) {
  using Kernel = SelectScoresConfig::Kernel;
  const char* const why = config.kernel == Kernel::wgmma        ? "Hopper, four heads of 32 or 64"
                          : config.kernel == Kernel::four_of_64 ? "four heads of 64, queries in registers"
                          : config.kernel == Kernel::four_of_32 ? "four heads of 32, queries in registers"
                          : config.query_in_shared ? "heads of another shape, queries in shared memory"
                                                   : "queries too large for shared memory";
  return concat(config.kernel == Kernel::wgmma ? "wgmma, " : "mma, ", config.split_tiles,
                " tiles of keys a block: ", why);
}

int SelectTiles::count() const {
  return static_cast<int>(first_slot<selecting::kSpareTiles>(sequences_.total_queries(), sequences_.count,
                                                             std::int64_t{selecting::kTileQueries}));
}

std::int64_t SelectTiles::first_row(std::int64_t tile) const {
  constexpr std::int64_t kQueries = selecting::kTileQueries;
  const auto begin = [&](std::int64_t n) { return sequences_.q_begin[n]; };
  const std::int64_t n = sequence_of_slot<selecting::kSpareTiles>(tile, sequences_.count, kQueries, begin);
  const std::int64_t first = (tile - first_slot<selecting::kSpareTiles>(begin(n), n, kQueries)) * kQueries;
  return begin(n) + std::min(first, sequences_.queries(n));
}

std::int64_t SelectTiles::max_visible(std::int64_t first, std::int64_t end) const {
  std::int64_t longest = 0;
  const std::int64_t* const begin = sequences_.q_begin;
  std::int64_t n = std::upper_bound(begin, begin + sequences_.count, first) - begin - 1;
  for (; n < sequences_.count && begin[n] < end; ++n) {
    const std::int64_t last = std::min(end, begin[n + 1]) - 1;
    if (last >= begin[n]) longest = std::max(longest, sequences_.first_position(n) + last - begin[n] + 1);
  }
  return longest;
}

std::vector<SelectRowsPart> select_rows_parts(const Sequences& sequences, std::int64_t first,
                                              std::int64_t end) {
  constexpr std::int64_t kMinRows = 512;
  std::vector<SelectRowsPart> parts;
  const std::int64_t* const begin = sequences.q_begin;
  std::int64_t n = std::upper_bound(begin, begin + sequences.count, first) - begin - 1;
  std::int64_t part = first, limit = 0, longest = 0;  // rows of the part see at most `limit` keys
  for (std::int64_t row = first; row < end; ++n) {
    const std::int64_t last = std::min(end, begin[n + 1]);
    while (row < last) {
      const std::int64_t before = sequences.first_position(n) - begin[n];  // row r sees before + r + 1 keys
      const std::int64_t room = std::max<std::int64_t>(
          kShortRow, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(before + row + 1))));
      const std::int64_t stop = std::min(last, room - before);
      if (room != limit && row > part && std::max(row - part, stop - row) >= kMinRows) {
        parts.push_back({part, row, longest});
        part = row, limit = longest = 0;
      }
      limit = std::max(limit, room);
      longest = std::max(longest, before + stop);
      row = stop;
    }
  }
  parts.push_back({part, end, longest});
  return parts;
}

PassMemory pass_memory(const SelectFacts& facts) {
  const int keys = selecting::kStages * selecting::key_stage_bytes(facts.steps());
  const int ring = std::max(keys, selecting::kRowSharedBytes);
  PassMemory memory;
  memory.query_in_registers = four_heads_of(64, facts);
  const int query =
      memory.query_in_registers ? 0 : selecting::query_bytes(static_cast<int>(facts.heads), facts.steps());
  memory.ring_bytes = (ring + 127) / 128 * 128;
  const std::size_t limit = facts.device.shared_memory - selecting::kPassSharedBytes - 1024;
  const std::size_t base = static_cast<std::size_t>(memory.ring_bytes);
  const std::size_t with_query = base + static_cast<std::size_t>(query);
  memory.fits = base <= limit;
  memory.query_in_shared = query > 0 && with_query <= limit;
  memory.bytes = memory.query_in_shared ? with_query : base;
  return memory;
}

LongPlan plan_long(const SelectFacts& facts, const Budget& budget) {
  const PassMemory memory = pass_memory(facts);
  if (!memory.fits) return {};
  const bool adaptive = budget.mode != BudgetMode::fixed &&
                        (budget.mean_variance >= 0 || budget.device_mean_variance != nullptr);
  const double max_selected =
      static_cast<double>(adaptive ? budget.max : std::clamp(budget.base, budget.min, budget.max));
  LongPlan best;
  best.wgmma = hopper_pass(facts);
  best.memory = memory;
  const int longest = static_cast<int>(facts.longest_keys);
  if (max_selected * 4 > longest) return best;
  const int wanted = tiles_at_once(facts);
  int sparsest = 0;
  while (longest >> sparsest > 2048) ++sparsest;
  // The fewer samples, the longer the lists.
  constexpr int kLists = selecting::kLists, kTileKeys = selecting::kTileKeys;
  constexpr long long kQueries = selecting::kTileQueries;
  for (const std::int64_t limit : {kScratchBytes, kMaxScratchBytes}) {
    for (int shift = sparsest; shift >= 0 && longest >> shift <= 16384; --shift) {
      const double stride = 1 << shift;
      // What reaches the bound, on average and at most, and the share of one list.
      const double rank = max_selected / stride;
      const double reached = rank + static_cast<double>(selecting::kSampleMargin) * std::sqrt(rank) + 3;
      const double total = stride * (reached + 3.5 * std::sqrt(reached));
      LongPlan plan;
      plan.wgmma = best.wgmma;
      plan.memory = memory;
      plan.shift = shift;
      plan.samples = ((longest >> shift) / kTileKeys + 1) * kTileKeys;
      plan.list = static_cast<int>((total / kLists + 4 * std::sqrt(total / kLists) + 32) / 32 + 1) * 32;
      plan.slot_bytes = std::max<long long>(
          {kQueries * kLists * plan.list * 8, kQueries * plan.samples * 4, (longest + 64ll) * 4});
      plan.slot_bytes = (plan.slot_bytes + 255) / 256 * 256;
      plan.at_once = static_cast<int>(std::min<std::int64_t>(wanted, limit / plan.slot_bytes - 1));
      if (plan.at_once == wanted) return plan;
      if (plan.at_once > best.at_once) best = plan;
    }
  }
  return best;
}

std::string to_string(const SelectConfig& config) {
  return concat(config.way == Way::one_pass ? std::string("one pass")
                                            : concat("stored scores, ", config.tiles, " tiles at a time"),
                config.wgmma ? ", wgmma: " : ", mma: ", config.why);
}

}  // namespace gsa::cuda
