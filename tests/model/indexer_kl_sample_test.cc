// The sample of query tiles that the indexer's loss is taken of.
#include "model/indexer_kl_sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "model/errors.h"

namespace gsa::nn {
namespace {

using gsa::testing::expect_error;

TEST(KlSample, SharesAreWholeParts) {
  EXPECT_EQ(parts_of_share(1), 1);
  EXPECT_EQ(parts_of_share(0.5), 2);
  EXPECT_EQ(parts_of_share(0.0625), 16);
  EXPECT_EQ(parts_of_share(0.333333), 3);
  EXPECT_EQ(parts_of_share(1.0 / 1000), 1000);
  for (const double share : {0.0, -0.5, 0.3, 0.7, 0.0626, 2.0, 1e-9, std::nan(""), HUGE_VAL}) {
    EXPECT_FALSE(parts_of_share(share)) << share;
  }
}

TEST(KlSample, OneTileOfEveryStratum) {
  const std::vector<std::int64_t> starts = {0, 64 * 37};
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<std::int64_t> tiles = sample_query_tiles(starts, 5, seed);
    ASSERT_TRUE(tiles.size() == 7 || tiles.size() == 8) << seed;  // the last stratum has two of five
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      EXPECT_EQ(tiles[i] / 5, static_cast<std::int64_t>(i)) << seed;
      EXPECT_LT(tiles[i], 37) << seed;
    }
  }
}

TEST(KlSample, TilesOfAllSequencesAreNumberedInOrder) {
  // 2, 0, 1, 1 and 3 tiles.
  const std::vector<std::int64_t> starts = {0, 65, 65, 66, 130, 259};
  EXPECT_EQ(sample_query_tiles(starts, 1, 9), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6}));
  const std::vector<std::int64_t> none = {0}, empty = {0, 0, 0};
  EXPECT_TRUE(sample_query_tiles(none, 1, 9).empty());
  EXPECT_TRUE(sample_query_tiles(empty, 4, 9).empty());
}

// Every tile is drawn with the same probability, those of an incomplete stratum too. 10,000 draws: a
// deviation of five standard errors has a chance below one in a million.
TEST(KlSample, IsUniform) {
  const std::vector<std::int64_t> starts = {0, 100, 64 * 10};
  constexpr int kDraws = 10000, kParts = 4;
  std::vector<int> counts(11, 0);
  for (int seed = 0; seed < kDraws; ++seed) {
    for (const std::int64_t tile : sample_query_tiles(starts, kParts, static_cast<std::uint64_t>(seed))) {
      ++counts.at(static_cast<std::size_t>(tile));
    }
  }
  const double p = 1.0 / kParts, error = std::sqrt(kDraws * p * (1 - p));
  for (const int count : counts) EXPECT_NEAR(count, kDraws * p, 5 * error);
}

TEST(KlSample, IsAFunctionOfItsSeed) {
  const std::vector<std::int64_t> starts = {0, 64 * 160};
  EXPECT_EQ(sample_query_tiles(starts, 16, 1), sample_query_tiles(starts, 16, 1));
  EXPECT_NE(sample_query_tiles(starts, 16, 1), sample_query_tiles(starts, 16, 2));
}

TEST(KlSupport, HasNames) {
  EXPECT_EQ(kl_support_by_name("all"), KlSupport::all);
  EXPECT_EQ(kl_support_by_name("selected"), KlSupport::selected);
  expect_error([] { kl_support_by_name("al"); }, {"kl_support", "selected or all", "al"});
}

}  // namespace
}  // namespace gsa::nn
