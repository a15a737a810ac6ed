// How decode on CUDA splits its work: from facts alone, so it is tested without a GPU.
#include "kernels/decode/decode_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace gsa::cuda {
namespace {

DecodeFacts usual() {
  DecodeFacts facts;
  facts.device = {9, 0, 132, 232448, std::size_t(50) << 20};
  facts.max_length = 131072;
  facts.max_selected = 2048;
  facts.head_size = 128;
  facts.aligned = true;
  facts.sequences = 8;
  facts.index_heads = 4;
  facts.index_size = 64;
  facts.index_aligned = true;
  return facts;
}

TEST(DecodePlan, ListsAreSplitByKeysAlone) {
  const DecodeConfig config = choose_decode(usual());
  EXPECT_EQ(config.keys, 2048);
  EXPECT_EQ(config.splits, 16);
  EXPECT_EQ(config.pick_blocks, 8);
  DecodeFacts facts = usual();
  facts.max_length = 100;
  EXPECT_EQ(choose_decode(facts).splits, 1);
  facts.device.major = 8;
  EXPECT_EQ(choose_decode(facts).pick_blocks, 1);
}

// A layer that takes another one's selection has the splits of that one, and nobody selects.
TEST(DecodePlan, FollowersHaveTheSplitsOfTheirLeader) {
  DecodeFacts facts = usual();
  facts.shared = true;
  facts.index_heads = 0;
  const DecodeConfig config = choose_decode(facts);
  EXPECT_EQ(config.keys, 2048);
  EXPECT_EQ(config.splits, choose_decode(usual()).splits);
  EXPECT_EQ(config.pick_blocks, 0);
  EXPECT_EQ(to_string(config),
            "up to 16 splits of 128 keys at given positions (128 at any length), heads as 128 (65 to 128), "
            "3 stages");
}

// Short rows want many splits, long ones few: the maximum is not that of the longest row.
TEST(DecodePlan, DenseRowsOfEveryLengthHaveRoom) {
  for (const std::int64_t longest : {1, 256, 16384, 16385, 65536, 65537, 131072}) {
    DecodeFacts facts = usual();
    facts.dense = true;
    facts.max_length = longest;
    const DecodeConfig config = choose_decode(facts);
    for (std::int64_t keys = 1; keys <= longest; keys += 61) {
      ASSERT_LE(decoding::splits_of(true, static_cast<int>(keys)), config.splits)
          << keys << " of " << longest;
    }
    EXPECT_EQ(config.pick_blocks, 0);
  }
}

TEST(DecodePlan, HeadsArePaddedToWhatIsCompiled) {
  DecodeFacts facts = usual();
  const auto padded = [&](std::int64_t size, bool aligned) {
    facts.head_size = size;
    facts.aligned = aligned;
    return choose_decode(facts).padded_size;
  };
  EXPECT_EQ(padded(33, true), 64);
  EXPECT_EQ(padded(33, false), 128);
  EXPECT_EQ(padded(128, true), 128);
  EXPECT_EQ(padded(129, false), 256);
}

TEST(DecodePlan, ScoresOfFourHeadsHaveKernelsOfTheirOwn) {
  const auto scores = [](auto change) {
    DecodeFacts facts = usual();
    change(facts);
    return choose_decode(facts).scores;
  };
  const auto unchanged = [](DecodeFacts&) {};
  // 128 segments a sequence; three for each of 132 multiprocessors are few.
  EXPECT_EQ(scores(unchanged), DecodeScores::narrow);
  EXPECT_EQ(scores([](auto& f) { f.sequences = 3; }), DecodeScores::wide);
  EXPECT_EQ(scores([](auto& f) { f.sequences = 4, f.max_length = 99 * 1024; }), DecodeScores::wide);
  EXPECT_EQ(scores([](auto& f) { f.sequences = 4, f.max_length = 99 * 1024 + 1; }), DecodeScores::narrow);
  EXPECT_EQ(scores([](auto& f) { f.index_heads = 3; }), DecodeScores::narrow);
  EXPECT_EQ(scores([](auto& f) { f.index_heads = 2; }), DecodeScores::any_heads);
  EXPECT_EQ(scores([](auto& f) { f.index_heads = 5; }), DecodeScores::any_heads);
  EXPECT_EQ(scores([](auto& f) { f.index_size = 72; }), DecodeScores::keys_128);
  EXPECT_EQ(scores([](auto& f) { f.index_size = 136; }), DecodeScores::keys_256);
  EXPECT_EQ(scores([](auto& f) { f.index_aligned = false; }), DecodeScores::unaligned);
  EXPECT_EQ(scores([](auto& f) { f.index_heads = 0; }), DecodeScores::none);
}

// Keys of 8 bits have fewer kernels.
TEST(DecodePlan, ScoresOfBytes) {
  DecodeFacts facts = usual();
  facts.index_bytes = true;
  EXPECT_EQ(choose_decode(facts).scores, DecodeScores::narrow);
  facts.sequences = 1;
  EXPECT_EQ(choose_decode(facts).scores, DecodeScores::wide);
  for (const auto& [heads, size] : {std::pair(8, 64), {4, 128}, {4, 256}, {1, 16}}) {
    facts.index_heads = heads, facts.index_size = size;
    EXPECT_EQ(choose_decode(facts).scores, DecodeScores::keys_256) << heads << " of " << size;
  }
  facts.index_aligned = false;
  EXPECT_EQ(choose_decode(facts).scores, DecodeScores::unaligned);
}

// As many of a sequence's queries as fit beside the ring of keys, four at most.
TEST(DecodePlan, BlocksThatScoreTakeTheQueriesThatFit) {
  DecodeFacts facts = usual();
  const auto choose = [&](std::int64_t queries, std::int64_t heads, std::int64_t size) {
    facts.queries = queries, facts.index_heads = heads, facts.index_size = size;
    return choose_decode(facts);
  };
  for (const std::int64_t queries : {1, 3, 4, 16}) {
    const DecodeConfig config = choose(queries, 4, 64);
    EXPECT_EQ(config.score_queries, std::min<std::int64_t>(queries, 4));
    EXPECT_FALSE(config.far_queries);
    EXPECT_GE(config.score_bytes, static_cast<std::size_t>(config.score_queries) * 1024 * 4);
    EXPECT_LE(config.score_bytes, 96u * 1024);
  }
  // 64 heads of 128 are 16 KB a query.
  EXPECT_EQ(choose(4, 64, 128).score_queries, 1);
  EXPECT_FALSE(choose(4, 64, 128).far_queries);
  // 128 heads of 256 are 64 KB: too many for a small device beside the keys.
  EXPECT_FALSE(choose(1, 128, 256).far_queries);
  facts.device.major = 8, facts.device.shared_memory = 101376;
  EXPECT_TRUE(choose(1, 128, 256).far_queries);
  EXPECT_LE(choose(1, 128, 256).score_bytes, facts.device.shared_memory);
  facts.index_heads = 0;
  EXPECT_EQ(choose_decode(facts).score_queries, 0);
}

TEST(DecodePlan, EveryKernelThatIsChosenExists) {
  for (const bool bytes : {false, true}) {
    for (const std::int64_t heads : {1, 3, 4, 16, 128}) {
      for (const std::int64_t size : {16, 64, 72, 128, 256}) {
        for (const bool aligned : {false, true}) {
          DecodeFacts facts = usual();
          facts.index_bytes = bytes, facts.index_heads = heads, facts.index_size = size;
          facts.index_aligned = aligned;
          const DecodeConfig config = choose_decode(facts);
          const DecodeScoreShape shape = score_shape(config.scores, bytes);
          EXPECT_GT(shape.warps, 0) << heads << " of " << size;
          EXPECT_GE(16 * shape.steps, size);
          EXPECT_TRUE(shape.columns == 0 ||
                      shape.columns == decoding::padded_columns(static_cast<int>(heads)));
          EXPECT_LE(config.score_bytes, facts.device.shared_memory) << heads << " of " << size;
        }
      }
    }
  }
}

// Two blocks a multiprocessor of Hopper, one that fits of smaller devices.
TEST(DecodePlan, BlocksThatAttendHaveTheStagesThatFit) {
  DecodeFacts facts = usual();
  const auto stages = [&](std::int64_t size) {
    facts.head_size = size;
    return choose_decode(facts).stages;
  };
  EXPECT_EQ(stages(64), 3);
  EXPECT_EQ(stages(128), 3);
  EXPECT_EQ(stages(256), 2);
  facts.device.shared_memory = 101376;
  EXPECT_EQ(stages(64), 3);
  EXPECT_EQ(stages(128), 2);
}

TEST(DecodePlan, PrintsItself) {
  DecodeFacts facts = usual();
  EXPECT_EQ(
      to_string(choose_decode(facts)),
      "up to 16 splits of 128 keys from a list (128 at any length), heads as 128 (65 to 128), 3 stages, "
      "8 blocks select (a cluster on Hopper), scores in small blocks: four heads of up to 64, many "
      "segments");
  facts.dense = true;
  facts.index_heads = 0;
  facts.max_length = 1000;
  EXPECT_EQ(to_string(choose_decode(facts)),
            "up to 4 splits of 256 keys (rows of up to 16384), heads as 128 (65 to 128), 3 stages");
}

}  // namespace
}  // namespace gsa::cuda
