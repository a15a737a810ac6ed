// The selection beside the oracle's, against plain loops over whole matrices in float64.
#include "eval/oracle.h"

#include <gtest/gtest.h>

#include <cmath>

#include "eval/evaluate.h"
#include "eval/explicit_attention.h"
#include "eval/numbered_documents.h"
#include "model/errors.h"
#include "nn/small_models.h"

namespace gsa::eval {
namespace {

using at::Tensor;
using gsa::testing::expect_error;
using testing::explicit_attention;
using testing::explicit_oracle;
using testing::ExplicitSequence;

constexpr std::int64_t kHeads = 6, kKvHeads = 2, kSize = 8;

// A layer's view made of given tensors, and the selection of its indexer.
struct OracleCase {
  nn::AttentionView view;
  ops::Selection selection;

  OracleTotals measure(const OracleOptions& options = {.queries = 0}) const {
    return compare_with_oracle(view, {selection.k_t, selection.threshold, selection.tie_cut}, options);
  }
  std::vector<ExplicitSequence> sequences() const { return explicit_attention(view, selection.k_t); }
};

void select_keys(OracleCase& c) {
  c.selection = ops::select(*c.view.indexer, *c.view.budget, {c.view.starts, c.view.starts, std::nullopt});
}

OracleCase random_case(const std::vector<std::int64_t>& starts, at::ScalarType type = at::kDouble,
                       const ops::BudgetOptions& budget = {
                           .mode = "inverse", .base = 12, .min = 3, .max = 29, .mean_variance = {}}) {
  torch::manual_seed(7);
  const std::int64_t tokens = starts.back();
  const auto normal = [&](at::IntArrayRef shape) { return torch::randn(shape, at::kDouble).to(type); };
  OracleCase c;
  c.view.starts = torch::tensor(starts, at::kLong);
  c.view.q = normal({tokens, kHeads, kSize}) * 2;
  c.view.k = normal({tokens, kKvHeads, kSize});
  c.view.indexer = ops::IndexerInputs{.q = normal({tokens, 3, 5}),
                                      .k = normal({tokens, 5}),
                                      .w = normal({tokens, 3}).abs(),
                                      .bias = std::nullopt,
                                      .scale = 0.5,
                                      .form = "sigmoid"};
  c.view.budget = budget;
  c.view.budget->mean_variance = torch::full({1}, 0.02, at::kDouble);
  select_keys(c);
  return c;
}

void expect_same(const OracleTotals& measured, const OracleTotals& expected, double tolerance) {
  EXPECT_EQ(measured.queries, expected.queries);
  EXPECT_GT(expected.queries, 0);
  EXPECT_NEAR(measured.kept_mass(), expected.kept_mass(), tolerance);
  EXPECT_NEAR(measured.oracle_mass(), expected.oracle_mass(), tolerance);
  EXPECT_NEAR(measured.recall(), expected.recall(), tolerance);
}

OracleTotals expected_of(const OracleCase& c, std::int64_t wanted = 0) {
  OracleTotals totals;
  for (const ExplicitSequence& sequence : c.sequences()) {
    totals.add(explicit_oracle(sequence, spread_queries(sequence.length, wanted)));
  }
  return totals;
}

// Documents of odd sizes, an empty one among them, and one whose queries all keep everything.
const std::vector<std::int64_t> kPacked = {0, 97, 97, 98, 101, 166, 301};

TEST(Oracle, IsThatOfWholeMatrices) {
  const OracleCase c = random_case(kPacked);
  const OracleTotals measured = c.measure();
  expect_same(measured, expected_of(c), 1e-12);
  EXPECT_LT(measured.kept_over_oracle(), 0.95);  // an indexer that knows nothing of attention
  EXPECT_LT(measured.recall(), 0.9);
  EXPECT_NEAR(measured.kept_over_oracle(), measured.kept / measured.oracle, 1e-12);
  // Budgets differ between queries, and some queries keep everything.
  EXPECT_GT(c.selection.k_t.max().item<int>(), c.selection.k_t[96].item<int>());
  EXPECT_LT(measured.queries, kPacked.back());
}

TEST(Oracle, TakesSixteenBitTypesInFloat32) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const OracleCase c = random_case(kPacked, type);
    expect_same(c.measure(), expected_of(c), 2e-6);
  }
}

