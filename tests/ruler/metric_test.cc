// The metrics of the public definition, on cases worked out by hand.
#include "ruler/metric.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gsa/error.h"

namespace gsa::ruler {
namespace {

TEST(RulerMetric, all_is_the_share_of_the_answers) {
  EXPECT_EQ(score(Metric::all, "1234567", {"1234567"}), 1);
  EXPECT_EQ(score(Metric::all, " they are 12, 34 and 56.", {"12", "34", "56", "78"}), 0.75);
  EXPECT_EQ(score(Metric::all, "", {"12"}), 0);
  EXPECT_EQ(score(Metric::all, "123", {"12", "23"}), 1) << "parts of words count, as in the definition";
  EXPECT_THROW(score(Metric::all, "12", {}), Error);
}

TEST(RulerMetric, part_takes_any_answer) {
  EXPECT_EQ(score(Metric::part, "In the year 1066, I think", {"1066", "ten sixty-six"}), 1);
  EXPECT_EQ(score(Metric::part, "1067", {"1066", "ten sixty-six"}), 0);
}

TEST(RulerMetric, case_and_control_characters_do_not_matter) {
  EXPECT_EQ(score(Metric::all, "NORMANDY", {"Normandy"}), 1);
  EXPECT_EQ(score(Metric::all, "ÉCOLE ŁÓDŹ ΑΘΗΝΑ МОСКВА Ÿ", {"école", "łódź", "αθηνα", "москва", "ÿ"}), 1);
  EXPECT_EQ(lower("Straße × ÷ 日本 İ"), "straße × ÷ 日本 İ");
  EXPECT_EQ(cleaned("\x01 \t a\x02"
                    "b\r\n"),
            "a\nb");
  EXPECT_EQ(cleaned(" \n\x7f"), "\x7f");
}

TEST(RulerMetric, means_have_two_decimals) {
  EXPECT_EQ(percentage({1, 0, 0}), 33.33);
  EXPECT_EQ(percentage({1, 1, 0}), 66.67);
  EXPECT_EQ(percentage({1}), 100);
  std::vector<double> one_of(32, 0.0);
  one_of[5] = 1;
  EXPECT_EQ(percentage(one_of), 3.12) << "3.125 goes to the even one, as in Python";
  one_of[6] = one_of[7] = 1;
  EXPECT_EQ(percentage(one_of), 9.38);
  EXPECT_TRUE(std::isnan(percentage({})));
}

}  // namespace
}  // namespace gsa::ruler
