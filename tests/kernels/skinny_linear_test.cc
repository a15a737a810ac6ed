// skinny_linear without a GPU: which products it takes, which arguments it refuses.
#include "kernels/skinny_linear/skinny_linear.h"

#include <gtest/gtest.h>

#include <utility>

#include "kernels/skinny_linear/skinny_linear_checks.h"
#include "kernels/skinny_linear/skinny_linear_plan.h"
#include "testing.h"

namespace gsa::testing {
namespace {

constexpr std::int64_t kHopper = 227 * 1024;

TEST(SkinnyLinear, TakesRowsThatFit) {
  for (const bool norm : {false, true}) {
    EXPECT_TRUE(skinny_linear_takes(0, 2048, norm, kHopper));
    EXPECT_TRUE(skinny_linear_takes(1, 16, norm, kHopper));
    EXPECT_TRUE(skinny_linear_takes(8, 4096, norm, kHopper));
    EXPECT_TRUE(skinny_linear_takes(16, 4096, norm, kHopper));
    EXPECT_FALSE(skinny_linear_takes(17, 2048, norm, kHopper));
    EXPECT_FALSE(skinny_linear_takes(-1, 2048, norm, kHopper));
    EXPECT_FALSE(skinny_linear_takes(8, 2040, norm, kHopper));
    EXPECT_FALSE(skinny_linear_takes(8, 0, norm, kHopper));
    EXPECT_FALSE(skinny_linear_takes(8, 2048, norm, 163 * 1024));
  }
  EXPECT_TRUE(skinny_linear_takes(16, 1 << 20, false, kHopper));
  EXPECT_FALSE(skinny_linear_takes(8, 5120, true, kHopper));
  EXPECT_FALSE(skinny_linear_takes(16, 8192, true, kHopper));
}

// Eight rows that ldmatrix reads at once begin in different banks, and all parts begin at multiples of 16.
TEST(SkinnyLinear, RowsBeginInDifferentBanks) {
  using cuda::skinny::Layout;
  for (const std::int64_t size : {16, 48, 2048, 5504}) {
    for (const std::int64_t rows : {1, 8, 16}) {
      for (const bool norm : {false, true}) {
        const Layout layout(rows, size, norm);
        EXPECT_EQ(layout.x_stride / 16 % 2, 1) << size;
        for (const int part :
             {layout.sums, layout.norm, layout.x, layout.x_stride, layout.ring, layout.stage}) {
          EXPECT_EQ(part % 16, 0) << size;
        }
      }
    }
  }
}

TEST(SkinnyLinear, PlansColumnsAndBlocks) {
  cuda::SkinnyLinearFacts facts;
  facts.device = {9, 0, 132, 232448, std::size_t(50) << 20};
  facts.size = 2048;
  facts.outputs = 2560;
  for (const auto& [rows, columns] : {std::pair(1, 8), {8, 8}, {9, 16}, {16, 16}}) {
    facts.rows = rows;
    const cuda::SkinnyLinearConfig config = choose_skinny_linear(facts);
    EXPECT_EQ(config.columns, columns) << rows;
    EXPECT_EQ(config.blocks, 132) << rows;
    EXPECT_EQ(config.layout.bytes, cuda::skinny::Layout(rows, 2048, false).bytes) << rows;
  }
  for (const auto& [outputs, blocks] : {std::pair(1, 1), {15, 1}, {16, 2}, {1055, 131}, {1056, 132}}) {
    facts.outputs = outputs;
    EXPECT_EQ(choose_skinny_linear(facts).blocks, blocks) << outputs;
  }
  facts.rows = 8;
  facts.normed = true;
  EXPECT_EQ(to_string(choose_skinny_linear(facts)), "8 columns, 132 blocks, 174 KB: up to 8 rows");
}

SkinnyLinearArgs valid() {
  alignas(16) static char memory[16];
  SkinnyLinearArgs args;
  args.rows = 2;
  args.size = 32;
  args.outputs = 4;
  args.x = args.weight = args.y = memory;
  return args;
}

void expect_refused(const SkinnyLinearArgs& args, const std::string& argument, const std::string& expected) {
  try {
    check_skinny_linear(args, kHopper);
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("gsa::skinny_linear: argument '" + argument + "'"), std::string::npos) << text;
    EXPECT_NE(text.find(expected), std::string::npos) << text;
  }
}

TEST(SkinnyLinear, NamesWhatIsWrong) {
  EXPECT_TRUE(check_skinny_linear(valid(), kHopper));
  SkinnyLinearArgs args = valid();
  args.rows = 0;
  args.x = args.y = nullptr;
  EXPECT_FALSE(check_skinny_linear(args, kHopper));
  args = valid();
  args.rows = 17;
  expect_refused(args, "x", "0 to 16 rows, got 17");
  args = valid();
  args.size = 40;
  expect_refused(args, "x", "a multiple of 16 columns");
  args = valid();
  args.dtype = DType::f32;
  expect_refused(args, "x", "bfloat16 or float16");
  args = valid();
  args.eps = -1;
  expect_refused(args, "eps", "at least 0");
  args = valid();
  args.swiglu = true;
  args.bias = args.x;
  expect_refused(args, "swiglu", "a bias");
  args = valid();
  args.swiglu = true;
  args.residual = args.x;
  expect_refused(args, "swiglu", "a residual");
  args = valid();
  args.rows = 16;
  args.size = 16384;
  args.norm = args.x;
  expect_refused(args, "x", "shared memory");
  args = valid();
  args.weight = nullptr;
  expect_refused(args, "weight", "null");
  args = valid();
  args.x = static_cast<const char*>(args.x) + 2;
  expect_refused(args, "x", "multiple of 16");
  args = valid();
  args.weight = static_cast<const char*>(args.weight) + 2;
  expect_refused(args, "weight", "multiple of 16");
}

}  // namespace
}  // namespace gsa::testing
