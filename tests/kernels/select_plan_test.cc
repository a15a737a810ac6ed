// Which way select goes on CUDA: from facts alone, so it is tested without a GPU.
#include "kernels/select/select_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace gsa::cuda {
namespace {

using Way = SelectConfig::Way;

constexpr Device kH200 = {9, 0, 132, 232448, std::size_t(50) << 20};

// 4 indexer heads of 64, one sequence.
SelectFacts usual(std::int64_t keys) {
  SelectFacts facts;
  facts.device = kH200;
  facts.heads = 4;
  facts.head_size = 64;
  facts.wide_rows = true;
  facts.paired_query = true;
  facts.tiles = keys / 64 + 1;
  facts.longest_keys = keys;
  facts.lists_fit = true;
  return facts;
}

TEST(SelectPlan, LongRowsOfManyQueriesTakeOnePass) {
  EXPECT_EQ(choose_select(usual(32768)).way, Way::stored);
  EXPECT_EQ(choose_select(usual(32769)).way, Way::one_pass);
  SelectFacts facts = usual(131072);
  facts.tiles = 65;
  EXPECT_EQ(choose_select(facts).way, Way::stored);
  facts = usual(131072);
  facts.lists_fit = false;
  EXPECT_EQ(choose_select(facts).way, Way::stored);
}

TEST(SelectPlan, StoredScoresTakeABoundedAmountOfMemory) {
  for (const std::int64_t keys : {1, 63, 4096, 32768, 1 << 20}) {
    SelectFacts facts = usual(keys);
    facts.lists_fit = false;
    const SelectConfig config = choose_select(facts);
    EXPECT_GE(config.tiles, 1);
    EXPECT_LE(config.tiles, facts.tiles);
    if (config.tiles > 1) {
      EXPECT_LE(config.tiles * 64 * ((keys + 63) / 64 * 64) * 4, std::int64_t(512) << 20) << keys;
    }
  }
}

TEST(SelectPlan, HopperTakesFourHeads) {
  EXPECT_TRUE(choose_select(usual(8192)).wgmma);
  EXPECT_TRUE(choose_select(usual(131072)).wgmma);
  SelectFacts facts = usual(131072);
  facts.head_size = 32;  // the one pass is for 64
  EXPECT_FALSE(choose_select(facts).wgmma);
  facts.longest_keys = 8192;
  EXPECT_TRUE(choose_select(facts).wgmma);
  const auto without = [](auto change) {
    SelectFacts changed = usual(8192);
    change(changed);
    return choose_select(changed).wgmma;
  };
  EXPECT_FALSE(without([](auto& f) { f.heads = 8; }));
  EXPECT_FALSE(without([](auto& f) { f.wide_rows = false; }));
  EXPECT_FALSE(without([](auto& f) { f.device.major = 8; }));
}

TEST(SelectPlan, PrintsItself) {
  EXPECT_EQ(to_string(choose_select(usual(32768))),
            "stored scores, 64 tiles at a time, wgmma: rows of at most 32768 keys");
  EXPECT_EQ(to_string(choose_select(usual(131072))), "one pass, wgmma: rows of more than 32768 keys");
}

TEST(SelectPlan, RowsOfStoredScoresTakeASinglePassWhereThereIsRoom) {
  struct Expected {
    std::int64_t longest;
    int keys, threads;
  };
  for (const auto& [longest, keys, threads] : {Expected{1, 4096, 64},
                                               {4096, 4096, 64},
                                               {4097, 8192, 128},
                                               {8192, 8192, 128},
                                               {8193, 16384, 128},
                                               {16384, 16384, 128},
                                               {16385, 32768, 256},
                                               {32768, 32768, 256},
                                               {32769, 0, 256}}) {
    const SelectRowsConfig config =
        choose_select_rows({.device = kH200, .rows = 265, .longest_keys = longest});
    EXPECT_EQ(config.keys, keys) << longest;
    EXPECT_EQ(config.threads, threads) << longest;
  }
  const SelectRowsConfig few = choose_select_rows({.device = kH200, .rows = 264, .longest_keys = 40000});
  EXPECT_EQ(few.threads, 512);
  EXPECT_EQ(to_string(few), "multi-pass, 512 threads: few rows of more than 32768 keys");
}

// ---- scores that are written out

TEST(SelectPlan, ScoresOfFourHeadsHaveKernelsOfTheirOwn) {
  using Kernel = SelectScoresConfig::Kernel;
  const auto choose = [](std::int64_t heads, std::int64_t size, bool paired) {
    SelectFacts facts = usual(8192);
    facts.heads = heads, facts.head_size = size, facts.paired_query = paired;
    return choose_select_scores(facts, 128, 8192);
  };
  EXPECT_EQ(choose(4, 64, true).kernel, Kernel::four_of_64);
  EXPECT_EQ(choose(4, 32, true).kernel, Kernel::four_of_32);
  EXPECT_EQ(choose(4, 64, false).kernel, Kernel::any_shape);
  EXPECT_EQ(choose(4, 48, true).kernel, Kernel::any_shape);
  EXPECT_EQ(choose(8, 64, true).kernel, Kernel::any_shape);
  // Queries in registers need no shared memory beside the ring of keys: three stages of 64 rows of 128 + 16 bytes.
  EXPECT_EQ(choose(4, 64, true).shared_bytes, 3u * 64 * 144);
  EXPECT_FALSE(choose(4, 64, true).query_in_shared);
  // Of other shapes they lie there while they fit: four warps, 512 bytes for 16 dimensions of a head.
  EXPECT_TRUE(choose(8, 64, true).query_in_shared);
  EXPECT_EQ(choose(8, 64, true).shared_bytes, 3u * 64 * 144 + 4u * 8 * 4 * 512);
  EXPECT_FALSE(choose(128, 64, true).query_in_shared);
  EXPECT_EQ(choose(128, 64, true).shared_bytes, 3u * 64 * 144);
}

// Few tiles of queries split the keys, many do not; every key is in a split.
TEST(SelectPlan, SplitsOfScoresFillTheDevice) {
  for (const int longest : {1, 64, 4096, 32768, 1 << 20}) {
    for (const int tiles : {1, 12, 200, 5000}) {
      const int key_tiles = (longest + 63) / 64;
      const SelectScoresConfig mma = choose_select_scores(usual(longest), tiles, longest);
      const SelectScoresConfig wgmma = choose_hopper_scores(usual(longest), tiles, longest);
      for (const SelectScoresConfig& config : {mma, wgmma}) {
        EXPECT_GE(config.splits * config.split_tiles, key_tiles) << longest << " " << tiles;
        EXPECT_LT((config.splits - 1) * config.split_tiles, key_tiles) << longest << " " << tiles;
        EXPECT_LE(config.splits, 65535);
      }
      EXPECT_GE(mma.split_tiles, 4);
      EXPECT_EQ(wgmma.split_tiles % 16, 0);  // whole segments of 1024 keys
    }
  }
  EXPECT_EQ(choose_select_scores(usual(32768), 1, 32768).splits, 128);
  EXPECT_EQ(choose_select_scores(usual(32768), 5000, 32768).splits, 1);
  EXPECT_EQ(choose_hopper_scores(usual(32768), 1, 32768).splits, 32);
  EXPECT_EQ(to_string(choose_select_scores(usual(32768), 64, 32768)),
            "mma, 22 tiles of keys a block: four heads of 64, queries in registers");
  EXPECT_EQ(to_string(choose_hopper_scores(usual(32768), 64, 32768)),
            "wgmma, 32 tiles of keys a block: Hopper, four heads of 32 or 64");
}

// ---- rows of stored scores

Sequences sequences_of(const std::vector<std::int64_t>& q_begin, const std::vector<std::int64_t>& k_begin) {
  Sequences sequences;
  sequences.count = static_cast<std::int64_t>(q_begin.size()) - 1;
  sequences.q_begin = q_begin.data();
  sequences.k_begin = k_begin.data();
  return sequences;
}

TEST(SelectPlan, TilesBeginWithTheirSequence) {
  const std::vector<std::int64_t> begin = {0, 100, 100, 300};
  const Sequences sequences = sequences_of(begin, begin);
  const SelectTiles tiles(sequences);
  EXPECT_EQ(tiles.count(), 300 / 64 + 3);
  EXPECT_EQ(tiles.first_row(0), 0);
  EXPECT_EQ(tiles.first_row(1), 64);
  EXPECT_EQ(tiles.first_row(2), 100);  // of the empty sequence
  EXPECT_EQ(tiles.first_row(3), 100);
  EXPECT_EQ(tiles.first_row(4), 164);
  EXPECT_EQ(tiles.first_row(6), 292);
  EXPECT_EQ(tiles.max_visible(0, 100), 100);
  EXPECT_EQ(tiles.max_visible(64, 101), 100);
  EXPECT_EQ(tiles.max_visible(100, 300), 200);
}

TEST(SelectPlan, PartsOfRowsEndWhereAnotherKernelBegins) {
  const std::vector<std::int64_t> begin = {0, 20000};
  const Sequences sequences = sequences_of(begin, begin);
  const auto parts = select_rows_parts(sequences, 0, 20000);
  ASSERT_EQ(parts.size(), 4u);
  std::int64_t next = 0;
  for (const auto& [part, keys] : {std::pair(parts[0], 4096), std::pair(parts[1], 8192),
                                   std::pair(parts[2], 16384), std::pair(parts[3], 20000)}) {
    EXPECT_EQ(part.first, next);
    EXPECT_EQ(part.end, keys);
    EXPECT_EQ(part.max_keys, keys);
    next = part.end;
  }
  // Sixteen short sequences of 100 rows would be launches of few rows: they stay together.
  std::vector<std::int64_t> many = {0}, keys = {0};
  for (int n = 0; n < 16; ++n) {
    many.push_back(many.back() + 100);
    keys.push_back(keys.back() + (n % 2 == 0 ? 1000 : 9000));
  }
  const Sequences short_ones = sequences_of(many, keys);
  const auto together = select_rows_parts(short_ones, 0, 400);
  ASSERT_EQ(together.size(), 1u);
  EXPECT_EQ(together[0].max_keys, 9000);
}

// ---- one pass

TEST(SelectPlan, OnePassSamplesLongRowsAndBoundsItsScratch) {
  const Budget budget = {.mode = BudgetMode::fixed, .base = 2048, .min = 256, .max = 4096};
  for (const std::int64_t keys : {32769, 65536, 131072, 1 << 20}) {
    const SelectFacts facts = usual(keys);
    const LongPlan plan = plan_long(facts, budget);
    ASSERT_GT(plan.at_once, 0) << keys;
    EXPECT_LE(plan.at_once, facts.tiles);
    EXPECT_LE((plan.at_once + 1) * plan.slot_bytes, 1'090'000'000) << keys;
    EXPECT_EQ(plan.slot_bytes % 256, 0);
    EXPECT_GE(plan.slot_bytes, (keys + 64) * 4);  // the fallback stores a row
    EXPECT_GE(plan.samples, keys >> plan.shift);
    EXPECT_GE(4 * plan.list, 2048) << "what is selected must fit the lists";
    EXPECT_TRUE(plan.wgmma);
    EXPECT_TRUE(plan.memory.query_in_registers);
  }
  // Two blocks of each of 132 multiprocessors, and rounds of the same size.
  EXPECT_EQ(plan_long(usual(131072), budget).at_once, 257);
}

TEST(SelectPlan, OnePassDeclinesWhatItsListsCannotHold) {
  Budget budget = {.mode = BudgetMode::fixed, .base = 8192, .min = 1, .max = 8192};
  EXPECT_GT(plan_long(usual(32768), budget).at_once, 0);
  budget.base = budget.max = 8193;
  EXPECT_EQ(plan_long(usual(32768), budget).at_once, 0);
  // Until the mean of the variance is known, k_t is the base.
  budget = {.mode = BudgetMode::inverse, .base = 2048, .min = 1, .max = 20000};
  EXPECT_GT(plan_long(usual(65536), budget).at_once, 0);
  budget.mean_variance = 0.1;
  EXPECT_EQ(plan_long(usual(65536), budget).at_once, 0);
}

TEST(SelectPlan, SharedMemoryOfOnePass) {
  const PassMemory four = pass_memory(usual(65536));
  EXPECT_TRUE(four.fits && four.query_in_registers && !four.query_in_shared);
  EXPECT_EQ(four.ring_bytes, (3 * 64 * 144 + 127) / 128 * 128);
  EXPECT_EQ(four.bytes, static_cast<std::size_t>(four.ring_bytes));
  SelectFacts facts = usual(65536);
  facts.heads = 8;
  EXPECT_TRUE(pass_memory(facts).query_in_shared);
  EXPECT_EQ(pass_memory(facts).bytes, static_cast<std::size_t>(four.ring_bytes) + 4 * 8 * 4 * 512);
  facts.heads = 128;
  EXPECT_TRUE(pass_memory(facts).fits && !pass_memory(facts).query_in_shared);
  facts.head_size = 256;
  EXPECT_TRUE(pass_memory(facts).fits);
  facts.device.shared_memory = 99 * 1024;  // three stages of 64 rows of 528 bytes take as much
  EXPECT_FALSE(pass_memory(facts).fits);
  EXPECT_EQ(plan_long(facts, {}).at_once, 0);
}

// Of a round whose tiles are numbered from the longest to the shortest.
TEST(SelectPlan, BlocksOfAMultiprocessorShareTheWork) {
  for (const int tiles : {1, 2, 131, 132, 133, 200, 256, 263, 264}) {
    std::vector<int> taken(static_cast<std::size_t>(tiles)), first(132, 0);
    int longest = 0, shortest = 2 * tiles;
    for (int block = 0; block < tiles; ++block) {
      const int tile = tile_of_block(block, tiles, 132);
      ASSERT_TRUE(tile >= 0 && tile < tiles) << tiles << " " << block;
      ++taken[static_cast<std::size_t>(tile)];
      if (block < 132) {
        first[static_cast<std::size_t>(block)] = tile;
      } else {
        const int both = first[static_cast<std::size_t>(block - 132)] + tile;
        longest = std::max(longest, both), shortest = std::min(shortest, both);
      }
    }
    for (const int times : taken) EXPECT_EQ(times, 1) << tiles;
    if (tiles > 132) {
      EXPECT_EQ(longest, shortest) << tiles;
    }
  }
}

}  // namespace
}  // namespace gsa::cuda
