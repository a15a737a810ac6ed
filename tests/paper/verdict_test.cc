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
  EXPECT_EQ(judge(below({5.70}, {6.00})).outcome, Outcome::holds);
  EXPECT_EQ(judge(below({5.70}, {6.00})).text(), "gsa is 5.00 % below standard (perplexity)");
  EXPECT_EQ(judge(below({6.02}, {6.00})).outcome, Outcome::open);
  EXPECT_EQ(judge(below({6.10}, {6.00})).outcome, Outcome::fails);
  EXPECT_EQ(judge(below({6.10}, {6.00})).text(), "gsa is 1.67 % above standard (perplexity)");
}

// Seeds 1 and 2 differ by far more than the systems do, but alike in both.
TEST(PaperVerdict, SeedsArePaired) {
  Claim claim = below({5.2, 6.2}, {5.3, 6.3});
  claim.spread = spread_of({claim.a, claim.b}, Unit::percent);
  EXPECT_EQ(claim.spread.freedom, 1);
  EXPECT_LT(claim.spread.deviation, 0.003);
  EXPECT_EQ(judge(claim).seeds, 2u);
  EXPECT_NEAR(std::stod(judge(claim).relation), 50 * (0.1 / 5.3 + 0.1 / 6.3), 0.005);
  claim.b.seeds.erase(2);  // then seed 2 does not enter
  EXPECT_EQ(judge(claim).seeds, 1u);
  EXPECT_EQ(judge(claim).relation, "1.89 % below standard");
  claim.b.seeds = {{3, 5.3}};
  EXPECT_EQ(judge(claim).outcome, Outcome::not_run);
}

// Two systems and two seeds leave one degree of freedom, 12.7 standard errors: next to nothing can be told. Rows that
// stray as little beside them make it three.
TEST(PaperVerdict, TheSpreadIsOneOfAllRows) {
  const Cell a = {5.65, 5.75}, b = {6.05, 5.95};
  Claim claim = below(a, b);
  claim.spread = spread_of({a, b}, Unit::percent);
  EXPECT_EQ(judge(claim).outcome, Outcome::open);
  claim.spread = spread_of({a, b, {5.80, 5.81}, {6.00, 6.00}}, Unit::percent);
  EXPECT_EQ(claim.spread.freedom, 3);
  EXPECT_EQ(judge(claim).outcome, Outcome::holds);
  claim.spread = spread_of({a, b, {5.6, 6.0}, {6.0, 5.6}}, Unit::percent);
  EXPECT_EQ(judge(claim).outcome, Outcome::open);
}

// By hand: rows {1, 2, 3} and {1, 3, 2} leave residuals 0, -0.5, 0.5 and 0, 0.5, -0.5.
TEST(PaperVerdict, SpreadByHand) {
  const Spread spread = spread_of({{1, 2, 3}, {1, 3, 2}}, Unit::points);
  EXPECT_EQ(spread.freedom, 2);
  EXPECT_NEAR(spread.deviation, std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(spread_of({{std::exp(1), std::exp(2), std::exp(3)}, {std::exp(1), std::exp(3), std::exp(2)}},
                        Unit::percent)
                  .deviation,
              std::sqrt(0.5), 1e-12);
  // Rows of one seed, without figures or not run say nothing, and a seed that some lack does not count.
  const double nan = std::nan("");
  EXPECT_NEAR(spread_of({{1, 2, 3, 9}, {1, 3, 2}, {7}, {}, {nan, 1, 1}}, Unit::points).deviation,
              std::sqrt(0.5), 1e-12);
  EXPECT_EQ(spread_of({{1, 2}, {3}}, Unit::points).freedom, 0);
  EXPECT_EQ(spread_of({}, Unit::points).freedom, 0);
}

TEST(PaperVerdict, StudentsT) {
  EXPECT_DOUBLE_EQ(t_quantile(1), 12.706);
  EXPECT_DOUBLE_EQ(t_quantile(3), 3.182);
  EXPECT_DOUBLE_EQ(t_quantile(30), 2.042);
  EXPECT_DOUBLE_EQ(t_quantile(1000), 2.042);
}

TEST(PaperVerdict, DeviationOfSeeds) {
  EXPECT_TRUE(std::isnan(Cell{}.mean()));
  EXPECT_TRUE(std::isnan(Cell{1}.deviation()));
  EXPECT_NEAR((Cell{1, 3}.deviation()), std::sqrt(2.0), 1e-12);
}

TEST(PaperVerdict, PointsAndTimes) {
  Claim claim = below({62.2}, {31.7}, 5);
  claim.sense = Claim::Sense::above;
  claim.unit = Unit::points;
  EXPECT_EQ(judge(claim).outcome, Outcome::holds);
  EXPECT_EQ(judge(claim).relation, "30.5 above standard");
  claim.floor = 31;
  EXPECT_EQ(judge(claim).outcome, Outcome::open);
  claim = below({0.09}, {1}, 0.05);
  claim.unit = Unit::times;
  EXPECT_EQ(judge(claim).relation, "0.09 times standard");
}

// Of large shares: 0.05 instead of 0.5 is far, though both stray by a fifth of themselves.
TEST(PaperVerdict, SharesStrayByTheirLogarithms) {
  Claim claim = below({0.04, 0.06, 0.05}, {0.6, 0.4, 0.5});
  claim.spread = spread_of({claim.a, claim.b}, Unit::percent);
  EXPECT_GT(t_quantile(claim.spread.freedom) * claim.spread.deviation * std::sqrt(2.0 / 3), 0.9);
  EXPECT_EQ(judge(claim).outcome, Outcome::holds);
}

TEST(PaperVerdict, AnAllowanceMovesTheBar) {
  Claim claim = below({6.03}, {6.00}, 0);
  EXPECT_EQ(judge(claim).outcome, Outcome::fails);
  claim.allowance = 0.01;
  EXPECT_EQ(judge(claim).outcome, Outcome::holds);
  EXPECT_EQ(judge(claim).relation, "0.50 % above standard");
  claim.a = {6.07};
  EXPECT_EQ(judge(claim).outcome, Outcome::fails);
}

TEST(PaperVerdict, ARunThatDivergedHasLost) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(judge(below({3}, {infinity})).outcome, Outcome::holds);
  EXPECT_EQ(judge(below({3}, {infinity})).text(), "standard diverged, gsa did not (perplexity)");
  EXPECT_EQ(judge(below({infinity}, {3})).outcome, Outcome::fails);
  EXPECT_EQ(judge(below({infinity}, {infinity})).outcome, Outcome::open);
  EXPECT_EQ(judge(below({3, 3}, {3, infinity})).outcome, Outcome::holds);
}

