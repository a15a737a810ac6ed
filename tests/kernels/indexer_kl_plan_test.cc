// How indexer_kl on CUDA cuts its work into chunks: from facts alone, so it is tested without a GPU.
#include "kernels/indexer_kl/indexer_kl_plan.h"

#include <gtest/gtest.h>

#include "problems.h"

namespace gsa::cuda::kl {
namespace {

IndexerKlInputs inputs(testing::Batch& batch) {
  IndexerKlInputs in;
  in.sequences = batch.view();
  return in;
}

DenseNeeds needs() {
  DenseNeeds result;
  result.split = dense_split(false);
  result.entry_bytes = kDenseQueries * sizeof(float);
  result.split_bytes = 16;
  return result;
}

TEST(IndexerKlPlan, DenseChunksCoverEveryTileOnceAndFit) {
  testing::Batch batch = {{9000, 9000, 0}, {1, 1, 0}, {0, 5, 5}, {300, 40000, 39700}};
  const DenseNeeds wanted = needs();
  const DensePlan plan = make_dense_plan(inputs(batch), wanted);
  std::int64_t queries = 0;
  for (const UnionTile& tile : plan.tiles) queries += tile.queries;
  EXPECT_EQ(queries, 9301);
  int tiles = 0;
  for (const DenseRange& range : plan.ranges) {
    EXPECT_EQ(range.first_tile, tiles);
    tiles += range.tiles;
    // A part is never cut, so one alone may take more.
    EXPECT_TRUE(range.parts == 1 || wanted.fits(range.tiles, range.parts, range.entries));
  }
  EXPECT_EQ(tiles, static_cast<int>(plan.tiles.size()));
  EXPECT_GT(plan.ranges.size(), 1u);
}

// Where chunks end must not follow from the longest possible list alone: what a mask's bound allows.
TEST(IndexerKlPlan, ListsKnowTheMaximumThatTheyMayNeed) {
  testing::Batch batch = {{9000, 9000, 0}};
  ConstMask mask;
  mask.max_selected = 100;
  const ListSizes bounded = list_sizes(mask, batch.view(), 1 << 16, true, {});
  EXPECT_EQ(bounded.tiles, (9000 + kListQueries - 1) / kListQueries);
  EXPECT_EQ(bounded.longest, (100 * kListQueries + kSlot - 1) / kSlot);
  mask.max_selected = 0;
  const ListSizes open = list_sizes(mask, batch.view(), 1 << 16, true, {});
  EXPECT_EQ(open.longest, (9000 + kSlot - 1) / kSlot);
  const ListSizes tight = list_sizes(mask, batch.view(), 1 << 16, true, {.slots = 1});
  EXPECT_EQ(tight.slots, tight.longest);
  EXPECT_LE(tight.rounds, tight.tiles);
}

TEST(IndexerKlPlan, HopperTakesItsShapes) {
  TargetFacts facts{
      .device = {9, 0, 132, 232448, 0}, .head_size = 128, .aligned = true, .largest_stride = 4096};
  EXPECT_TRUE(hopper_target_takes(facts));
  facts.head_size = 192;
  EXPECT_FALSE(hopper_target_takes(facts));
  facts.head_size = 64, facts.largest_stride = 1 << 24;
  EXPECT_FALSE(hopper_target_takes(facts));
  facts.largest_stride = 4096, facts.aligned = false;
  EXPECT_FALSE(hopper_target_takes(facts));
}

IndexerKlFacts usual_kl() {
  IndexerKlFacts facts;
  facts.target = {
      .device = {9, 0, 132, 232448, 0}, .head_size = 128, .aligned = true, .largest_stride = 4096};
  facts.index_heads = 4, facts.index_size = 64;
  return facts;
}

TEST(IndexerKlPlan, TargetsThatHopperDoesNotTakeSayWhy) {
  IndexerKlFacts facts = usual_kl();
  EXPECT_TRUE(choose_indexer_kl(facts).wgmma);
  EXPECT_EQ(to_string(choose_indexer_kl(facts)), "p by wgmma");
  facts.target.head_size = 256;
  EXPECT_EQ(to_string(choose_indexer_kl(facts)), "p by mma (heads of more than 128)");
  facts.target.device.major = 8;
  EXPECT_EQ(to_string(choose_indexer_kl(facts)), "p by mma (not Hopper)");
  facts = usual_kl();
  facts.target.aligned = false;
  EXPECT_EQ(to_string(choose_indexer_kl(facts)),
            "p by mma (rows that do not begin at multiples of 16 bytes)");
  facts = usual_kl();
  facts.target.largest_stride = 1 << 24;
  EXPECT_EQ(to_string(choose_indexer_kl(facts)), "p by mma (rows 2^24 elements apart or more)");
}

// 100 KB a block are what the smaller devices have, 227 KB the larger ones.
TEST(IndexerKlPlan, TargetsHaveThreeStagesWhereTheyFit) {
  IndexerKlFacts facts = usual_kl();
  facts.target.device.major = 8;
  const auto stages = [&](std::int64_t size, std::size_t shared) {
    facts.target.head_size = size, facts.target.device.shared_memory = shared;
    return choose_indexer_kl(facts).target_stages;
  };
  EXPECT_EQ(stages(64, 101376), 3);
  EXPECT_EQ(stages(128, 101376), 2);
  EXPECT_EQ(stages(128, 166912), 3);
  EXPECT_EQ(stages(256, 101376), 2);
  EXPECT_EQ(stages(256, 166912), 3);
}

TEST(IndexerKlPlan, GradientsOfSmallHeadsAreFusedInLists) {
  IndexerKlFacts facts = usual_kl();
  facts.backward = facts.listed = true;
  EXPECT_TRUE(choose_indexer_kl(facts).fused);
  EXPECT_EQ(to_string(choose_indexer_kl(facts)),
            "p by wgmma, fused gradients: up to four small indexer heads");
  facts.index_heads = 5;
  EXPECT_FALSE(choose_indexer_kl(facts).fused);
  facts.index_heads = 4, facts.index_size = 65;
  EXPECT_FALSE(choose_indexer_kl(facts).fused);
  facts = usual_kl();
  facts.backward = true;
  EXPECT_FALSE(choose_indexer_kl(facts).fused);
}

TEST(IndexerKlPlan, SplitsGrowWithTheBlocksOfAQuery) {
  IndexerKlFacts facts = usual_kl();
  EXPECT_EQ(choose_indexer_kl(facts).split, dense_split(false));
  facts.backward = true;
  const auto choose = [&](std::int64_t heads, std::int64_t size) {
    facts.index_heads = heads, facts.index_size = size;
    return choose_indexer_kl(facts);
  };
  EXPECT_EQ(choose(4, 64).split, dense_split(true));
  EXPECT_TRUE(choose(4, 64).in_place);
  EXPECT_EQ(choose(16, 64).split, 4 * dense_split(true));
  EXPECT_FALSE(choose(16, 64).in_place);
  EXPECT_EQ(choose(4, 128).split, 2 * dense_split(true));
  EXPECT_FALSE(choose(4, 128).in_place);
  EXPECT_EQ(choose(1, 256).index_size, 256);
  EXPECT_TRUE(choose(1, 256).in_place);
}

}  // namespace
}  // namespace gsa::cuda::kl
