// select: what the bits of a query may depend on, what NaN does, which arguments are refused.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/select/select.h"
#include "problems.h"

namespace gsa::testing {
namespace {

constexpr Budget kBudget = {BudgetMode::inverse, 40, 8, 300, 0.06};

::testing::AssertionResult same_selection(const SelectResult& got, const SelectResult& all,
                                          std::int64_t begin, std::int64_t end) {
  const std::int64_t words = std::min(got.mask.words_per_query, all.mask.words_per_query);
  for (std::int64_t t = begin; t < end; ++t) {
    const auto* a = &got.mask.words[(t - begin) * got.mask.words_per_query];
    const auto* b = &all.mask.words[t * all.mask.words_per_query];
    if (!std::equal(a, a + words, b))
      return ::testing::AssertionFailure() << "masks of query " << t << " differ";
    if (got.k_t[t - begin] != all.k_t[t])
      return ::testing::AssertionFailure() << "k_t of query " << t << " differs";
    if (got.tie_cut[t - begin] != all.tie_cut[t]) {
      return ::testing::AssertionFailure() << "tie_cut of query " << t << " differs";
    }
  }
  const auto same = same_bits(got.variance, all.variance.slice(begin, end));
  return same ? same_bits(got.threshold, all.threshold.slice(begin, end)) : same;
}

::testing::AssertionResult same_selection(const SelectResult& got, const SelectResult& all) {
  return same_selection(got, all, 0, static_cast<std::int64_t>(all.k_t.size()));
}

bool is_empty_with_nan(const SelectResult& result, std::int64_t t) {
  const auto* words = &result.mask.words[t * result.mask.words_per_query];
  return result.k_t[t] == 0 && std::isnan(result.variance.at(t)) && std::isnan(result.threshold.at(t)) &&
         std::all_of(words, words + result.mask.words_per_query, [](std::uint32_t w) { return w == 0; });
}

class SelectBits : public ::testing::TestWithParam<std::tuple<DType, std::string, ScoreForm>> {
 protected:
  SelectBits() : way_(std::get<1>(GetParam())) {}
  DType dtype() const { return std::get<0>(GetParam()); }
  ScoreForm form() const { return std::get<2>(GetParam()); }
  IndexerProblem problem(const Batch& batch, std::uint64_t seed) const {
    return IndexerProblem(dtype(), batch, 3, 20, form(), Layout::tokens_first, seed);
  }
  IndexerProblem mixed() const {
    return problem({{97, 97, 0}, {1, 1, 0}, {40, 1200, 1150}, {2, 70, 40}, {60, 300, 200}}, 31);
  }

