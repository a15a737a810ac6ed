// select: scores against the reference, selection against a full sort of the kernel's own scores, budgets
// against the formula.
#include "kernels/select/select.h"

#include <gtest/gtest.h>

#include <tuple>

#include "problems.h"

namespace gsa::testing {
namespace {

struct Case {
  const char* name;
  Batch batch;
  std::int64_t heads;
  std::int64_t size;
  ScoreForm form = ScoreForm::sigmoid;
  Layout layout = Layout::tokens_first;
  double sharpness = 1;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

IndexerProblem problem_of(DType dtype, const Case& c) {
  return IndexerProblem(dtype, c.batch, c.heads, c.size, c.form, c.layout, 1234, c.sharpness);
}

// Everything select() promises, given the scores it works on.
void expect_selected(IndexerProblem& problem, const Budget& budget) {
  const SelectResult result = run_select(problem, budget, serial());
  const Tensor scores = run_index_scores(problem, serial());
  const double unit = rounding_unit(real_of(problem.dtype));
  for (std::size_t n = 0; n < problem.batch.spans.size(); ++n) {
    const reference::Span& span = problem.batch.spans[n];
    for (std::int64_t i = 0; i < span.queries; ++i) {
      const std::int64_t query = problem.batch.q_begin(n) + i, visible = span.visible(i);
      SCOPED_TRACE(concat("sequence ", n, " query ", i, " of ", visible, " visible"));
      std::vector<double> row = scores.values<double>(query, query + 1);
      for (std::size_t s = visible; s < row.size(); ++s) ASSERT_EQ(row[s], -kInf) << "score " << s;
      row.resize(visible);

      double highest = 0;
      for (const double score : row) highest = std::max(highest, std::abs(score));
      const std::vector<long double> precise(row.begin(), row.end());
      const double exact = static_cast<double>(reference::variance(precise.data(), visible));
      const double got = result.variance.at(query);
      // What moving each score by two roundings does to the variance, and the roundings of a long sum: a lane
      // may add up to 512 squares, and where many are equal they err alike.
      const double shift = 2 * unit * highest;
      double distance = 0;  // mean square, from the first score
      for (const double score : row) distance += (score - row[0]) * (score - row[0]) / visible;
      const double around_first = backend::traits().moments_around_first ? 8 * unit * distance : 0;
      ASSERT_NEAR(got, exact,
                  2 * shift * std::sqrt(exact) + shift * shift + 128 * unit * exact + around_first);

      // The kernel may have decided on the variance before it was rounded to what it returned.
      const std::int64_t k = result.k_t[query];
      const std::int64_t k1 = reference::budget_k(got * (1 - unit), visible, budget);
      const std::int64_t k2 = reference::budget_k(got * (1 + unit), visible, budget);
      ASSERT_GE(k, std::min(k1, k2));
      ASSERT_LE(k, std::max(k1, k2));

      const reference::Choice<double> choice = reference::choose(row.data(), visible, k);
      const double threshold = result.threshold.at(query);
      const std::int64_t tie_cut = result.tie_cut[query];
      std::int64_t wrong = -1;  // the first position with a wrong bit
      for (std::int64_t s = 32 * result.mask.words_per_query - 1; s >= 0; --s) {
        const bool chosen = s < visible && choice.chosen[s];
        const bool by_threshold =
            s < visible && (row[s] > threshold || (row[s] == threshold && s <= tie_cut));
        if (result.mask.get(query, s) != chosen || by_threshold != chosen) wrong = s;
      }
      ASSERT_EQ(wrong, -1) << "threshold " << threshold << ", tie cut " << tie_cut << ", k_t " << k;
      if (k == visible) {
        ASSERT_EQ(threshold, -kInf);
        ASSERT_EQ(tie_cut, visible - 1);
      } else {
        ASSERT_EQ(threshold, choice.threshold);
      }
    }
  }
  EXPECT_EQ(run_select_mask(problem, result, serial()).words, result.mask.words);
}

Budget fixed(std::int64_t k) { return {BudgetMode::fixed, k, 1, 1 << 20, -1}; }

// Near the mean of what the problems here show, so that k_t spreads between the bounds.
Budget adaptive(BudgetMode mode, ScoreForm form) {
  return {mode, 40, 8, 300, form == ScoreForm::sigmoid ? 0.06 : 0.8};
}

// ---- scores

const std::vector<Case> kScoreCases = {
    {"one", whole(1), 1, 1},
    {"head_size_1", whole(33), 4, 1},
    {"odd", whole(97), 3, 59, ScoreForm::sigmoid, Layout::gaps},
    {"relu", whole(97), 4, 64, ScoreForm::relu},
    {"heads_first", whole(130), 4, 64, ScoreForm::sigmoid, Layout::heads_first},
    {"head_size_256", {{5, 70, 65}}, 2, 256},
    {"many_heads", {{4, 70, 66}}, 128, 16, ScoreForm::relu, Layout::gaps},
    {"decode", {{1, 1500, 1499}}, 4, 64},
    {"chunk", {{9, 1025, 800}}, 2, 59},
    {"packed", {{20, 20, 0}, {1, 1, 0}, {0, 5, 5}, {3, 50, 40}, {33, 64, 31}}, 2, 32},
    {"saturated", whole(70), 2, 16, ScoreForm::sigmoid, Layout::tokens_first, 200},
};

const std::vector<Case> kMatrixUnitCases = {
    {"gsa", {{200, 5000, 4800}}, 4, 64},
    {"gsa_whole", whole(700), 4, 64},
    {"gsa_packed", {{64, 64, 0}, {1, 1, 0}, {100, 300, 150}, {0, 5, 5}, {70, 2500, 2400}}, 4, 64},
    {"gsa_heads_first", {{150, 900, 750}}, 4, 64, ScoreForm::sigmoid, Layout::heads_first},
    {"gsa_wide_gaps", {{150, 900, 750}}, 4, 64, ScoreForm::sigmoid, Layout::wide_gaps},
    {"small", {{200, 1500, 1300}, {1, 1, 0}, {70, 70, 0}}, 4, 32},
    {"small_heads_first", {{150, 900, 750}}, 4, 32, ScoreForm::relu, Layout::heads_first},
    {"dsa", {{130, 2000, 1870}}, 8, 128, ScoreForm::relu},
    {"longest", {{5, 40000, 39995}}, 4, 64},
};

class Scores : public ::testing::TestWithParam<std::tuple<DType, Case>> {};

TEST_P(Scores, MatchTheReference) {
  const auto& [dtype, c] = GetParam();
  IndexerProblem problem = problem_of(dtype, c);
  with_arithmetic(dtype, [&, &c = c](auto arithmetic) {
    using Exact = typename decltype(arithmetic)::Exact;
    using Plain = typename decltype(arithmetic)::Plain;
    for (std::size_t n = 0; n < problem.batch.spans.size(); ++n) {
      const reference::Span& span = problem.batch.spans[n];
      const std::vector<Exact> exact = reference::index_scores(problem.input<Exact>(n));
      const std::vector<Plain> plain = reference::index_scores(problem.input<Plain>(n));
      in_every_way([&] {
        const Tensor scores = run_index_scores(problem, serial());
        Tensor got(scores.dtype(), span.queries, 1, span.keys);
        for (std::int64_t i = 0; i < span.queries; ++i) {
          for (std::int64_t s = 0; s < span.keys; ++s) {
            const double score = scores.at(problem.batch.q_begin(n) + i, 0, s);
            got.set(i, 0, s, score);
            if (c.form != ScoreForm::sigmoid || s >= span.visible(i)) continue;
            const bool saturated = c.sharpness > 1 && (score == 0 || score == problem.heads);
            ASSERT_TRUE((score > 0 && score < problem.heads) || saturated) << score;
          }
        }
        // The error of a logit is relative to the logit; where logits are large, few lie between 0 and 1.
        Tolerance tolerance = forward_tolerance(scores.dtype(), c.sharpness);
        tolerance.defined = score_error(problem);
        EXPECT_TRUE(accurate(got, exact, plain, tolerance)) << "sequence " << n;
      });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Select, Scores,
                         ::testing::Combine(::testing::ValuesIn(every_dtype()),
                                            ::testing::ValuesIn(cases(kScoreCases, kMatrixUnitCases))),
                         case_name<Case>);

// ---- selection

const std::vector<Case> kSelectionCases = {
    {"one", whole(1), 1, 1},
    {"odd", whole(97), 3, 59, ScoreForm::sigmoid, Layout::gaps},
    {"relu", whole(333), 3, 20, ScoreForm::relu, Layout::heads_first},
    {"long", {{300, 1025, 725}}, 2, 8},
    {"chunk", {{70, 1500, 1200}}, 2, 16},
    {"packed", {{20, 20, 0}, {1, 1, 0}, {0, 5, 5}, {3, 50, 40}, {40, 400, 360}}, 2, 32},
    {"very_long", {{9, 6000, 5991}, {3, 2500, 2000}}, 2, 8},
    {"very_long_relu", {{9, 6000, 5991}}, 2, 8, ScoreForm::relu},
    {"very_long_saturated", {{5, 5000, 4995}}, 2, 16, ScoreForm::sigmoid, Layout::tokens_first, 200},
    {"saturated", whole(300), 2, 16, ScoreForm::sigmoid, Layout::tokens_first, 200},
    {"relu_ties", whole(300), 2, 1, ScoreForm::relu, Layout::tokens_first, 0.5},
};

class Selection : public ::testing::TestWithParam<std::tuple<DType, Case>> {};

TEST_P(Selection, IsAFullSortOfTheScores) {
  const auto& [dtype, c] = GetParam();
  IndexerProblem problem = problem_of(dtype, c);
  in_every_way([&, &c = c] {
    for (const std::int64_t k : {1, 31, 32, 33, 250, 2048, 4990}) {
      SCOPED_TRACE(concat("fixed ", k));
      expect_selected(problem, fixed(k));
      if (HasFatalFailure()) return;
    }
    for (const BudgetMode mode : {BudgetMode::inverse, BudgetMode::proportional}) {
      SCOPED_TRACE(mode == BudgetMode::inverse ? "inverse" : "proportional");
      expect_selected(problem, adaptive(mode, c.form));
      if (HasFatalFailure()) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Select, Selection,
                         ::testing::Combine(::testing::ValuesIn(every_dtype()),
                                            ::testing::ValuesIn(cases(kSelectionCases, kMatrixUnitCases))),
                         case_name<Case>);

// ---- ties

class Ties : public EveryWay {};

TEST_P(Ties, ConstantScoresTakeTheLowestPositions) {
  IndexerProblem problem(dtype(), whole(170), 3, 20, ScoreForm::sigmoid, Layout::tokens_first, 5);
  problem.q.fill([] { return 0; });
  for (const std::int64_t k : {1, 5, 32, 33, 100, 169}) {
    SCOPED_TRACE(k);
    expect_selected(problem, fixed(k));
    const SelectResult result = run_select(problem, fixed(k), serial());
    for (std::int64_t t = 0; t < 170; ++t) {
      for (std::int64_t s = 0; s < 170; ++s)
        ASSERT_EQ(result.mask.get(t, s), s <= t && s < k) << t << " " << s;
    }
  }
}

TEST_P(Ties, ConstantScoresHaveNoVariance) {
  IndexerProblem problem(dtype(), whole(170), 3, 20, ScoreForm::sigmoid, Layout::tokens_first, 6);
  problem.q.fill([] { return 0; });
  const SelectResult inverse = run_select(problem, {BudgetMode::inverse, 20, 10, 50, 0.05}, serial());
  const SelectResult proportional =
      run_select(problem, {BudgetMode::proportional, 20, 10, 50, 0.05}, serial());
  for (std::int64_t t = 0; t < 170; ++t) {
    ASSERT_EQ(inverse.k_t[t], std::min<std::int64_t>(50, t + 1));
    ASSERT_EQ(proportional.k_t[t], std::min<std::int64_t>(10, t + 1));
  }
}

TEST_P(Ties, ZerosOfReluComeAfterThePositive) {
  IndexerProblem problem(dtype(), whole(200), 2, 4, ScoreForm::relu, Layout::tokens_first, 7);
  problem.w.fill([] { return 0.5; });
  problem.bias.fill([] { return -1.5; });  // few keys get above zero
  expect_selected(problem, fixed(60));
  const Tensor scores = run_index_scores(problem, serial());
  const SelectResult result = run_select(problem, fixed(60), serial());
  std::int64_t positive = 0;
  for (std::int64_t s = 0; s < 200; ++s) positive += scores.at(199, 0, s) > 0;
  ASSERT_GT(positive, 0);
  ASSERT_LT(positive, 60);
  std::int64_t zeros = 60 - positive;  // of the zeros the lowest are taken, so many
  for (std::int64_t s = 0; s < 200; ++s) {
    const bool expected = scores.at(199, 0, s) > 0 || zeros-- > 0;
    ASSERT_EQ(result.mask.get(199, s), expected) << s;
  }
}

// Weights of either sign make negative scores, and zeros that may come out as -0: these are equal to 0.
TEST_P(Ties, ZerosOfEitherSignAreEqual) {
  IndexerProblem problem(dtype(), whole(150), 2, 3, ScoreForm::relu, Layout::tokens_first, 8);
  problem.bias.fill([] { return -2; });
  for (std::int64_t t = 0; t < 150; ++t) problem.w.set(t, 0, 0, -0.5), problem.w.set(t, 1, 0, 0.25);
  for (const std::int64_t k : {3, 40, 140}) expect_selected(problem, fixed(k));
}

// Thousands of equal scores, more than any search wants to sort: on both sides of the cut, and all the same.
TEST_P(Ties, ManyEqualScores) {
  IndexerProblem problem(dtype(), {{4, 6000, 5996}}, 1, 1, ScoreForm::relu, Layout::tokens_first, 11);
  problem.q.fill([] { return 1; });
  problem.w.fill([] { return 1; });
  problem.bias = Tensor();
  Random random(12);
  for (const std::int64_t levels : {1, 2, 3, 40}) {
    problem.k.fill([&] { return static_cast<double>(random.below(levels)) - 1; });
    for (const std::int64_t k : {1, 100, 1999, 2000, 2001, 4000, 5995}) {
      SCOPED_TRACE(concat(levels, " levels, k ", k));
      expect_selected(problem, fixed(k));
    }
  }
}

// Scores that span the range of the type, where no step of fixed size finds the threshold.
TEST_P(Ties, ScoresOfEverySize) {
  IndexerProblem problem(dtype(), {{3, 5000, 4997}}, 1, 1, ScoreForm::relu, Layout::tokens_first, 13);
  problem.q.fill([] { return 1; });
  problem.w.fill([] { return 1; });
  problem.bias = Tensor();
  problem.scale = 1;
  Random random(14);
  problem.k.fill([&] { return std::ldexp(1 + random.uniform(), static_cast<int>(random.below(28)) - 14); });
  for (const std::int64_t k : {1, 60, 2048, 4900}) expect_selected(problem, fixed(k));
}

// A key's score does not depend on where the key stands.
TEST_P(Ties, EqualKeysScoreEqually) {
  IndexerProblem problem(dtype(), whole(301), 3, 37, ScoreForm::sigmoid, Layout::tokens_first, 9);
  for (std::int64_t s = 0; s < 301; ++s) {
    const std::int64_t from = s % 5;
    for (std::int64_t c = 0; c < 37; ++c) problem.k.set(s, 0, c, problem.k.at(from, 0, c));
  }
  const Tensor scores = run_index_scores(problem, serial());
  for (std::int64_t t = 0; t < 301; ++t) {
    for (std::int64_t s = 5; s <= t; ++s)
      ASSERT_EQ(scores.at(t, 0, s), scores.at(t, 0, s % 5)) << t << " " << s;
  }
  for (const std::int64_t k : {1, 7, 100, 300}) expect_selected(problem, fixed(k));
}

INSTANTIATE_TEST_SUITE_P(Select, Ties, every_way(), way_name);

// ---- budgets, on scores whose variance is exact

// One query that sees 64 keys whose scores are `low` and `high` in turn.
std::int64_t k_for(DType dtype, double low, double high, const Budget& budget) {
  IndexerProblem problem(dtype, {{1, 64, 63}}, 1, 1, ScoreForm::relu, Layout::tokens_first, 1);
  problem.q.fill([] { return 1; });
  problem.w.fill([] { return 1; });
  problem.bias = Tensor();
  problem.scale = 1;
  for (std::int64_t s = 0; s < 64; ++s) problem.k.set(s, 0, 0, s % 2 == 0 ? low : high);
  const SelectResult result = run_select(problem, budget, serial());
  EXPECT_EQ(result.variance.at(0), (high - low) * (high - low) / 4);
  std::int64_t count = 0;
  for (std::int64_t s = 0; s < 64; ++s) count += result.mask.get(0, s);
  EXPECT_EQ(count, result.k_t[0]);
  return result.k_t[0];
}

class Budgets : public EveryWay {};

TEST_P(Budgets, FollowTheFormula) {
  const auto spread = [this](const Budget& budget) { return k_for(dtype(), 0, 1, budget); };  // Var = 1/4
  const auto inverse = BudgetMode::inverse, proportional = BudgetMode::proportional;
  EXPECT_EQ(spread({inverse, 10, 2, 40, 0.25}), 10);
  EXPECT_EQ(spread({inverse, 10, 2, 40, 0.5}), 20);
  EXPECT_EQ(spread({inverse, 10, 2, 40, 0.125}), 5);
  EXPECT_EQ(spread({inverse, 10, 2, 40, 0.2625 + 0.125}), 15);  // floor of 15.5
  EXPECT_EQ(spread({proportional, 10, 2, 40, 0.25}), 10);
  EXPECT_EQ(spread({proportional, 10, 2, 40, 0.5}), 5);
  EXPECT_EQ(spread({proportional, 10, 2, 40, 0.125}), 20);
  EXPECT_EQ(spread({proportional, 11, 2, 40, 0.5}), 5);  // floor of 5.5
  EXPECT_EQ(spread({BudgetMode::fixed, 10, 2, 40, 0.5}), 10);
}

TEST_P(Budgets, StayWithinTheirBounds) {
  const auto spread = [this](const Budget& budget) { return k_for(dtype(), 0, 1, budget); };
  for (const BudgetMode mode : {BudgetMode::inverse, BudgetMode::proportional}) {
    const double tiny = mode == BudgetMode::inverse ? 1e-30 : 1e30;
    EXPECT_EQ(spread({mode, 10, 4, 40, tiny}), 4);
    EXPECT_EQ(spread({mode, 10, 4, 40, 1 / tiny}), 40);
    EXPECT_EQ(spread({mode, 10, 4, 2147483647, 1 / tiny}), 64);  // no more than there are
    EXPECT_EQ(spread({mode, 100, 80, 2147483647, 0.25}), 64);
  }
  EXPECT_EQ(spread({BudgetMode::inverse, 10, 4, 40, 1e300}), 40);
  EXPECT_EQ(spread({BudgetMode::proportional, 10, 4, 40, 1e-300}), 40);
  EXPECT_EQ(spread({BudgetMode::fixed, 100, 4, 40, -1}), 40);
  EXPECT_EQ(spread({BudgetMode::fixed, 2, 4, 40, -1}), 4);
  EXPECT_EQ(spread({BudgetMode::fixed, 100, 4, 400, -1}), 64);
}

TEST_P(Budgets, EdgesAreDecided) {
  const auto spread = [this](const Budget& budget) { return k_for(dtype(), 0, 1, budget); };
  const auto flat = [this](const Budget& budget) { return k_for(dtype(), 1, 1, budget); };
  const auto inverse = BudgetMode::inverse, proportional = BudgetMode::proportional;
  for (const double mean : {0.25, 0.0}) {  // no variance
    EXPECT_EQ(flat({inverse, 10, 4, 40, mean}), 40);
    EXPECT_EQ(flat({proportional, 10, 4, 40, mean}), 4);
  }
  EXPECT_EQ(spread({inverse, 10, 4, 40, 0}), 4);  // no mean variance
  EXPECT_EQ(spread({proportional, 10, 4, 40, 0}), 40);
  for (const BudgetMode mode : {inverse, proportional}) {  // mean variance not known yet
    EXPECT_EQ(spread({mode, 10, 4, 40, -1}), 10);
    EXPECT_EQ(flat({mode, 10, 4, 40, -1}), 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Select, Budgets, every_way(), way_name);

}  // namespace
}  // namespace gsa::testing