TEST(PaperVerdict, AFigureThatIsMissing) {
  EXPECT_EQ(judge(below({}, {3})).outcome, Outcome::not_run);
  EXPECT_EQ(judge(below({std::nan("")}, {3})).outcome, Outcome::open);
}

TEST(PaperVerdict, OneSentenceForATable) {
  const Claim holds = below({5}, {6}), fails = below({7}, {6}), open = below({6}, {6}),
              missing = below({}, {6});
  Claim other = below({5}, {5.5});
  other.right = "gated-only";
  EXPECT_EQ(verdict_of({holds, other}).sentence,
            "Holds (one seed): gsa is 16.7 % below standard, 9.09 % below gated-only (perplexity).");
  other.what = "loss";
  EXPECT_EQ(
      verdict_of({holds, other}).sentence,
      "Holds (one seed): gsa is 16.7 % below standard (perplexity); gsa is 9.09 % below gated-only (loss).");
  EXPECT_EQ(
      verdict_of({holds, fails}).sentence,
      "Does not hold (one seed): gsa is 16.7 % above standard (perplexity); gsa is 16.7 % below standard "
      "(perplexity; holds).");
  EXPECT_EQ(verdict_of({open, holds}).outcome, Outcome::open);
  EXPECT_EQ(verdict_of({open}).sentence,
            "Cannot be told at this scale (one seed): gsa is equal to standard (perplexity).");
  EXPECT_EQ(verdict_of({missing}).sentence, "Not run yet.");
  other.a = {5, 5};
  other.b = {5.5, 5.5};
  EXPECT_EQ(
      verdict_of({holds, other}).sentence,
      "Holds: gsa is 16.7 % below standard (perplexity; one seed); gsa is 9.09 % below gated-only (loss).");
}

// What was not run might fail.
TEST(PaperVerdict, ATableWithPartsMissingIsNotComplete) {
  const Claim holds = below({5}, {6}), fails = below({7}, {6}), open = below({6}, {6}),
              missing = below({}, {6});
  EXPECT_EQ(verdict_of({holds, missing}).outcome, Outcome::incomplete);
  EXPECT_EQ(
      verdict_of({holds, missing}).sentence,
      "Not complete yet (one seed): gsa is 16.7 % below standard (perplexity; holds); gsa against standard "
      "(perplexity; not run yet).");
  EXPECT_EQ(verdict_of({open, missing}).outcome, Outcome::incomplete);
  EXPECT_EQ(verdict_of({holds, missing}, /*tells=*/false).outcome, Outcome::incomplete);
  EXPECT_EQ(verdict_of({holds, missing, fails}).outcome, Outcome::fails);
}

}  // namespace
}  // namespace gsa::paper
