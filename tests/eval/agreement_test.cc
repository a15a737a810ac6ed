// How far layers agree on keys: sets written down by hand, plain loops, and every way to part layers.
#include "eval/agreement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "eval/charts.h"
#include "eval/evaluate.h"
#include "eval/explicit_attention.h"
#include "eval/numbered_documents.h"
#include "eval/report_json.h"
#include "model/errors.h"
#include "nn/small_models.h"
#include "plot/xml.h"

namespace gsa::eval {
namespace {

using at::Tensor;
using gsa::testing::expect_error;

// A layer whose indexer's scores and whose attention's logits are these numbers, by position, for every query.
struct PlannedLayer {
  nn::AttentionView view;
  ops::Selection selection;
};

PlannedLayer planned_layer(const std::vector<double>& scores, const std::vector<double>& logits,
                           std::int64_t k) {
  const auto tokens = static_cast<std::int64_t>(scores.size());
  const auto column = [&](const std::vector<double>& values) {
    return torch::tensor(at::ArrayRef<double>(values), at::kDouble).unsqueeze(1);
  };
  PlannedLayer layer;
  nn::AttentionView& view = layer.view;
  view.starts = torch::tensor({std::int64_t{0}, tokens}, at::kLong);
  view.q = torch::zeros({tokens, 1, 2}, at::kDouble);
  view.q.select(2, 0).fill_(1);
  view.k = torch::zeros({tokens, 1, 2}, at::kDouble);
  view.k.select(2, 0).copy_(column(logits));
  view.indexer = ops::IndexerInputs{.q = torch::ones({tokens, 1, 1}, at::kDouble),
                                    .k = column(scores),
                                    .w = torch::ones({tokens, 1}, at::kDouble),
                                    .bias = std::nullopt,
                                    .scale = 1,
                                    .form = "relu"};
  view.budget = ops::BudgetOptions{.mode = "fixed", .base = k, .min = 1, .max = k, .mean_variance = {}};
  layer.selection = ops::select(*view.indexer, *view.budget, {view.starts, view.starts, std::nullopt});
  return layer;
}

Agreement agreement_of(const std::vector<PlannedLayer>& layers, const AgreementOptions& options = {}) {
  AgreementMeter meter(std::ssize(layers), options);
  for (std::size_t n = 0; n < layers.size(); ++n) {
    const ops::Selection& s = layers[n].selection;
    meter.see_attention(static_cast<std::int64_t>(n), layers[n].view, {s.k_t, s.threshold, s.tie_cut});
  }
  return meter.result();
}

TEST(Agreement, OfSetsByHand) {
  // Two keys a query; the third and the fourth query choose. The first layer selects 0 1, 0 1 and would best
  // select 0 1, 0 1; the second 1 2, 2 3 and best 0 2, 0 3. The third has three keys: 1 2 3 at the fourth
  // query, best 0 1 2.
  const std::vector<PlannedLayer> layers = {planned_layer({4, 3, 2, 1}, {4, 3, 2, 1}, 2),
                                            planned_layer({1, 2, 3, 4}, {9, 1, 2, 3}, 2),
                                            planned_layer({1, 2, 3, 4}, {4, 3, 2, 1}, 3)};
  for (const std::int64_t chunk_bytes : {std::int64_t{1}, std::int64_t{1} << 28}) {
    const Agreement agreement = agreement_of(layers, {.chunk_bytes = chunk_bytes});
    EXPECT_EQ(agreement.queries, (std::vector<std::vector<std::int64_t>>{{2, 2, 1}, {2, 2, 1}, {1, 1, 1}}));
    const LayerPairs selections = {{1, 1.0 / 4, 1.0 / 3}, {1.0 / 4, 1, 2.0 / 3}, {1.0 / 2, 1, 1}};
    const LayerPairs oracles = {{1, 1.0 / 2, 2.0 / 3}, {1.0 / 2, 1, 1.0 / 3}, {1, 1.0 / 2, 1}};
    for (std::size_t a = 0; a < 3; ++a) {
      for (std::size_t b = 0; b < 3; ++b) {
        EXPECT_DOUBLE_EQ(agreement.selections[a][b], selections[a][b]) << a << ' ' << b;
        EXPECT_DOUBLE_EQ(agreement.oracles[a][b], oracles[a][b]) << a << ' ' << b;
      }
    }
    EXPECT_DOUBLE_EQ(Agreement::neighbours_mean(agreement.selections), (1.0 / 4 + 2.0 / 3) / 2);
  }
}

TEST(Agreement, OfIdenticalLayersIsOne) {
  const PlannedLayer layer = planned_layer({3, 1, 4, 1, 5, 9, 2, 6, 5, 3}, {2, 7, 1, 8, 2, 8, 1, 8, 2, 8}, 3);
  const Agreement agreement = agreement_of({layer, layer, layer});
  for (std::size_t a = 0; a < 3; ++a) {
    for (std::size_t b = 0; b < 3; ++b) {
      EXPECT_EQ(agreement.selections[a][b], 1);
      EXPECT_EQ(agreement.oracles[a][b], 1);
      EXPECT_EQ(agreement.queries[a][b], 7);
    }
  }
}

TEST(Agreement, IsNotANumberWhereNoQueryChooses) {
  const PlannedLayer layer = planned_layer({1, 2, 3}, {1, 2, 3}, 3);
  const Agreement agreement = agreement_of({layer, layer});
  EXPECT_TRUE(std::isnan(agreement.selections[0][1]) && std::isnan(agreement.oracles[1][0]));
  EXPECT_EQ(agreement.queries[0][1], 0);
  EXPECT_TRUE(std::isnan(Agreement::neighbours_mean(agreement.selections)));
  expect_error([&] { choose_leaders(agreement.selections, 1); }, {"'found'", "no query leaves keys out"});
}

// A model of its own selections: sets rebuilt as whole matrices.
TEST(Agreement, OfAModelIsThatOfWholeMatrices) {
  nn::ModelConfig config = nn::testing::small_model(nn::testing::small(nn::AttentionConfig::gsa()));
  config.vocab_size = 258;
  for (const nn::Phase phase : {nn::Phase::sparse, nn::Phase::warmup}) {
    nn::Model model = nn::testing::make_model(config);
    model->eval();
    const testing::NumberedDocuments documents({70, 1, 41});
    const Report report = evaluate(model, documents,
                                   {.perplexity = false,
                                    .agreement = true,
                                    .agreement_queries = 0,
                                    .phase = phase,
                                    .windows = {.length = 70, .batch_tokens = 60}});
    ASSERT_TRUE(report.agreement);
    EXPECT_FALSE(report.selection);
    LayerPairs sums(3, std::vector<double>(3));
    std::vector<std::vector<std::int64_t>> counts(3, std::vector<std::int64_t>(3));
    for (const std::int64_t document : {0, 2}) {
      std::vector<std::int64_t> ids(static_cast<std::size_t>(documents.size(document)));
      documents.read(document, 0, ids);
      const std::int64_t tokens = std::ssize(ids) - 1;
      std::vector<Tensor> masks;
      nn::ModelForwardOptions options{.phase = phase};
      options.observe_attention = [&](std::int64_t, const nn::AttentionView& view) {
        const Tensor words = ops::select(*view.indexer, *view.budget, {view.starts, view.starts, {}}).mask;
        const Tensor bits =
            words.unsqueeze(-1).bitwise_right_shift(torch::arange(32, at::kInt)).bitwise_and(1);
        masks.push_back(bits.flatten(1).narrow(1, 0, tokens).to(at::kBool));
      };
      const torch::NoGradGuard no_grad;
      model->forward(torch::tensor(ids, at::kLong).narrow(0, 0, tokens).unsqueeze(0), options);
      for (std::size_t a = 0; a < 3; ++a) {
        for (std::size_t b = 0; b < 3; ++b) {
          for (std::int64_t t = 0; t < tokens; ++t) {
            const auto size_a = masks[a][t].sum().item<std::int64_t>();
            const auto size_b = masks[b][t].sum().item<std::int64_t>();
            if (size_a > t || size_b > t) continue;
            const Tensor common = masks[a][t].logical_and(masks[b][t]).sum();
            sums[a][b] += common.item<double>() / static_cast<double>(size_b);
            ++counts[a][b];
          }
        }
      }
    }
    for (std::size_t a = 0; a < 3; ++a) {
      for (std::size_t b = 0; b < 3; ++b) {
        EXPECT_EQ(report.agreement->queries[a][b], counts[a][b]);
        EXPECT_NEAR(report.agreement->selections[a][b], sums[a][b] / static_cast<double>(counts[a][b]),
                    1e-12);
        EXPECT_EQ(report.agreement->oracles[a][b] == 1, a == b);
      }
    }
    // As JSON and as charts.
    const OrderedJson json = OrderedJson::parse(to_json(report).dump())["agreement"];
    EXPECT_EQ(json["queries_of_window"], 0);
    EXPECT_EQ(json["selections"][1][2].get<double>(), report.agreement->selections[1][2]);
    EXPECT_EQ(json["oracles"][2][0].get<double>(), report.agreement->oracles[2][0]);
    const std::vector<NamedChart> charts = charts_of({report});
    ASSERT_EQ(charts.size(), 2u);
    EXPECT_EQ(charts[0].name, "agreement");
    for (const NamedChart& chart : charts) EXPECT_EQ(gsa::testing::read_xml(chart.svg).error, "");
  }
}

// Layers that share a selection agree entirely; their attention need not.
TEST(Agreement, OfAGroupIsOneInItsSelections) {
  nn::ModelConfig config = nn::testing::small_model(nn::testing::small(nn::AttentionConfig::gsa()));
  config.vocab_size = 258;
  config.index_layers = {0, 2};
  nn::Model model = nn::testing::make_model(config);
  const testing::NumberedDocuments documents({70});
  const Report report = evaluate(
      model, documents,
      {.perplexity = true, .sinks = true, .selection = true, .agreement = true, .windows = {.length = 64}});
  EXPECT_EQ(report.agreement->selections[0][1], 1);
  EXPECT_EQ(report.agreement->selections[1][0], 1);
  EXPECT_LT(report.agreement->selections[1][2], 1);
  EXPECT_LT(report.agreement->oracles[0][1], 1);
  const auto& layers = report.selection->layers;
  EXPECT_EQ(layers[0].k_t.counts(), layers[1].k_t.counts());
  EXPECT_NE(layers[0].kept_mass, layers[1].kept_mass);
}

// A bit a key, layer, query and kind of set.
TEST(Agreement, MemoryOfTheSets) {
  EXPECT_EQ(agreement_bytes(3, 128, 64, {.queries = 16}), 3 * 2 * 16 * 2 * 8);
  EXPECT_EQ(agreement_bytes(3, 128, 64, {.queries = 0}), 3 * 2 * 64 * 2 * 8);
  EXPECT_EQ(agreement_bytes(3, 65, 65, {.queries = 100}), 3 * 65 * 2 * 9);
}

TEST(ChooseLeaders, FindsTheBestOfAllGroups) {
  torch::manual_seed(5);
  constexpr std::int64_t kLayers = 8;
  for (int trial = 0; trial < 20; ++trial) {
    const Tensor values = torch::rand({kLayers, kLayers}, at::kDouble);
    LayerPairs found(kLayers);
    for (std::int64_t i = 0; i < kLayers; ++i) {
      for (std::int64_t j = 0; j < kLayers; ++j) {
        found[static_cast<std::size_t>(i)].push_back(values[i][j].item<double>());
      }
    }
    const auto worth = [&](const std::vector<std::int64_t>& leaders) {
      double sum = 0;
      for (std::int64_t layer = 0, group = -1; layer < kLayers; ++layer) {
        const bool leads =
            group + 1 < std::ssize(leaders) && leaders[static_cast<std::size_t>(group + 1)] == layer;
        if (leads) {
          ++group;
        } else {
          sum += found[static_cast<std::size_t>(leaders[static_cast<std::size_t>(group)])]
                      [static_cast<std::size_t>(layer)];
        }
      }
      return sum;
    };
    for (std::int64_t count = 1; count <= kLayers; ++count) {
      double best = -1;
      for (unsigned set = 1; set < 1u << kLayers; set += 2) {  // layer 0 leads
        std::vector<std::int64_t> leaders;
        for (std::int64_t layer = 0; layer < kLayers; ++layer) {
          if (set >> layer & 1) leaders.push_back(layer);
        }
        if (std::ssize(leaders) == count) best = std::max(best, worth(leaders));
      }
      const std::vector<std::int64_t> chosen = choose_leaders(found, count);
      ASSERT_EQ(std::ssize(chosen), count);
      EXPECT_EQ(chosen.front(), 0);
      EXPECT_NEAR(worth(chosen), best, 1e-12);
    }
  }
}

TEST(ChooseLeaders, OfEqualOnesTheLowest) {
  const LayerPairs even(4, std::vector<double>(4, 0.5));
  EXPECT_EQ(choose_leaders(even, 2), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(choose_leaders(even, 4), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(choose_leaders(even, 1), std::vector<std::int64_t>{0});
  expect_error([&] { choose_leaders(even, 5); }, {"'leaders'", "1 .. 4", "got 5"});
  expect_error([&] { choose_leaders(even, 0); }, {"'leaders'", "got 0"});
}

}  // namespace
}  // namespace gsa::eval
