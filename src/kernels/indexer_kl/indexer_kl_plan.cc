#include "kernels/indexer_kl/indexer_kl_plan.h"

#include <algorithm>
#include <limits>

#include "gsa/error.h"
#include "kernels/attention/query_tiles.h"

namespace gsa::cuda::kl {
namespace {

// Every tile, or those of a sample.
std::vector<UnionTile> tiles_of(const Sequences& sequences, const QueryTiles& sample) {
  static_assert(kQueryTile == kDenseQueries);
  std::vector<UnionTile> tiles;
  for (const SampledTile& tile : sampled_tiles(sequences, sample)) {
    tiles.push_back({.first_query = static_cast<int>(tile.first_query),
                     .queries = static_cast<int>(tile.queries),
                     .first_position = static_cast<int>(tile.first_position),
                     .k_begin = static_cast<int>(sequences.k_begin[tile.sequence]),
                     .count = static_cast<int>(tile.first_position + tile.queries),
                     .sequence = static_cast<int>(tile.sequence)});
  }
  return tiles;
}

}  // namespace

const char* why_not_wgmma(const TargetFacts& facts) {
  constexpr std::int64_t kLargestStride = 1 << 24;  // so that offsets within a tile fit in 32 bits
  if (!facts.device.hopper()) return "not Hopper";
  if (facts.head_size > 128) return "heads of more than 128";
  if (!facts.aligned) return "rows that do not begin at multiples of 16 bytes";
  if (facts.largest_stride >= kLargestStride) return "rows 2^24 elements apart or more";
  return nullptr;
}

IndexerKlConfig choose_indexer_kl(const IndexerKlFacts& facts) {
  const int heads = static_cast<int>(facts.index_heads);
  IndexerKlConfig config;
  const char* const why = why_not_wgmma(facts.target);
  config.wgmma = why == nullptr;
  if (!config.wgmma) {
    config.why_mma = why;
    // Two stages where three do not fit.
    const int three = target_shared_bytes(padded_size(facts.target.head_size), 3);
    config.target_stages = three <= static_cast<int>(facts.target.device.shared_memory) ? 3 : 2;
  }
  config.index_size = padded_index_size(facts.index_size);
  config.split = dense_split(facts.backward);
  if (!facts.backward) return config;
  config.block_heads = gradient_heads(config.index_size);
  config.fused = facts.listed && small_heads(heads, config.index_size);
  config.in_place = heads <= config.block_heads;
  // Dense, several blocks share the heads of larger indexers; longer splits keep blocks and bytes as they are.
  config.split *= std::max(1, heads / config.block_heads);
  return config;
}

std::string to_string(const IndexerKlConfig& config) {
  return concat(config.wgmma ? std::string("p by wgmma") : concat("p by mma (", config.why_mma, ")"),
                config.fused ? ", fused gradients: up to four small indexer heads" : "");
}

DensePlan make_dense_plan(const IndexerKlInputs& in, const DenseNeeds& needs) {
  DensePlan plan;
  const bool sampled = in.tiles.number != nullptr;
  plan.tiles = tiles_of(in.sequences, in.tiles);
  const int count = static_cast<int>(plan.tiles.size());
  // Tiles of a sample lie too far apart for windows: a few in a row make a part.
  constexpr int kSampledPart = 4;
  const auto same_part = [&](int a, int b) {
    return plan.tiles[a].sequence == plan.tiles[b].sequence &&
           (sampled ? b - a < kSampledPart
                    : window_of(plan.tiles[a].first_position) == window_of(plan.tiles[b].first_position));
  };
  // Chunks are cut between parts.
  for (int begin = 0; begin < count;) {
    DenseRange range{.first_tile = begin,
                     .first_part = static_cast<int>(plan.parts.size()),
                     .first_group = static_cast<int>(plan.groups.size())};
    while (begin < count) {
      int end = begin + 1;
      while (end < count && same_part(begin, end)) ++end;
      const UnionTile& last = plan.tiles[end - 1];
      const int entries = std::max(range.entries, last.count);
      if (range.tiles > 0 && !needs.fits(end - range.first_tile, range.parts + 1, entries)) break;
      range.entries = entries;
      if (range.parts == 0 || last.sequence != plan.tiles[begin - 1].sequence) {
        plan.groups.push_back({.first_part = range.parts, .parts = 0, .keys = 0, .k_begin = last.k_begin});
        ++range.groups;
      }
      plan.parts.push_back(
          {.first_tile = range.tiles, .tiles = end - begin, .keys = last.count, .k_begin = last.k_begin});
      ++plan.groups.back().parts;
      plan.groups.back().keys = last.count;
      range.tiles += end - begin;
      ++range.parts;
      begin = end;
    }
    plan.ranges.push_back(range);
    const std::size_t tiles = static_cast<std::size_t>(range.tiles);
    const std::size_t rows = tiles * static_cast<std::size_t>(needs.tile_queries);
    plan.row_splits = std::max(plan.row_splits, rows * needs.splits(range.entries));
    plan.row_entries = std::max(plan.row_entries, rows * DenseNeeds::stride(range.entries));
    plan.part_entries = std::max(plan.part_entries,
                                 static_cast<std::size_t>(range.parts) * DenseNeeds::stride(range.entries));
  }
  return plan;
}

std::int64_t list_bound(const ConstMask& mask) {
  constexpr std::int64_t kNone = std::numeric_limits<int>::max();
  return mask.max_selected > 0 && mask.max_selected < kNone / kListQueries ? mask.max_selected * kListQueries
                                                                           : kNone;
}

ListSizes list_sizes(const ConstMask& mask, const Sequences& sequences, std::size_t slot_bytes, bool words,
                     const ListLimits& limits) {
  const std::int64_t bound = list_bound(mask);
  std::int64_t total = 0, longest = 1, tiles = 0, longest_words = 1;
  for (std::int64_t n = 0; n < sequences.count; ++n) {
    const std::int64_t first = sequences.first_position(n), end = first + sequences.queries(n);
    for (std::int64_t position = first; position < end; ++tiles) {
      position = std::min(end, (position / kListQueries + 1) * kListQueries);
      const std::int64_t slots = (std::min(position, bound) + kSlot - 1) / kSlot;
      total += slots;
      longest = std::max(longest, slots);
    }
    longest_words = std::max(longest_words, (end + 31) / 32);
  }
  std::int64_t slots = limits.slots;
  if (slots == 0) slots = static_cast<std::int64_t>(limits.bytes / slot_bytes);
  slots = std::max(std::min(slots, total), longest);
  std::int64_t max_tiles = tiles;
  if (words) {
    const auto row = static_cast<std::size_t>(longest_words) * kListWordBytes;
    max_tiles = std::clamp<std::int64_t>(static_cast<std::int64_t>(limits.word_bytes / row), 1, tiles);
  }
  if (limits.tiles > 0) max_tiles = std::min<std::int64_t>(max_tiles, limits.tiles);
  // A chunk ends with its tiles, or where a tile, of the longest at worst, finds no room.
  const std::int64_t rounds = std::min(tiles, total / (slots - longest + 1) + tiles / max_tiles + 1);
  return {static_cast<int>(tiles), static_cast<int>(slots), static_cast<int>(max_tiles),
          static_cast<int>(rounds), static_cast<int>(longest)};
}

std::string describe(const ListSizes& sizes) {
  return concat("lists of ", sizes.tiles, " tiles, up to ", sizes.rounds, " chunks of ", sizes.slots,
                " slots, ");
}

std::string describe(const DensePlan& plan) {
  return concat("every visible key of ", plan.tiles.size(), " tiles, ", plan.ranges.size(), " chunks, ");
}

}  // namespace gsa::cuda::kl
