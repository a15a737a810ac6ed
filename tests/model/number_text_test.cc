#include "core/number_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace gsa {
namespace {

TEST(NumberText, GroupsThousands) {
  for (const auto& [value, text] :
       {std::pair<std::int64_t, const char*>{0, "0"},
        {999, "999"},
        {1000, "1,000"},
        {131'072, "131,072"},
        {1'000'000, "1,000,000"},
        {-1, "-1"},
        {-999, "-999"},
        {-1000, "-1,000"},
        {-123'456, "-123,456"},
        {std::numeric_limits<std::int64_t>::min(), "-9,223,372,036,854,775,808"}}) {
    EXPECT_EQ(grouped(value), text);
  }
}

TEST(NumberText, FixedDecimals) {
  EXPECT_EQ(fixed(3.14159, 2), "3.14");
  EXPECT_EQ(fixed(-0.5, 0), "-0");
  EXPECT_EQ(fixed(2, 3), "2.000");
  EXPECT_EQ(fixed(1e100, 1).size(), 103u);  // no number is cut short
}

TEST(NumberText, ThreeDigits) {
  EXPECT_EQ(three_digits(1234.5), "1234");
  EXPECT_EQ(three_digits(-36.54), "-36.5");
  EXPECT_EQ(three_digits(3.654), "3.65");
  EXPECT_EQ(three_digits(0.0365), "0.04");
}

}  // namespace
}  // namespace gsa
