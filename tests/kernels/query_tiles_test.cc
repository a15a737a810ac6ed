// Samples of queries in tiles: where tiles are cut, how they are numbered, which lists are refused.
#include "kernels/attention/query_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "problems.h"

namespace gsa::testing {
namespace {

using Place = std::array<std::int64_t, 4>;

std::vector<Place> places(Batch batch, const std::vector<std::int32_t>* numbers = nullptr) {
  const QueryTiles tiles = numbers == nullptr
                               ? QueryTiles{}
                               : QueryTiles{numbers->data(), static_cast<std::int64_t>(numbers->size())};
  std::vector<Place> result;
  for (const SampledTile& tile : sampled_tiles(batch.view(), tiles)) {
    result.push_back({tile.sequence, tile.first_query, tile.queries, tile.first_position});
  }
  return result;
}

TEST(SequencesTest, KnowTheirLongestKeys) {
  const std::int64_t queries[] = {0, 1, 3, 3}, keys[] = {0, 7, 19, 22};
  EXPECT_EQ((Sequences{3, queries, keys}).longest_keys(), 12);
  EXPECT_EQ(Sequences{}.longest_keys(), 0);
}

TEST(QueryTilesTest, AreCutAtMultiplesOfTheirSize) {
  EXPECT_EQ(places(whole(1)), (std::vector<Place>{{0, 0, 1, 0}}));
  EXPECT_EQ(places(whole(64)), (std::vector<Place>{{0, 0, 64, 0}}));
  EXPECT_EQ(places(whole(65)), (std::vector<Place>{{0, 0, 64, 0}, {0, 64, 1, 64}}));
  // Queries 100 .. 199 of a longer sequence: a rest, a whole tile, a rest.
  EXPECT_EQ(places({{100, 300, 100}}),
            (std::vector<Place>{{0, 0, 28, 100}, {0, 28, 64, 128}, {0, 92, 8, 192}}));
  EXPECT_EQ(places({{3, 300, 130}}), (std::vector<Place>{{0, 0, 3, 130}}));
}

TEST(QueryTilesTest, AreNumberedThroughAllSequences) {
  const Batch batch = {{70, 70, 0}, {0, 5, 5}, {1, 1, 0}, {10, 70, 60}};
  const std::vector<Place> all = places(batch);
  EXPECT_EQ(all, (std::vector<Place>{
                     {0, 0, 64, 0}, {0, 64, 6, 64}, {2, 70, 1, 0}, {3, 71, 4, 60}, {3, 75, 6, 64}}));
  for (int chosen = 0; chosen < 1 << 5; ++chosen) {
    std::vector<std::int32_t> numbers = {-1};  // so that an empty list has a pointer
    std::vector<Place> expected;
    for (int i = 0; i < 5; ++i) {
      if ((chosen >> i & 1) == 0) continue;
      numbers.push_back(i);
      expected.push_back(all[static_cast<std::size_t>(i)]);
    }
    std::rotate(numbers.begin(), numbers.begin() + 1, numbers.end());
    numbers.pop_back();
    EXPECT_EQ(places(batch, &numbers), expected) << chosen;
  }
}

TEST(QueryTilesTest, MistakesAreNamed) {
  Batch batch = {{70, 70, 0}, {10, 70, 60}};
  const auto refused = [&](const char* argument, const std::vector<std::int32_t>& numbers) {
    return refuses("op", argument, [&] {
      check::query_tiles("op", {numbers.data(), static_cast<std::int64_t>(numbers.size())}, batch.view());
    });
  };
  EXPECT_TRUE(refused("tiles.number", {4}));
  EXPECT_TRUE(refused("tiles.number", {-1, 2}));
  EXPECT_TRUE(refused("tiles.number", {1, 1}));
  EXPECT_TRUE(refused("tiles.number", {2, 1}));
  EXPECT_TRUE(refused("tiles.count", {0, 1, 2, 3, 4}));
  EXPECT_TRUE(refuses("op", "tiles.count", [&] { check::query_tiles("op", {nullptr, 1}, batch.view()); }));
  const std::vector<std::int32_t> every = {0, 1, 2, 3};
  EXPECT_NO_THROW(check::query_tiles("op", {every.data(), 4}, batch.view()));
  EXPECT_NO_THROW(check::query_tiles("op", {every.data(), 0}, batch.view()));
}

}  // namespace
}  // namespace gsa::testing
