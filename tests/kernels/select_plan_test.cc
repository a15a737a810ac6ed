// Which way select goes on CUDA: from facts alone, so it is tested without a GPU.
#include "kernels/select/select_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(SelectPlan, RowsOfStoredScoresAreWalkedOnceWhereThereIsRoom) {
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
  EXPECT_EQ(to_string(few), "read again and again by 512 threads: few rows of more than 32768 keys");
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
