// select on CUDA has two ways that must agree bit for bit: stored scores (few queries or short rows) and one
// pass over the keys that collects what may be selected. Long problems, cut into chunks that are selected
// from stored scores, tell.
#include <gtest/gtest.h>

#include "cuda_call.h"
#include "problems.h"

namespace gsa::testing {
namespace {

// As many queries and keys as it takes for one pass.
const Batch kLong = {{4400, 33000, 28600}};

void expect_same_in_chunks(IndexerProblem& problem, const Budget& budget) {
  const SelectResult all = run_select(problem, budget, serial());
  for (std::size_t n = 0; n < problem.batch.spans.size(); ++n) {
    const reference::Span span = problem.batch.spans[n];
    const std::int64_t row = problem.batch.q_begin(n);  // of the sequence's first query, among all
    for (std::int64_t begin = 0; begin < span.queries; begin += 1100) {
      const std::int64_t end = std::min(begin + 1100, span.queries);
      IndexerProblem part = problem.part(n, begin, end, span.visible(end - 1));
      const SelectResult got = run_select(part, budget, serial());
      EXPECT_TRUE(same_bits(got.variance, all.variance.slice(row + begin, row + end)));
      EXPECT_TRUE(same_bits(got.threshold, all.threshold.slice(row + begin, row + end)));
      const std::int64_t words = mask_words(span.visible(end - 1));
      for (std::int64_t t = begin; t < end; ++t) {
        ASSERT_EQ(got.k_t[t - begin], all.k_t[row + t]) << n << ", " << t;
        ASSERT_EQ(got.tie_cut[t - begin], all.tie_cut[row + t]) << n << ", " << t;
        const auto* a = &got.mask.words[(t - begin) * got.mask.words_per_query];
        const auto* b = &all.mask.words[(row + t) * all.mask.words_per_query];
        ASSERT_TRUE(std::equal(a, a + words, b)) << "masks of query " << n << ", " << t << " differ";
        ASSERT_TRUE(
            std::all_of(b + words, b + all.mask.words_per_query, [](std::uint32_t w) { return w == 0; }))
            << n << ", " << t;
      }
    }
  }
}

class OnePass : public ::testing::TestWithParam<DType> {};

TEST_P(OnePass, EqualsStoredScores) {
  for (const ScoreForm form : {ScoreForm::sigmoid, ScoreForm::relu}) {
    IndexerProblem usual(GetParam(), kLong, 4, 64, form, Layout::tokens_first, 51);
    IndexerProblem other(GetParam(), kLong, 2, 24, form, Layout::tokens_first, 52);
    const double mean = form == ScoreForm::sigmoid ? 0.1 : 0.8;
    in_every_way([&] {
      for (IndexerProblem* problem : {&usual, &other}) {
        expect_same_in_chunks(*problem, {BudgetMode::fixed, 700, 1, 1 << 20, -1});
        expect_same_in_chunks(*problem, {BudgetMode::inverse, 700, 100, 2000, mean});
      }
    });
  }
}

// A chunk of a long prefill has more tiles of queries than run at a time; here they begin off the tiles'
// borders, and the last one is not full.
TEST_P(OnePass, TakesTilesInTurns) {
  IndexerProblem problem(GetParam(), {{17501, 33537, 16036}}, 4, 64, ScoreForm::sigmoid, Layout::tokens_first,
                         55);
  in_every_way([&] { expect_same_in_chunks(problem, {BudgetMode::fixed, 700, 1, 1 << 20, -1}); });
}

// Sequences of all lengths in one call: rows that need no bound, empty tiles, tiles of one query.
TEST_P(OnePass, TakesPackedSequences) {
  const Batch packed = {{2500, 35000, 32500}, {100, 100, 0}, {1, 36000, 35999},
                        {2000, 2000, 0},      {0, 3, 3},     {1033, 33001, 30001}};
  IndexerProblem problem(GetParam(), packed, 4, 64, ScoreForm::sigmoid, Layout::tokens_first, 56);
  in_every_way([&] {
    expect_same_in_chunks(problem, {BudgetMode::fixed, 700, 1, 1 << 20, -1});
    expect_same_in_chunks(problem, {BudgetMode::inverse, 700, 100, 2000, 0.1});
  });
}

// Scores that come in few values: what reaches a bound may be most of the row, and its query falls back.
TEST_P(OnePass, CutsTies) {
  IndexerProblem problem(GetParam(), kLong, 4, 64, ScoreForm::sigmoid, Layout::tokens_first, 53);
  for (const std::int64_t values : {4000, 7, 1}) {
    for (std::int64_t s = values; s < problem.batch.keys(); ++s) {
      for (std::int64_t c = 0; c < 64; ++c) problem.k.set(s, 0, c, problem.k.at(s % values, 0, c));
    }
    in_every_way([&] { expect_same_in_chunks(problem, {BudgetMode::fixed, 700, 1, 1 << 20, -1}); });
  }
}

TEST_P(OnePass, EmptiesQueriesThatSeeNan) {
  IndexerProblem problem(GetParam(), kLong, 4, 64, ScoreForm::sigmoid, Layout::tokens_first, 54);
  problem.k.set(30000, 0, 11, kNan);
  problem.w.set(40, 1, 0, kInf);
  in_every_way([&] {
    const Budget budget = {BudgetMode::inverse, 700, 100, 2000, 0.1};
    const SelectResult all = run_select(problem, budget, serial());
    for (std::int64_t t = 0; t < 4400; ++t) {
      ASSERT_EQ(all.k_t[t] == 0, t == 40 || t >= 30000 - 28600) << t;
    }
    expect_same_in_chunks(problem, budget);
  });
}

// An infinite element of a key makes the products +inf or -inf, of which ReLU keeps the former.
TEST_P(OnePass, EmptiesQueriesThatSeeInfinity) {
  IndexerProblem problem(GetParam(), kLong, 4, 64, ScoreForm::relu, Layout::tokens_first, 57);
  problem.k.set(30000, 0, 11, kInf);
  in_every_way([&] {
    const Budget budget = {BudgetMode::inverse, 700, 100, 2000, 0.8};
    const SelectResult all = run_select(problem, budget, serial());
    std::int64_t empty = 0;
    for (std::int64_t t = 0; t < 4400; ++t) {
      if (all.k_t[t] != 0) continue;
      ++empty;
      ASSERT_GE(t, 30000 - 28600);
    }
    EXPECT_GT(empty, 2000);
    expect_same_in_chunks(problem, budget);
  });
}

// Distributions of scores that no random input has, and trained ones do.
enum class Scores { random, crowded, saturated, tied, one_head, near_constant, unsampled };

const char* name_of(Scores scores) {
  switch (scores) {
    case Scores::random:
      return "random";
    case Scores::crowded:
      return "crowded";
    case Scores::saturated:
      return "saturated";
    case Scores::tied:
      return "tied";
    case Scores::one_head:
      return "one_head";
    case Scores::near_constant:
      return "near_constant";
    case Scores::unsampled:
      return "unsampled";
  }
  return "?";
}

IndexerProblem problem_of(Scores scores, const Batch& batch) {
  IndexerProblem problem(DType::bf16, batch, 4, 64, ScoreForm::sigmoid, Layout::tokens_first, 61);
  const auto each_key = [&](auto value) {
    for (std::int64_t s = 0; s < batch.keys(); ++s) {
      for (std::int64_t c = 0; c < 64; ++c) problem.k.set(s, 0, c, value(s, c));
    }
  };
  const auto k = [&](std::int64_t s, std::int64_t c) { return problem.k.at(s, 0, c); };
  switch (scores) {
    case Scores::random:
      break;
    case Scores::crowded:  // all scores of a row within a thousandth, a few far off
      each_key([&](auto s, auto c) { return s % 1000 == 7 ? 4 * k(s, c) : k(s, c) / 1024; });
      break;
    case Scores::saturated:  // sixteen values
      each_key([&](auto s, auto c) { return 64 * k(s, c); });
      break;
    case Scores::tied:
      each_key([&](auto s, auto c) { return k(s % 97, c); });
      break;
    case Scores::one_head:
      for (std::int64_t t = 0; t < batch.queries(); ++t) {
        for (std::int64_t h = 1; h < 4; ++h) problem.w.set(t, h, 0, 1e-6);
      }
      break;
    case Scores::near_constant:
      each_key([&](auto s, auto c) { return s % 50 == 0 ? k(s, c) : k(1, c); });
      break;
    case Scores::unsampled:  // equal wherever stored rows are sampled (select/cuda/kernels.h)
      each_key([&](auto s, auto c) {
        const std::int64_t at = s % 64;
        return (at >= 8 && at < 16 && at % 2 == 0) || (at >= 41 && at < 48 && at % 2 == 1) ? 0 : k(s, c);
      });
      break;
  }
  return problem;
}

cuda::SelectWork work_of(IndexerProblem& problem, const Budget& budget) {
  cuda::SelectWork work;
  backend::counted_select_work = &work;
  run_select(problem, budget, serial());
  backend::counted_select_work = nullptr;
  return work;
}

// Rows of every size that has a kernel of its own, with scores that fill lists, tie, or differ from what a
// sample of them shows: the mask is that of a full sort.
class StoredRows : public ::testing::TestWithParam<Scores> {};

TEST_P(StoredRows, AreSelectedExactly) {
  constexpr std::int64_t kQueries = 40;
  for (const std::int64_t keys : {900, 1900, 4000, 8000, 16000, 30000}) {
    IndexerProblem problem = problem_of(GetParam(), {{kQueries, keys, keys - kQueries}});
    const Tensor scores = run_index_scores(problem, serial());
    for (const std::int64_t k : {std::int64_t{3}, keys / 32, keys / 8, keys / 2, keys - 50}) {
      const SelectResult result = run_select(problem, {BudgetMode::fixed, k, 1, 1 << 20, -1}, serial());
      for (std::int64_t t = 0; t < kQueries; ++t) {
        const std::int64_t visible = keys - kQueries + t + 1;
        const std::vector<double> row = scores.values<double>(t, t + 1);
        const reference::Choice<double> choice = reference::choose(row.data(), visible, k);
        std::int64_t wrong = 0;
        for (std::int64_t s = 0; s < 32 * result.mask.words_per_query; ++s) {
          wrong += result.mask.get(t, s) != (s < visible && choice.chosen[s]);
        }
        ASSERT_EQ(wrong, 0) << "query " << t << ", " << k << " of " << visible << " keys";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, StoredRows,
                         ::testing::Values(Scores::random, Scores::crowded, Scores::saturated, Scores::tied,
                                           Scores::one_head, Scores::near_constant, Scores::unsampled),
                         [](const ::testing::TestParamInfo<Scores>& p) { return name_of(p.param); });

class Work : public ::testing::TestWithParam<Scores> {};

// Work is counted, not timed: however scores are distributed, a row takes a few histograms.
TEST_P(Work, OfStoredRowsIsBounded) {
  for (const std::int64_t keys : {900, 1900, 4000, 8000, 16000, 30000, 40000}) {
    IndexerProblem problem = problem_of(GetParam(), {{300, keys, keys - 300}});
    const cuda::SelectWork work = work_of(problem, {BudgetMode::fixed, keys / 8, 1, 1 << 20, -1});
    EXPECT_EQ(work.rows, 300u) << keys;
    EXPECT_LE(work.histograms, 5 * work.rows) << keys;
    EXPECT_EQ(work.fallback_rows, 0u) << keys;
  }
}

TEST_P(Work, OfOnePassIsBounded) {
  IndexerProblem problem = problem_of(GetParam(), kLong);
  const std::int64_t k = 2000;
  const cuda::SelectWork work = work_of(problem, {BudgetMode::fixed, k, 1, 1 << 20, -1});
  std::cout << "[ work     ] " << name_of(GetParam()) << ": " << work.entries / 4400 << " entries a query, "
            << work.refined << " refined, " << work.fallback_rows << " fallback rows, of 4400\n";
  EXPECT_EQ(work.rows, work.fallback_rows);
  EXPECT_LE(work.histograms, 3 * work.fallback_rows);
  EXPECT_LE(work.fallback_rows, 44u);  // one in a hundred
  EXPECT_LE(work.entries, 4400u * 3 * k);
}

INSTANTIATE_TEST_SUITE_P(Cuda, Work,
                         ::testing::Values(Scores::random, Scores::crowded, Scores::saturated, Scores::tied,
                                           Scores::one_head, Scores::near_constant),
                         [](const ::testing::TestParamInfo<Scores>& p) { return name_of(p.param); });

INSTANTIATE_TEST_SUITE_P(Cuda, OnePass, ::testing::Values(DType::bf16, DType::f16),
                         [](const ::testing::TestParamInfo<DType>& p) { return name_of(p.param); });

}  // namespace
}  // namespace gsa::testing
