// The choice of attend's backward kernel on CUDA and of the order of its tiles: from facts alone, so it is
// tested without a GPU.
#include "kernels/attend/attend_backward_plan.h"

#include <gtest/gtest.h>

namespace gsa::cuda {
namespace {

using Kernel = AttendBackwardConfig::Kernel;

constexpr Device kH200 = {9, 0, 132, 232448, std::size_t(50) << 20};
constexpr Device kA100 = {8, 0, 108, 166912, std::size_t(40) << 20};

// One sequence, 16/4 heads of 128, a mask.
AttendBackwardFacts usual(std::int64_t keys, Accumulation accumulation) {
  AttendBackwardFacts facts;
  facts.device = kH200;
  facts.head_size = 128;
  facts.kv_heads = 4;
  facts.group = 4;
  facts.masked = true;
  facts.aligned = true;
  facts.accumulation = accumulation;
  facts.sequences = 1;
  facts.total_keys = facts.longest_keys = keys;
  return facts;
}

TEST(AttendBackwardPlan, HopperTakesItsShapes) {
  const AttendBackwardFacts facts = usual(8192, Accumulation::ordered);
  EXPECT_EQ(choose_attend_backward(facts).kernel, Kernel::hopper);
  EXPECT_EQ(choose_attend_backward(facts).tile_queries, 32);
  const auto other = [&](auto change) {
    AttendBackwardFacts changed = facts;
    change(changed);
    return choose_attend_backward(changed).kernel;
  };
  EXPECT_EQ(other([](auto& f) { f.device = kA100; }), Kernel::generic);
  EXPECT_EQ(other([](auto& f) { f.head_size = 96; }), Kernel::generic);
  EXPECT_EQ(other([](auto& f) { f.group = 3; }), Kernel::generic);
  EXPECT_EQ(other([](auto& f) { f.group = 32; }), Kernel::generic);
  EXPECT_EQ(other([](auto& f) { f.aligned = false; }), Kernel::generic);
  EXPECT_EQ(other([](auto& f) { f.head_size = 64, f.group = 16; }), Kernel::hopper);
}

TEST(AttendBackwardPlan, QueuesOfALongSequenceAdvanceInGroups) {
  for (const std::int64_t keys : {8192, 16384, 131072}) {
    const AttendBackwardConfig config = choose_attend_backward(usual(keys, Accumulation::ordered));
    EXPECT_EQ(config.schedule.heads, 4);
    EXPECT_EQ(config.schedule.group_tiles, keys == 8192 ? 1 : keys == 16384 ? 16 : 32);
  }
}

// 1 KB of sums for a key and head: two heads of 16K keys fit, of 32K one.
TEST(AttendBackwardPlan, WithAtomicsLongSequencesGoHeadByHead) {
  struct Expected {
    std::int64_t keys;
    int heads, group_tiles;
  };
  for (const auto& [keys, heads, group_tiles] :
       {Expected{8192, 4, 1}, {16384, 4, 16}, {32768, 1, 1}, {131072, 1, 1}, {1 << 20, 1, 1}}) {
    const AttendBackwardConfig config = choose_attend_backward(usual(keys, Accumulation::atomic));
    EXPECT_EQ(config.schedule.heads, heads) << keys;
    EXPECT_EQ(config.schedule.group_tiles, group_tiles) << keys;
  }
  AttendBackwardFacts dense = usual(131072, Accumulation::atomic);
  dense.masked = false;
  EXPECT_EQ(choose_attend_backward(dense).schedule.heads, 4);
}

TEST(AttendBackwardPlan, SequencesRunSideBySide) {
  AttendBackwardFacts facts = usual(4096, Accumulation::ordered);
  facts.sequences = 16;
  facts.total_keys = 16 * 4096;
  EXPECT_EQ(choose_attend_backward(facts).schedule.sequences, 5);  // 80 MB of 16 each
  facts.accumulation = Accumulation::atomic;
  EXPECT_EQ(choose_attend_backward(facts).schedule.sequences, 2);
  facts.sequences = 0, facts.total_keys = facts.longest_keys = 0;
  EXPECT_EQ(choose_attend_backward(facts).schedule.sequences, 1);
}

// Eight warps have 128 rows of a tile, four 64.
TEST(AttendBackwardPlan, TheGenericKernelTakesEightWarpsWithoutAMask) {
  AttendBackwardFacts facts = usual(4096, Accumulation::ordered);
  facts.device = kA100;
  facts.generic_shared = kA100.shared_memory;
  EXPECT_EQ(choose_attend_backward(facts).warps, 4);
  facts.masked = false;
  EXPECT_EQ(choose_attend_backward(facts).warps, 8);
  EXPECT_EQ(to_string(choose_attend_backward(facts)),
            "generic, 8 warps, 4 heads of 1 sequence at a time: not compute capability 9.0");
  facts.generic_shared += 1;
  EXPECT_EQ(choose_attend_backward(facts).warps, 4);
}

TEST(AttendBackwardPlan, PrintsItself) {
  EXPECT_EQ(to_string(choose_attend_backward(usual(131072, Accumulation::atomic))),
            "hopper, tiles of 32 queries, 1 head of 1 sequence at a time: its sums fill the L2 cache");
  EXPECT_EQ(to_string(choose_attend_backward(usual(131072, Accumulation::ordered))),
            "hopper, tiles of 32 queries, 4 heads of 1 sequence at a time, in groups of 32 tiles: "
            "tiles find in the L2 cache what their neighbours added");
}

}  // namespace
}  // namespace gsa::cuda
