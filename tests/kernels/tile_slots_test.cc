// Slots of tiles of queries: every sequence owns enough of them, and each slot is found from its number.
#include "kernels/common/tile_slots.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/attention/query_tiles.h"

namespace gsa::cuda {
namespace {

template <int spare>
void expect_room(const std::vector<int>& q_begin, const std::vector<int>& first_position, int tile_queries) {
  const int count = static_cast<int>(first_position.size());
  const auto begin = [&](int n) { return q_begin[static_cast<std::size_t>(n)]; };
  const auto slot = [&](int n) { return first_slot<spare>(begin(n), n, tile_queries); };
  for (int n = 0; n < count; ++n) {
    const int queries = begin(n + 1) - begin(n), owned = slot(n + 1) - slot(n);
    const int position = spare == 1 ? 0 : first_position[static_cast<std::size_t>(n)];
    ASSERT_GE(owned, tile_count(position, queries, tile_queries)) << "sequence " << n;
    for (int at = slot(n); at < slot(n + 1); ++at) {
      ASSERT_EQ(sequence_of_slot<spare>(at, count, tile_queries, begin), n) << "slot " << at;
    }
  }
}

TEST(TileSlots, EverySequenceOwnsEnough) {
  std::mt19937 random(14);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> q_begin = {0}, first_position;
    for (int left = 1 + static_cast<int>(random() % 9); left > 0; --left) {
      const int queries = random() % 4 == 0 ? 0 : static_cast<int>(random() % 300);
      q_begin.push_back(q_begin.back() + queries);
      first_position.push_back(static_cast<int>(random() % 500));
    }
    for (const int tile_queries : {1, 8, 64, 128}) {
      SCOPED_TRACE(testing::Message() << "round " << round << ", tiles of " << tile_queries);
      expect_room<1>(q_begin, first_position, tile_queries);
      expect_room<2>(q_begin, first_position, tile_queries);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace gsa::cuda
