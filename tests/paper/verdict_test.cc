// Verdicts from made-up figures.
#include "paper/verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gsa::paper {
namespace {

Claim below(Cell a, Cell b, double floor = 0.005) {
  return {.what = "perplexity",
          .left = "gsa",
          .right = "standard",
          .a = std::move(a),
          .b = std::move(b),
          .floor = floor};
}

TEST(PaperVerdict, OneSeedIsJudgedByTheFloorAlone) {
  EXPECT_EQ(judge(below({{5.70}}, {{6.00}})).outcome, Outcome::holds);
  EXPECT_EQ(judge(below({{5.70}}, {{6.00}})).text, "perplexity: gsa 5.00 % below standard");
  EXPECT_EQ(judge(below({{6.02}}, {{6.00}})).outcome, Outcome::open);
  EXPECT_EQ(judge(below({{6.10}}, {{6.00}})).outcome, Outcome::fails);
  EXPECT_EQ(judge(below({{6.10}}, {{6.00}})).text, "perplexity: gsa 1.67 % above standard");
}

TEST(PaperVerdict, SeedsThatDifferMuchLeaveItOpen) {
  EXPECT_EQ(judge(below({{5.69, 5.71}}, {{5.99, 6.01}})).outcome, Outcome::holds);
  EXPECT_EQ(judge(below({{5.2, 6.2}}, {{5.5, 6.5}})).outcome, Outcome::open);
}

TEST(PaperVerdict, DeviationOfSeeds) {
  EXPECT_TRUE(std::isnan(Cell{}.mean()));
  EXPECT_TRUE(std::isnan(Cell{{1}}.deviation()));
  EXPECT_NEAR((Cell{{1, 3}}.deviation()), std::sqrt(2.0), 1e-12);
}

TEST(PaperVerdict, PointsAndTimes) {
  Claim claim = below({{62.2}}, {{31.7}}, 5);
  claim.sense = Claim::Sense::above;
  claim.unit = Claim::Unit::points;
  EXPECT_EQ(judge(claim).outcome, Outcome::holds);
  EXPECT_EQ(judge(claim).text, "perplexity: gsa 30.5 above standard");
  claim.floor = 31;
  EXPECT_EQ(judge(claim).outcome, Outcome::open);
  claim = below({{0.09}}, {{1}}, 0.05);
  claim.unit = Claim::Unit::times;
  EXPECT_EQ(judge(claim).text, "perplexity: gsa 0.0900 times standard");
}

TEST(PaperVerdict, ARunThatDivergedHasLost) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(judge(below({{3}}, {{infinity}})).outcome, Outcome::holds);
  EXPECT_EQ(judge(below({{3}}, {{infinity}})).text, "perplexity: standard diverged, gsa did not");
  EXPECT_EQ(judge(below({{infinity}}, {{3}})).outcome, Outcome::fails);
  EXPECT_EQ(judge(below({{infinity}}, {{infinity}})).outcome, Outcome::open);
}

TEST(PaperVerdict, AFigureThatIsMissing) {
  EXPECT_EQ(judge(below({}, {{3}})).outcome, Outcome::not_run);
  EXPECT_EQ(judge(below({{std::nan("")}}, {{3}})).outcome, Outcome::open);
}

TEST(PaperVerdict, OneSentenceForATable) {
  const Claim holds = below({{5}}, {{6}}), fails = below({{7}}, {{6}}), open = below({{6}}, {{6}}),
              missing = below({}, {{6}});
  EXPECT_EQ(
      verdict_of({holds, holds}).sentence,
      "Holds (one seed): perplexity: gsa 16.7 % below standard; perplexity: gsa 16.7 % below standard.");
  EXPECT_EQ(verdict_of({holds, fails}).sentence,
            "Does not hold (one seed): perplexity: gsa 16.7 % above standard; perplexity: gsa 16.7 % below "
            "standard (holds).");
  EXPECT_EQ(verdict_of({open, holds}).outcome, Outcome::open);
  EXPECT_EQ(verdict_of({open}).sentence,
            "Cannot be told at this scale (one seed): perplexity: gsa equal to standard.");
  EXPECT_EQ(verdict_of({holds, missing}).outcome, Outcome::holds);
  EXPECT_EQ(verdict_of({missing}).sentence, "Not run yet.");
}

}  // namespace
}  // namespace gsa::paper
