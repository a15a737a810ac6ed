// The choice of attend's CUDA kernel: from facts alone, so it is tested without a GPU.
#include "kernels/attend/attend_plan.h"

#include <gtest/gtest.h>

#include "gsa/error.h"

namespace gsa::cuda {
namespace {

using Kernel = AttendConfig::Kernel;

constexpr Device kH200 = {9, 0, 132, 232448};
constexpr Device kA100 = {8, 0, 108, 166912};

// 32/8 heads of 128 at 128K tokens, k = 2048.
AttendFacts usual() {
  AttendFacts facts;
  facts.device = kH200;
  facts.dtype = DType::bf16;
  facts.head_size = 128;
  facts.group = 4;
  facts.masked = true;
  facts.max_selected = 2048;
  facts.longest_keys = 131072;
  facts.aligned = true;
  return facts;
}

TEST(AttendPlan, HopperTakesItsShapes) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const int head_size : {64, 128}) {
      for (const int group : {1, 2, 4, 8, 16}) {
        for (const bool masked : {false, true}) {
          for (const std::int64_t selected : {0, 2048, 131072}) {
            AttendFacts facts = usual();
            facts.dtype = dtype;
            facts.head_size = head_size;
            facts.group = group;
            facts.masked = masked;
            facts.max_selected = selected;
            const AttendConfig config = choose_attend(facts);
            ASSERT_EQ(config.kernel, Kernel::hopper);
            EXPECT_EQ(config.tile_queries * group, config.rows);
            EXPECT_EQ(config.threads, config.rows * 2 + 128);
            EXPECT_EQ(config.shared_memory, attend_shared_memory(head_size, config.rows));
            EXPECT_LE(config.shared_memory, kH200.shared_memory);
            // Two blocks of threads share a multiprocessor (228 KB, 1 KB of each is the system's).
            if (config.rows == 64) {
              EXPECT_LE(2 * (config.shared_memory + 1024), 233472u);
            }
            if (masked) {
              EXPECT_LE(config.tile_queries, 64);
            }
          }
        }
      }
    }
  }
}

TEST(AttendPlan, RowsFollowTheMask) {
  AttendFacts facts = usual();
  EXPECT_EQ(choose_attend(facts).rows, 64);
  facts.longest_keys = 4096;
  EXPECT_EQ(choose_attend(facts).rows, 128) << "a query selects half of the keys: the union hardly grows";
  facts.group = 1;
  EXPECT_EQ(choose_attend(facts).rows, 64) << "a tile with a mask has at most 64 queries";
  facts.masked = false;
  EXPECT_EQ(choose_attend(facts).rows, 128);
  facts.masked = true;
  facts.max_selected = 0;
  EXPECT_EQ(choose_attend(facts).rows, 64) << "nothing known of the selection";
}

TEST(AttendPlan, TheRestIsGeneric) {
  const auto generic = [](void (*change)(AttendFacts&)) {
    AttendFacts facts = usual();
    change(facts);
    return choose_attend(facts).kernel == Kernel::generic;
  };
  EXPECT_FALSE(generic([](AttendFacts&) {}));
  EXPECT_TRUE(generic([](AttendFacts& f) { f.device = kA100; }));
  EXPECT_TRUE(generic([](AttendFacts& f) { f.device.major = 10; }));
  EXPECT_TRUE(generic([](AttendFacts& f) { f.head_size = 96; }));
  EXPECT_TRUE(generic([](AttendFacts& f) { f.head_size = 256; }));
  EXPECT_TRUE(generic([](AttendFacts& f) { f.group = 3; }));
  EXPECT_TRUE(generic([](AttendFacts& f) { f.group = 128; }));
  EXPECT_TRUE(generic([](AttendFacts& f) { f.aligned = false; }));
  EXPECT_TRUE(generic([](AttendFacts& f) { f.device.shared_memory = 65536; }));
}

TEST(AttendPlan, RefusesWithReason) {
  AttendFacts facts = usual();
  facts.dtype = DType::f32;
  try {
    choose_attend(facts);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "gsa::attend: argument 'dtype': expected bfloat16 or float16 on CUDA, got float32");
  }
  facts = usual();
  facts.device.major = 7;
  facts.device.minor = 5;
  try {
    choose_attend(facts);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "gsa::attend: argument 'device': expected compute capability 8.0 or later, got 7.5");
  }
}

TEST(AttendPlan, Prints) {
  EXPECT_EQ(to_string(choose_attend(usual())),
            "hopper, 64 rows (16 queries), blocks of 64 keys, 4 + 3 stages, 113 KB, 256 threads: "
            "a mask, few of the keys");
  AttendFacts facts = usual();
  facts.device = kA100;
  EXPECT_EQ(to_string(choose_attend(facts)), "generic: not compute capability 9.0");
}

}  // namespace
}  // namespace gsa::cuda
