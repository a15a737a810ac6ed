// Which kernel of attend_lse runs on CUDA: from facts alone, so it is tested without a GPU.
#include "kernels/attend_lse/attend_lse_plan.h"

#include <gtest/gtest.h>

namespace gsa::cuda {
namespace {

using Kernel = AttendLseConfig::Kernel;

AttendLseFacts usual() {
  AttendLseFacts facts;
  facts.device = {9, 0, 132, 232448, std::size_t(50) << 20};
  facts.heads = 16;
  facts.head_size = 128;
  facts.aligned = true;
  facts.tiles = 32;
  facts.longest = 131072;
  return facts;
}

TEST(AttendLsePlan, HopperTakesItsShapes) {
  EXPECT_EQ(choose_attend_lse(usual()).kernel, Kernel::hopper);
  const auto other = [](auto change) {
    AttendLseFacts facts = usual();
    change(facts);
    return choose_attend_lse(facts).kernel;
  };
  EXPECT_EQ(other([](auto& f) { f.device.major = 8; }), Kernel::generic);
  EXPECT_EQ(other([](auto& f) { f.head_size = 96; }), Kernel::generic);
  EXPECT_EQ(other([](auto& f) { f.aligned = false; }), Kernel::generic);
}

TEST(AttendLsePlan, SumsOfABoundedNumberOfTilesAreInMemory) {
  AttendLseFacts facts = usual();
  facts.tiles = 100000;
  for (const std::int64_t longest : {1, 2048, 2049, 131072, 1 << 20}) {
    facts.longest = longest;
    const AttendLseConfig config = choose_attend_lse(facts);
    EXPECT_EQ(config.splits, (longest + 2047) / 2048);
    EXPECT_LE(static_cast<std::size_t>(config.at_once) * config.tile_bytes, std::size_t(64) << 20);
    EXPECT_GE(config.at_once, 1);
  }
  EXPECT_EQ(to_string(choose_attend_lse(usual())),
            "hopper, up to 64 splits of the keys, 32 tiles at a time: aligned heads of 64 or 128");
}

}  // namespace
}  // namespace gsa::cuda
