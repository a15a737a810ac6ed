// How decode on CUDA splits its work: from facts alone, so it is tested without a GPU.
#include "kernels/decode/decode_plan.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(to_string(config), "up to 16 splits of 128 keys at given positions, heads as 128");
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

TEST(DecodePlan, PrintsItself) {
  DecodeFacts facts = usual();
  EXPECT_EQ(to_string(choose_decode(facts)),
            "up to 16 splits of 128 keys from a list, heads as 128, 8 blocks select, scores in small blocks: "
            "four heads "
            "of up to 64, many segments");
  facts.dense = true;
  facts.index_heads = 0;
  facts.max_length = 1000;
  EXPECT_EQ(to_string(choose_decode(facts)), "up to 4 splits of 256 keys, heads as 128");
}

}  // namespace
}  // namespace gsa::cuda