 private:
  WithWay way_;
};

TEST_P(SelectBits, IgnoreBatchNeighboursAndChunks) {
  IndexerProblem all = mixed();
  const SelectResult expected = run_select(all, kBudget, serial());
  for (std::size_t n = 0; n < all.batch.spans.size(); ++n) {
    const reference::Span& span = all.batch.spans[n];
    const std::int64_t q0 = all.batch.q_begin(n);
    for (const std::int64_t step : {span.queries, std::int64_t{33}, std::int64_t{7}, std::int64_t{1}}) {
      for (std::int64_t begin = 0; begin < span.queries; begin += step) {
        const std::int64_t end = std::min(begin + step, span.queries);
        for (const std::int64_t keys : {span.keys, span.visible(end - 1)}) {
          IndexerProblem part = all.part(n, begin, end, keys);
          const SelectResult got = run_select(part, kBudget, serial());
          ASSERT_TRUE(same_selection(got, expected, q0 + begin, q0 + end))
              << "sequence " << n << " step " << step;
        }
      }
    }
  }
}

TEST_P(SelectBits, IgnoreThreads) {
  if (!backend::traits().threads) GTEST_SKIP() << "this backend has no threads of the caller";
  // Many chunks of queries, and a single query, whose keys the threads share.
  IndexerProblem single = problem({{1, 3000, 2999}}, 32);
  IndexerProblem many = mixed();
  for (IndexerProblem* all : {&single, &many}) {
    const SelectResult expected = run_select(*all, kBudget, serial());
    const Tensor scores = run_index_scores(*all, serial());
    for (const int threads : {1, 2, 3}) {
      const ThreadParallel parallel(threads);
      const SelectResult got = run_select(*all, kBudget, parallel);
      EXPECT_TRUE(same_selection(got, expected)) << threads << " threads";
      EXPECT_TRUE(same_bits(run_index_scores(*all, parallel), scores)) << threads << " threads";
      EXPECT_EQ(run_select_mask(*all, expected, parallel).words, expected.mask.words)
          << threads << " threads";
    }
  }
}

TEST_P(SelectBits, RepeatAThousandTimes) {
  IndexerProblem small = problem({{21, 40, 19}}, 33);
  const Budget budget = {BudgetMode::proportional, 12, 3, 30, 0.06};
  const SelectResult expected = run_select(small, budget, serial());
  const ThreadParallel two(2);
  for (int i = 0; i < 1000; ++i) {
    const SelectResult got =
        run_select(small, budget, i % 8 == 0 ? static_cast<const Parallel&>(two) : serial());
    ASSERT_TRUE(same_selection(got, expected)) << "repeat " << i;
  }
}

TEST_P(SelectBits, IgnoreTheFuture) {
  IndexerProblem clean = problem(whole(200), 34);
  const SelectResult expected = run_select(clean, kBudget, serial());
  for (const std::int64_t from : {1, 31, 32, 100, 199}) {
    for (const double value : {5.0, kNan, kInf}) {
      IndexerProblem changed = clean;
      for (std::int64_t s = from; s < 200; ++s) {
        changed.k.fill_token(s, value), changed.q.fill_token(s, value), changed.w.fill_token(s, value);
      }
      const SelectResult got = run_select(changed, kBudget, serial());
      for (std::int64_t t = 0; t < from; ++t) {
        ASSERT_EQ(got.k_t[t], expected.k_t[t]) << "changed from " << from;
        ASSERT_EQ(got.tie_cut[t], expected.tie_cut[t]) << "changed from " << from;
        for (std::int64_t s = 0; s < 200; ++s) ASSERT_EQ(got.mask.get(t, s), expected.mask.get(t, s)) << t;
      }
      EXPECT_TRUE(same_bits(got.variance.slice(0, from), expected.variance.slice(0, from))) << from;
      EXPECT_TRUE(same_bits(got.threshold.slice(0, from), expected.threshold.slice(0, from))) << from;
    }
  }
}

TEST_P(SelectBits, NanInAKeyEmptiesTheQueriesThatSeeIt) {
  IndexerProblem clean = problem(whole(130), 35);
  const SelectResult expected = run_select(clean, kBudget, serial());
  for (const std::int64_t bad : {0, 40, 129}) {
    IndexerProblem changed = clean;
    changed.k.set(bad, 0, 11, kNan);
    const SelectResult got = run_select(changed, kBudget, serial());
    const MaskWords rebuilt = run_select_mask(changed, got, serial());
    EXPECT_EQ(rebuilt.words, got.mask.words);
    for (std::int64_t t = 0; t < 130; ++t) {
      ASSERT_EQ(is_empty_with_nan(got, t), t >= bad) << t << " with NaN in key " << bad;
      ASSERT_TRUE(t >= bad || got.k_t[t] == expected.k_t[t]);
      for (std::int64_t s = 0; s < 130 && t < bad; ++s)
        ASSERT_EQ(got.mask.get(t, s), expected.mask.get(t, s));
    }
  }
}

TEST_P(SelectBits, NanInAQueryEmptiesThatQuery) {
  IndexerProblem clean = problem(whole(70), 36);
  const SelectResult expected = run_select(clean, kBudget, serial());
  for (const bool in_weight : {false, true}) {
    for (const double value : {kNan, kInf}) {
      if (!in_weight && value == kInf) continue;  // an infinite logit has a finite sigmoid: see below
      IndexerProblem changed = clean;
      if (in_weight) {
        changed.w.set(33, 1, 0, value);
      } else {
        changed.q.set(33, 1, 5, value);
      }
      const SelectResult got = run_select(changed, kBudget, serial());
      const Tensor scores = run_index_scores(changed, serial());
      for (std::int64_t t = 0; t < 70; ++t) {
        bool finite = true;
        for (std::int64_t s = 0; s <= t; ++s) finite = finite && std::isfinite(scores.at(t, 0, s));
        ASSERT_EQ(finite, t != 33) << t;
        ASSERT_EQ(is_empty_with_nan(got, t), t == 33) << t;
        for (std::int64_t s = 0; s < 70 && t != 33; ++s)
          ASSERT_EQ(got.mask.get(t, s), expected.mask.get(t, s));
      }
    }
  }
}

TEST_P(SelectBits, NanInABiasEmptiesAll) {
  IndexerProblem problem = mixed();
  problem.bias.set(0, 0, 2, kNan);
  const SelectResult got = run_select(problem, kBudget, serial());
  for (std::int64_t t = 0; t < problem.batch.queries(); ++t) ASSERT_TRUE(is_empty_with_nan(got, t)) << t;
}

// An infinite logit: sigmoid makes 0 or 1 of it, ReLU an infinite score or 0.
TEST_P(SelectBits, InfiniteLogits) {
  IndexerProblem problem(dtype(), {{1, 50, 49}}, 1, 1, form(), Layout::tokens_first, 37);
  problem.q.fill([] { return 1; });
  problem.w.fill([] { return 0.5; });
  problem.bias = Tensor();
  problem.scale = 1;
  problem.k.fill([] { return 0.25; });
  problem.k.set(20, 0, 0, -kInf);
  const Budget one = {BudgetMode::fixed, 1, 1, 1, -1};
  const Tensor low = run_index_scores(problem, serial());
  EXPECT_NEAR(low.at(0, 0, 20), 0, 1e-18);  // lost in any other score
  EXPECT_TRUE(run_select(problem, one, serial()).mask.get(0, 0));
  problem.k.set(30, 0, 0, kInf);
  const SelectResult got = run_select(problem, one, serial());
  const Tensor high = run_index_scores(problem, serial());
  if (form() == ScoreForm::sigmoid) {
    EXPECT_EQ(high.at(0, 0, 30), 0.5);
    EXPECT_TRUE(got.mask.get(0, 30));
    EXPECT_EQ(got.k_t[0], 1);
  } else {
    EXPECT_EQ(high.at(0, 0, 30), kInf);
    EXPECT_TRUE(is_empty_with_nan(got, 0));
  }
}

TEST_P(SelectBits, EveryOutputIsOptional) {
  IndexerProblem all = mixed();
  const SelectResult expected = run_select(all, kBudget, serial());
  SelectResult only_mask = expected, only_rest = expected;
  std::fill(only_mask.mask.words.begin(), only_mask.mask.words.end(), 0u);
  std::fill(only_rest.k_t.begin(), only_rest.k_t.end(), 0);
  std::fill(only_rest.tie_cut.begin(), only_rest.tie_cut.end(), 0);
  SelectArgs args = {.dtype = dtype(),
                     .indexer = all.view(),
                     .budget = kBudget,
                     .sequences = all.batch.view(),
                     .mask = only_mask.mask.view()};
  backend::select(args, serial());
  EXPECT_TRUE(same_selection(only_mask, expected));
  args.mask = Mask();
  args.k_t = only_rest.k_t.data();
  args.variance = only_rest.variance.fill([] { return 0; }).data();
  args.threshold = only_rest.threshold.fill([] { return 0; }).data();
  args.tie_cut = only_rest.tie_cut.data();
  backend::select(args, serial());
  EXPECT_TRUE(same_selection(only_rest, expected));
}

std::string name_of_way(const ::testing::TestParamInfo<SelectBits::ParamType>& parameter) {
  const auto& [type, way, form] = parameter.param;
  return concat(name_of(type), "_", way, form == ScoreForm::relu ? "_relu" : "_sigmoid");
}

INSTANTIATE_TEST_SUITE_P(Select, SelectBits,
                         ::testing::Combine(::testing::ValuesIn(every_dtype()),
                                            ::testing::ValuesIn(backend::ways()),
                                            ::testing::Values(ScoreForm::sigmoid, ScoreForm::relu)),
                         name_of_way);

// ---- arguments

TEST(SelectArguments, NothingToDoIsFine) {
  for (const Batch& batch : {Batch{}, Batch{{0, 0, 0}}, Batch{{0, 9, 9}, {0, 0, 0}}}) {
    IndexerProblem problem(backend::any_dtype(), batch, 2, 8, ScoreForm::sigmoid, Layout::tokens_first, 1);
    const SelectResult result = run_select(problem, kBudget, serial());
    run_select_mask(problem, result, serial());
    run_index_scores(problem, serial());
  }
}

// What all three functions refuse about the indexer and the sequences.
template <typename Args>
void expect_common_refusals(const std::string& op, const Args& good,
                            void (*run)(const Args&, const Parallel&)) {
  run(good, serial());
  const auto wrong = [&](const std::string& argument, const std::function<void(Args&)>& change) {
    Args args = good;
    change(args);
    return refuses(op, argument, [&] { run(args, serial()); });
  };
  EXPECT_TRUE(wrong("indexer.heads", [](Args& a) { a.indexer.heads = 0; }));
  EXPECT_TRUE(wrong("indexer.heads", [](Args& a) { a.indexer.heads = 129; }));
  EXPECT_TRUE(wrong("indexer.heads", [](Args& a) { a.indexer.heads = -1; }));
  EXPECT_TRUE(wrong("indexer.head_size", [](Args& a) { a.indexer.head_size = 0; }));
  EXPECT_TRUE(wrong("indexer.head_size", [](Args& a) { a.indexer.head_size = 257; }));
  EXPECT_TRUE(wrong("indexer.scale", [](Args& a) { a.indexer.scale = kNan; }));
  EXPECT_TRUE(wrong("indexer.q", [](Args& a) { a.indexer.q.data = nullptr; }));
  EXPECT_TRUE(wrong("indexer.k", [](Args& a) { a.indexer.k.data = nullptr; }));
  EXPECT_TRUE(wrong("indexer.w", [](Args& a) { a.indexer.w.data = nullptr; }));
  const auto offsets = [&](const std::string& argument, const std::vector<std::int64_t>& q,
                           const std::vector<std::int64_t>& k, const std::vector<std::int64_t>& position) {
    return wrong(argument, [&](Args& a) {
      a.sequences = {static_cast<std::int64_t>(q.size()) - 1, q.data(), k.data(),
                     position.empty() ? nullptr : position.data()};
    });
  };
  constexpr std::int64_t kHuge = std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
  EXPECT_TRUE(wrong("sequences.count", [](Args& a) { a.sequences.count = -1; }));
  EXPECT_TRUE(wrong("sequences.q_begin", [](Args& a) { a.sequences.q_begin = nullptr; }));
  EXPECT_TRUE(wrong("sequences.k_begin", [](Args& a) { a.sequences.k_begin = nullptr; }));
  EXPECT_TRUE(offsets("sequences.q_begin", {0, 3, 2}, {0, 40, 45}, {}));
  EXPECT_TRUE(offsets("sequences.k_begin", {0, 3, 5}, {0, 40, 39}, {}));
  EXPECT_TRUE(offsets("sequences.k_begin", {0, 3}, {0, kHuge}, {}));
  EXPECT_TRUE(offsets("sequences.q_position", {0, 3}, {0, 2}, {}));
  EXPECT_TRUE(offsets("sequences.q_position", {0, 3}, {0, 40}, {-1}));
  EXPECT_TRUE(offsets("sequences.q_position", {0, 3}, {0, 40}, {38}));
}

TEST(SelectArguments, MistakesAreNamed) {
  IndexerProblem problem(backend::any_dtype(), {{3, 40, 37}, {2, 5, 3}}, 2, 8, ScoreForm::sigmoid,
                         Layout::tokens_first, 1);
  SelectResult result = run_select(problem, kBudget, serial());
  const SelectArgs good = {.dtype = backend::any_dtype(),
                           .indexer = problem.view(),
                           .budget = kBudget,
                           .sequences = problem.batch.view(),
                           .mask = result.mask.view()};
  expect_common_refusals("select", good, &backend::select);
  const auto wrong = [&](const std::string& argument, const std::function<void(SelectArgs&)>& change) {
    SelectArgs args = good;
    change(args);
    return refuses("select", argument, [&] { backend::select(args, serial()); });
  };
  EXPECT_TRUE(wrong("budget.min", [](SelectArgs& a) { a.budget.min = a.budget.max + 1; }));
  EXPECT_TRUE(wrong("budget.min", [](SelectArgs& a) { a.budget.min = 0; }));
  EXPECT_TRUE(wrong("budget.max", [](SelectArgs& a) { a.budget.max = std::int64_t{1} << 40; }));
  EXPECT_TRUE(wrong("budget.base", [](SelectArgs& a) { a.budget.base = 0; }));
  EXPECT_TRUE(wrong("budget.base", [](SelectArgs& a) { a.budget.base = -5; }));
  EXPECT_TRUE(wrong("budget.mean_variance", [](SelectArgs& a) { a.budget.mean_variance = kNan; }));
  EXPECT_TRUE(wrong("mask.words_per_query", [](SelectArgs& a) { a.mask.words_per_query = 1; }));
}

TEST(SelectMaskArguments, MistakesAreNamed) {
  IndexerProblem problem(backend::any_dtype(), {{3, 40, 37}, {2, 5, 3}}, 2, 8, ScoreForm::sigmoid,
                         Layout::tokens_first, 1);
  SelectResult result = run_select(problem, kBudget, serial());
  const SelectMaskArgs good = {.dtype = backend::any_dtype(),
                               .indexer = problem.view(),
                               .sequences = problem.batch.view(),
                               .threshold = result.threshold.data(),
                               .tie_cut = result.tie_cut.data(),
                               .mask = result.mask.view()};
  expect_common_refusals("select_mask", good, &backend::select_mask);
  const auto wrong = [&](const std::string& argument, const std::function<void(SelectMaskArgs&)>& change) {
    SelectMaskArgs args = good;
    change(args);
    return refuses("select_mask", argument, [&] { backend::select_mask(args, serial()); });
  };
  EXPECT_TRUE(wrong("threshold", [](SelectMaskArgs& a) { a.threshold = nullptr; }));
  EXPECT_TRUE(wrong("tie_cut", [](SelectMaskArgs& a) { a.tie_cut = nullptr; }));
  EXPECT_TRUE(wrong("mask", [](SelectMaskArgs& a) { a.mask.words = nullptr; }));
  EXPECT_TRUE(wrong("mask.words_per_query", [](SelectMaskArgs& a) { a.mask.words_per_query = 1; }));
}

TEST(IndexScoresArguments, MistakesAreNamed) {
  IndexerProblem problem(backend::any_dtype(), {{3, 40, 37}, {2, 5, 3}}, 2, 8, ScoreForm::sigmoid,
                         Layout::tokens_first, 1);
  Tensor scores(DType::f32, 5, 1, 40);
  const IndexScoresArgs good = {.dtype = backend::any_dtype(),
                                .indexer = problem.view(),
                                .sequences = problem.batch.view(),
                                .scores = scores.data(),
                                .scores_stride = 40};
  expect_common_refusals("index_scores", good, &backend::index_scores);
  const auto wrong = [&](const std::string& argument, const std::function<void(IndexScoresArgs&)>& change) {
    IndexScoresArgs args = good;
    change(args);
    return refuses("index_scores", argument, [&] { backend::index_scores(args, serial()); });
  };
  EXPECT_TRUE(wrong("scores", [](IndexScoresArgs& a) { a.scores = nullptr; }));
  EXPECT_TRUE(wrong("scores_stride", [](IndexScoresArgs& a) { a.scores_stride = 39; }));
}

}  // namespace
}  // namespace gsa::testing