TEST(Oracle, DoesNotDependOnTheChunk) {
  const OracleCase c = random_case(kPacked);
  const OracleTotals whole = c.measure();
  for (const std::int64_t bytes : {1, 100'000, 1'000'000}) {  // one query at a time, some, more
    const OracleTotals parts = c.measure({.queries = 0, .chunk_bytes = bytes});
    EXPECT_EQ(parts.queries, whole.queries);
    EXPECT_NEAR(parts.kept, whole.kept, 1e-10);
    EXPECT_NEAR(parts.oracle, whole.oracle, 1e-10);
    EXPECT_NEAR(parts.found, whole.found, 1e-10);
  }
}

TEST(Oracle, OfASampleIsThatOfItsQueries) {
  const OracleCase c = random_case(kPacked);
  for (const std::int64_t wanted : {1, 5, 16, 40, 64, 134, 1000}) {
    const OracleOptions options{.queries = wanted, .chunk_bytes = 300'000};
    const OracleTotals measured = c.measure(options), expected = expected_of(c, wanted);
    expect_same(measured, expected, 1e-12);
    EXPECT_LE(measured.queries, 4 * wanted);
    EXPECT_EQ(measured.kept, c.measure(options).kept);  // the same bits
  }
}

// Positions 0 .. length - 1 as one-hot rows: a query that holds its wanted scores gets exactly these.
void give_scores(OracleCase& c, const Tensor& scores) {
  const std::int64_t length = scores.size(0);
  c.view.indexer = ops::IndexerInputs{.q = scores.unsqueeze(1).contiguous(),
                                      .k = torch::eye(length, at::kDouble),
                                      .w = torch::ones({length, 1}, at::kDouble),
                                      .bias = std::nullopt,
                                      .scale = 1,
                                      .form = "relu"};
  select_keys(c);
}

// Rows [length, length] of dense attention averaged over heads, 0 for later keys.
Tensor averaged_rows(const OracleCase& c) {
  const ExplicitSequence sequence = explicit_attention(c.view, {}).front();
  Tensor rows = torch::zeros({sequence.length, sequence.length}, at::kDouble);
  for (std::int64_t t = 0; t < sequence.length; ++t) {
    const std::vector<double> p = testing::averaged(sequence, static_cast<std::size_t>(t));
    rows[t].narrow(0, 0, t + 1).copy_(torch::tensor(p, at::kDouble));
  }
  return rows;
}

TEST(Oracle, IsReachedByAPerfectIndexer) {
  OracleCase c = random_case({0, 120});
  const Tensor p = averaged_rows(c);
  give_scores(c, p);
  const OracleTotals perfect = c.measure();
  EXPECT_GT(perfect.queries, 80);
  EXPECT_EQ(perfect.recall(), 1);
  EXPECT_EQ(perfect.kept, perfect.oracle);
  EXPECT_EQ(perfect.kept_over_oracle(), 1);
  EXPECT_LT(perfect.oracle_mass(), 1);
  // The worst one there can be.
  give_scores(c, 1 - p);
  const OracleTotals worst = c.measure();
  EXPECT_LT(worst.recall(), perfect.recall() / 2);
  EXPECT_LT(worst.kept_over_oracle(), 0.5);
}

TEST(Oracle, GivesTiesToTheLowerPosition) {
  OracleCase c = random_case({0, 90}, at::kDouble,
                             {.mode = "fixed", .base = 10, .min = 10, .max = 10, .mean_variance = {}});
  // Attention that knows no difference: the oracle has the first ten keys, and so has an indexer of zeros.
  c.view.k.zero_();
  give_scores(c, torch::zeros({90, 90}, at::kDouble));
  const OracleTotals same = c.measure();
  EXPECT_EQ(same.queries, 80);
  EXPECT_EQ(same.recall(), 1);
  EXPECT_EQ(same.kept, same.oracle);
  // One that prefers late keys: of the first ten, query t has those from t - 9 on.
  give_scores(c, torch::arange(1, 91, at::kDouble).expand({90, 90}));
  const OracleTotals late = c.measure();
  double found = 0;
  for (int t = 10; t < 90; ++t) found += std::max(0, 19 - t) / 10.0;
  EXPECT_NEAR(late.found, found, 1e-12);
  EXPECT_NEAR(late.kept_over_oracle(), 1, 1e-12);

  // Two levels: key 3 of every seven stands out, and a threshold that falls among the others.
  c.view.q.fill_(1);
  for (int s = 3; s < 90; s += 7) c.view.k[s].fill_(0.25);
  give_scores(c, torch::rand({90, 90}, at::kDouble));
  expect_same(c.measure(), expected_of(c), 1e-12);
}

TEST(Oracle, CountsKeysWhoseMassVanishes) {
  // One key takes all in float64, so the rest of the oracle's keys are zeros at the lowest positions.
  OracleCase c = random_case({0, 64}, at::kDouble,
                             {.mode = "fixed", .base = 4, .min = 4, .max = 4, .mean_variance = {}});
  c.view.k.zero_();
  c.view.k[2].fill_(1000);
  c.view.q.fill_(1);
  give_scores(c, torch::arange(64, 0, -1, at::kDouble).expand({64, 64}));  // keys 0, 1, 2, 3
  const OracleTotals totals = c.measure();
  EXPECT_EQ(totals.queries, 60);
  EXPECT_EQ(totals.recall(), 1);
  EXPECT_EQ(totals.oracle_mass(), 1);
}

TEST(Oracle, HasNothingToSayOfQueriesThatKeepEverything) {
  const OracleCase c = random_case({0, 3, 5});
  const OracleTotals totals = c.measure();
  EXPECT_EQ(totals.queries, 0);
  EXPECT_TRUE(std::isnan(totals.kept_over_oracle()));
  EXPECT_TRUE(std::isnan(totals.recall()));
  nn::AttentionView bare = c.view;
  bare.indexer.reset();
  const SelectionRows rows{c.selection.k_t, c.selection.threshold, c.selection.tie_cut};
  expect_error([&] { compare_with_oracle(bare, rows); }, {"view", "an indexer at work"});
  expect_error([&] { c.measure({.queries = -1}); }, {"oracle.queries", "0 (all) or more", "-1"});
}

TEST(SpreadQueries, LieEvenly) {
  using Runs = std::vector<QueryRun>;
  EXPECT_EQ(spread_queries(0, 7), Runs{});
  EXPECT_EQ(spread_queries(5, 0), (Runs{{0, 5}}));
  EXPECT_EQ(spread_queries(5, 5), (Runs{{0, 5}}));
  EXPECT_EQ(spread_queries(9, 1), (Runs{{4, 1}}));
  EXPECT_EQ(spread_queries(128, 32), (Runs{{24, 16}, {88, 16}}));
  EXPECT_EQ(spread_queries(40, 39), (Runs{{2, 16}, {22, 16}}));
  EXPECT_EQ(spread_queries(65, 64), (Runs{{0, 64}}));  // neighbours are one run
  for (const std::int64_t length : {17, 100, 1000, 8191, 131'072}) {
    for (const std::int64_t wanted : {1, 3, 16, 100, 512}) {
      std::int64_t count = 0, end = -1;
      double sum = 0;
      for (const QueryRun& run : spread_queries(length, wanted)) {
        EXPECT_GT(run.first, end) << length << ", " << wanted;
        end = run.first + run.count;
        count += run.count;
        sum += static_cast<double>(run.count) * static_cast<double>(run.first + end - 1) / 2;
      }
      EXPECT_LE(end, length);
      EXPECT_LE(count, wanted);
      EXPECT_GT(count, std::min(length, wanted) - 16);
      EXPECT_NEAR(sum / static_cast<double>(count) / static_cast<double>(length), 0.5, 0.1);
    }
  }
}

TEST(EvaluateOracle, SamplesEveryWindowAndCanBeLeftOut) {
  nn::ModelConfig config = nn::testing::small_model(nn::testing::small(nn::AttentionConfig::gsa()));
  config.vocab_size = 258;
  nn::Model model = nn::testing::make_model(config);
  const testing::NumberedDocuments documents({200});
  EvaluateOptions options{.selection = true, .windows = {.length = 100, .stride = 100}};
  const Report all = evaluate(model, documents, options);
  options.oracle_queries = 32;
  const Report some = evaluate(model, documents, options);
  options.oracle = false;
  const Report none = evaluate(model, documents, options);
  EXPECT_EQ(all.oracle_queries, OracleOptions().queries);
  EXPECT_EQ(some.oracle_queries, 32);
  EXPECT_FALSE(none.oracle_queries);
  EXPECT_EQ(none.selection->layers[0].oracle.queries, 0);
  EXPECT_FALSE(none.selection->worst_layer());
  EXPECT_TRUE(std::isnan(none.selection->kept_over_oracle_mean()));
  for (std::size_t i = 0; i < 3; ++i) {
    const OracleTotals& sample = some.selection->layers[i].oracle;
    EXPECT_GT(sample.queries, 32);
    EXPECT_LE(sample.queries, 64);
    EXPECT_NEAR(sample.kept_over_oracle(), all.selection->layers[i].oracle.kept_over_oracle(), 0.1);
    EXPECT_EQ(some.selection->layers[i].kept_mass, all.selection->layers[i].kept_mass);
    EXPECT_EQ(none.selection->layers[i].kept_mass, all.selection->layers[i].kept_mass);
  }
}

TEST(SelectionQuality, NamesTheWorstLayer) {
  SelectionQuality quality;
  quality.layers.resize(4);
  quality.layers[0].oracle = {.kept = 8, .oracle = 10, .found = 9, .queries = 10};
  quality.layers[1].oracle = {.kept = 3, .oracle = 6, .found = 5, .queries = 10};
  quality.layers[3].oracle = {
      .kept = 5, .oracle = 5, .found = 10, .queries = 10};  // layer 2 keeps everything
  EXPECT_EQ(quality.worst_layer(), 1u);
  EXPECT_NEAR(quality.kept_over_oracle_mean(), (0.8 + 0.5 + 1) / 3, 1e-12);
  EXPECT_NEAR(quality.recall_mean(), 0.8, 1e-12);
}

}  // namespace
}  // namespace gsa::eval
