// Perplexity, sinks and selection quality against plain computations on whole matrices, for every system.
#include "eval/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "eval/explicit_attention.h"
#include "eval/numbered_documents.h"
#include "model/errors.h"
#include "nn/small_models.h"

namespace gsa::eval {
namespace {

using at::Tensor;
using gsa::testing::expect_error;
using nn::testing::four_systems;
using nn::testing::NamedConfig;
using testing::explicit_attention;
using testing::ExplicitSequence;
using testing::NumberedDocuments;

// A model over bytes whose running mean of the variance is known, so that budgets differ between queries.
nn::Model model_of(const nn::AttentionConfig& attention) {
  nn::ModelConfig config = nn::testing::small_model(attention);
  config.vocab_size = 258;
  nn::Model model = nn::testing::make_model(config);
  if (attention.sparse) {
    torch::NoGradGuard no_grad;
    for (auto& layer : model->model->layers) layer->self_attn->indexer->mean_variance.fill_(0.01);
  }
  return model;
}

// Windows of the documents, one at a time, with what each layer worked on.
struct Seen {
  std::vector<std::vector<nn::AttentionView>> views;  // [window][layer]
  std::vector<std::vector<Tensor>> residuals;         // [window][layer + 1]
  double nats = 0;
  std::int64_t predictions = 0;
};

Seen look(nn::Model& model, const Documents& documents, std::int64_t length, std::int64_t stride,
          std::optional<nn::Phase> phase = {}) {
  torch::NoGradGuard no_grad;
  model->eval();
  Seen seen;
  for (std::int64_t d = 0; d < documents.count(); ++d) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(documents.size(d)));
    documents.read(d, 0, ids);
    const std::int64_t last = static_cast<std::int64_t>(ids.size()) - 1;
    std::int64_t counted = 0;  // the last target that counts so far
    for (std::int64_t begin = 0; counted < last; begin += stride) {
      const std::int64_t end = std::min(begin + length, last);
      const Tensor tokens = torch::tensor(ids, at::kLong).narrow(0, begin, end - begin).unsqueeze(0);
      seen.views.emplace_back();
      seen.residuals.emplace_back();
      nn::ModelForwardOptions options{.phase = phase};
      options.observe = [&](std::int64_t, const Tensor& x) { seen.residuals.back().push_back(x); };
      options.observe_attention = [&](std::int64_t, const nn::AttentionView& v) {
        seen.views.back().push_back(v);
      };
      const Tensor hidden = model->forward(tokens, options).hidden.squeeze(0);
      const Tensor log_p = torch::log_softmax(model->logits(hidden), -1);
      for (std::int64_t target = counted + 1; target <= end; ++target) {
        seen.nats -= log_p[target - 1 - begin][ids[static_cast<std::size_t>(target)]].item<double>();
        ++seen.predictions;
      }
      counted = end;
    }
  }
  return seen;
}

class Evaluate : public ::testing::TestWithParam<NamedConfig> {};
INSTANTIATE_TEST_SUITE_P(Systems, Evaluate, ::testing::ValuesIn(four_systems()),
                         [](const auto& system) { return system.param.name; });

const std::vector<std::int64_t> kSizes = {70, 1, 2, 37, 90};

TEST_P(Evaluate, PerplexityIsThatOfPlainSoftmax) {
  nn::Model model = model_of(GetParam().config);
  const NumberedDocuments documents(kSizes);
  for (const auto& [length, stride] : std::map<std::int64_t, std::int64_t>{{64, 64}, {33, 10}, {200, 200}}) {
    const Seen seen = look(model, documents, length, stride);
    const Report report =
        evaluate(model, documents, {.windows = {.length = length, .stride = stride, .batch_tokens = 100}});
    ASSERT_EQ(report.perplexity->predictions, seen.predictions);
    EXPECT_NEAR(report.perplexity->nats, seen.nats, 1e-9 * seen.nats);
    const double loss = seen.nats / static_cast<double>(seen.predictions);
    EXPECT_NEAR(report.perplexity->per_token(), std::exp(loss), 1e-9 * std::exp(loss));
    EXPECT_EQ(report.perplexity->text_bytes, seen.predictions);  // every id is a byte here
    EXPECT_NEAR(report.perplexity->bits_per_byte(), loss / std::log(2), 1e-9 * loss);
    EXPECT_EQ(report.windows, static_cast<std::int64_t>(seen.views.size()));
    EXPECT_FALSE(report.sinks || report.selection);
  }
}

TEST_P(Evaluate, SinksAreThoseOfExplicitMatrices) {
  nn::Model model = model_of(GetParam().config);
  const NumberedDocuments documents(kSizes);
  const Seen seen = look(model, documents, 41, 30);
  const Report report = evaluate(
      model, documents,
      {.perplexity = false, .sinks = true, .windows = {.length = 41, .stride = 30, .batch_tokens = 99}});
  ASSERT_TRUE(report.sinks);
  const nn::AttentionConfig& config = GetParam().config;
  bool left_out = false;
  for (std::size_t layer = 0; layer < 3; ++layer) {
    std::vector<double> first(static_cast<std::size_t>(config.heads));
    double even = 0, value_gate = 0, output_gate = 0;
    std::int64_t queries = 0, gates = 0;
    for (const auto& views : seen.views) {
      const nn::AttentionView& view = views[layer];
      const ExplicitSequence sequence = explicit_attention(view, view.k_t).front();
      for (std::size_t t = 1; t < sequence.selected.size(); ++t) {
        left_out = left_out || !sequence.selected[t].contains(0);
        for (std::size_t h = 0; h < first.size(); ++h) first[h] += testing::first_share(sequence, h, t);
        even += 1 / static_cast<double>(t + 1);
        ++queries;
      }
      if (view.value_gate.defined()) {
        value_gate += view.value_gate.sigmoid().mean().item<double>() * static_cast<double>(sequence.length);
        output_gate +=
            view.output_gate.sigmoid().mean().item<double>() * static_cast<double>(sequence.length);
        gates += sequence.length;
      }
    }
    const LayerSinks& measured = report.sinks->layers[layer];
    for (std::size_t h = 0; h < first.size(); ++h) {
      EXPECT_NEAR(measured.first_token[h], first[h] / static_cast<double>(queries), 1e-9);
    }
    EXPECT_EQ(report.sinks->queries, queries);
    EXPECT_NEAR(report.sinks->even_share, even / static_cast<double>(queries), 1e-12);
    EXPECT_EQ(measured.value_gate.has_value(), gates > 0);
    EXPECT_EQ(measured.output_gate.has_value(), gates > 0);
    if (gates > 0) {
      EXPECT_NEAR(*measured.value_gate, value_gate / static_cast<double>(gates), 1e-6);
      EXPECT_NEAR(*measured.output_gate, output_gate / static_cast<double>(gates), 1e-6);
    }
  }
  EXPECT_EQ(left_out, config.sparse);  // else the test says nothing of queries that leave the first token out

  for (std::size_t index = 0; index < 4; ++index) {
    double largest = 0, squares = 0, values = 0;
    std::int64_t position = 0;
    for (const auto& residuals : seen.residuals) {
      const Tensor x = residuals[index];
      squares += x.square().sum().item<double>();
      values += static_cast<double>(x.numel());
      if (x.abs().max().item<double>() > largest) {
        largest = x.abs().max().item<double>();
        position = std::get<0>(x.abs().max(1)).argmax().item<std::int64_t>();
      }
    }
    // Windows that are read together and alone agree to rounding.
    EXPECT_NEAR(report.sinks->residual[index].largest, largest, 1e-9 * largest);
    EXPECT_NEAR(report.sinks->residual[index].rms, std::sqrt(squares / values), 1e-6);
    EXPECT_EQ(report.sinks->residual[index].position, position);
  }
}

// Unions of tiles and kept mass by counting.
void expect_selection(const SelectionQuality& quality,
                      const std::vector<std::vector<ExplicitSequence>>& layers) {
  ASSERT_EQ(quality.layers.size(), layers.size());
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const std::size_t heads = layers[layer].front().dense.size();
    std::vector<double> kept(heads);
    double kept_of_choosing = 0;
    std::int64_t queries = 0, choosing = 0, keys = 0;
    std::vector<double> union_keys(kTiles.size()), budget(kTiles.size());
    for (const ExplicitSequence& sequence : layers[layer]) {
      for (std::size_t t = 0; t < sequence.selected.size(); ++t) {
        const std::size_t k = sequence.selected[t].size();
        const bool chooses = k < t + 1;
        for (std::size_t h = 0; h < heads; ++h) {
          const double mass = testing::kept(sequence, h, t);
          kept[h] += mass;
          if (chooses) kept_of_choosing += mass / static_cast<double>(heads);
        }
        choosing += chooses ? 1 : 0;
        keys += static_cast<std::int64_t>(k);
        ++queries;
      }
      for (std::size_t i = 0; i < kTiles.size(); ++i) {
        const auto tile = static_cast<std::size_t>(kTiles[i]);
        for (std::size_t t = 0; t + tile <= sequence.selected.size(); t += tile) {
          std::set<std::int64_t> together;
          for (std::size_t j = t; j < t + tile; ++j) {
            together.insert(sequence.selected[j].begin(), sequence.selected[j].end());
            budget[i] += static_cast<double>(sequence.selected[j].size()) / static_cast<double>(tile);
          }
          union_keys[i] += static_cast<double>(together.size());
        }
      }
    }
    const LayerSelection& measured = quality.layers[layer];
    OracleTotals oracle;
    for (const ExplicitSequence& sequence : layers[layer]) {
      oracle.add(testing::explicit_oracle(sequence, {{0, sequence.length}}));
    }
    EXPECT_EQ(measured.oracle.queries, choosing);
    EXPECT_NEAR(measured.oracle.kept_mass(), oracle.kept_mass(), 1e-9);
    EXPECT_NEAR(measured.oracle.kept_mass(), measured.kept_mass_of_choosing, 1e-9);
    EXPECT_NEAR(measured.oracle.oracle_mass(), oracle.oracle_mass(), 1e-9);
    EXPECT_NEAR(measured.oracle.recall(), oracle.recall(), 1e-9);
    EXPECT_LT(measured.oracle.kept_over_oracle(), 1) << "the indexer knows best: the test says nothing";
    EXPECT_GT(choosing, 0) << "nothing is left out: the test says nothing";
    for (std::size_t h = 0; h < heads; ++h) {
      EXPECT_NEAR(measured.kept_mass[h], kept[h] / static_cast<double>(queries), 1e-9);
    }
    EXPECT_NEAR(measured.kept_mass_of_choosing, kept_of_choosing / static_cast<double>(choosing), 1e-9);
    EXPECT_NEAR(measured.choosing, static_cast<double>(choosing) / static_cast<double>(queries), 1e-12);
    EXPECT_NEAR(measured.k_t.mean(), static_cast<double>(keys) / static_cast<double>(queries), 1e-9);
    EXPECT_EQ(measured.k_t.total(), queries);
    for (std::size_t i = 0; i < kTiles.size(); ++i) {
      if (budget[i] == 0) {
        EXPECT_TRUE(std::isnan(measured.union_over_k[i]));
      } else {
        EXPECT_NEAR(measured.union_over_k[i], union_keys[i] / budget[i], 1e-9);
      }
    }
  }
}

std::vector<std::vector<ExplicitSequence>> by_layer(const Seen& seen, const std::vector<Tensor>& k_t = {}) {
  std::vector<std::vector<ExplicitSequence>> layers(3);
  for (std::size_t w = 0; w < seen.views.size(); ++w) {
    for (std::size_t layer = 0; layer < 3; ++layer) {
      const nn::AttentionView& view = seen.views[w][layer];
      const Tensor counts = view.k_t.defined() ? view.k_t : k_t[w * 3 + layer];
      layers[layer].push_back(explicit_attention(view, counts).front());
    }
  }
  return layers;
}

TEST_P(Evaluate, SelectionIsThatOfExplicitMatrices) {
  nn::Model model = model_of(GetParam().config);
  const NumberedDocuments documents(kSizes);
  EvaluateOptions options{
      .perplexity = false, .selection = true, .windows = {.length = 79, .stride = 40, .batch_tokens = 120}};
  if (!GetParam().config.sparse) {
    expect_error([&] { evaluate(model, documents, options); }, {"selection", "a model without an indexer"});
    options.phase = nn::Phase::sparse;
    expect_error([&] { evaluate(model, documents, options); }, {"phase", "without an indexer", "sparse"});
    return;
  }
  const Report report = evaluate(model, documents, options);
  expect_selection(*report.selection, by_layer(look(model, documents, 79, 40)));
  options.phase = nn::Phase::dense;
  expect_error([&] { evaluate(model, documents, options); }, {"selection", "phase dense"});
}

TEST_P(Evaluate, WarmupMeasuresTheSelectionThatWouldBe) {
  nn::Model model = model_of(GetParam().config);
  const NumberedDocuments documents(kSizes);
  if (!GetParam().config.sparse) {
    expect_error([&] { evaluate(model, documents, {.phase = nn::Phase::warmup}); },
                 {"phase", "without an indexer", "warmup"});
    return;
  }
  const Report report = evaluate(model, documents,
                                 {.sinks = true,
                                  .selection = true,
                                  .phase = nn::Phase::warmup,
                                  .windows = {.length = 70, .stride = 70, .batch_tokens = 300}});
  const Seen seen = look(model, documents, 70, 70, nn::Phase::warmup);
  EXPECT_NEAR(report.perplexity->nats, look(model, documents, 70, 70, nn::Phase::dense).nats, 1e-6);
  std::vector<Tensor> k_t;
  double first = 0;
  std::int64_t queries = 0;
  for (const auto& views : seen.views) {
    for (const nn::AttentionView& view : views) {
      const ops::Layout layout{view.starts, view.starts, std::nullopt};
      k_t.push_back(ops::select(*view.indexer, *view.budget, layout).k_t);
    }
    const ExplicitSequence all = explicit_attention(views[0], {}).front();
    for (std::size_t t = 1; t < all.selected.size(); ++t, ++queries) first += all.dense[1][t][0];
  }
  expect_selection(*report.selection, by_layer(seen, k_t));
  // Attention itself is dense: what the indexer would leave out is still paid.
  EXPECT_NEAR(report.sinks->layers[0].first_token[1], first / static_cast<double>(queries), 1e-9);
}

TEST(EvaluateMixed, SequencesBelowDenseBelowSelectAllTheySee) {
  nn::AttentionConfig config = nn::testing::small(nn::AttentionConfig::gsa());
  config.dense_below = 60;
  nn::Model model = model_of(config);
  const NumberedDocuments documents({100, 40, 65, 30});
  const Report report = evaluate(
      model, documents,
      {.sinks = true, .selection = true, .windows = {.length = 128, .stride = 128, .batch_tokens = 1000}});
  ASSERT_EQ(report.windows, 4);
  const Seen seen = look(model, documents, 128, 128);
  EXPECT_NEAR(report.perplexity->nats, seen.nats, 1e-9 * seen.nats);
  EXPECT_EQ(seen.views[1][0].k_t[38].item<std::int64_t>(), 39);
  expect_selection(*report.selection, by_layer(seen));
  std::int64_t dense_queries = 39 + 29, all = 99 + 39 + 64 + 29;
  EXPECT_LT(report.selection->layers[0].choosing,
            static_cast<double>(all - dense_queries) / static_cast<double>(all));
}

TEST(EvaluateModel, StaysAsItWas) {
  nn::Model model = model_of(nn::testing::small(nn::AttentionConfig::gsa()));
  model->train();
  const auto before = nn::testing::mean_variances(model);
  const NumberedDocuments documents({100});
  const Report a = evaluate(model, documents, {.sinks = true, .selection = true});
  EXPECT_TRUE(model->is_training());
  const auto after = nn::testing::mean_variances(model);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].equal(after[i]));
  const Report b = evaluate(model, documents, {.sinks = true, .selection = true});
  EXPECT_EQ(a.perplexity->nats, b.perplexity->nats);
  EXPECT_EQ(a.sinks->layers[1].first_token, b.sinks->layers[1].first_token);
  EXPECT_EQ(a.selection->layers[1].kept_mass, b.selection->layers[1].kept_mass);
  EXPECT_EQ(a.selection->layers[1].oracle.oracle, b.selection->layers[1].oracle.oracle);
}

TEST(EvaluateNotFinite, StaysVisible) {
  nn::Model model = model_of(nn::testing::small(nn::AttentionConfig::gsa()));
  {
    torch::NoGradGuard no_grad;
    model->model->embed_tokens->weight[30].fill_(std::nan(""));
  }
  const NumberedDocuments documents({100});  // the id 30 stands in the first of four windows
  const Report report = evaluate(
      model, documents,
      {.sinks = true, .selection = true, .windows = {.length = 40, .stride = 20, .batch_tokens = 40}});
  EXPECT_TRUE(std::isnan(report.perplexity->per_token()));
  EXPECT_TRUE(std::isnan(report.sinks->largest()));
  EXPECT_TRUE(std::isnan(report.sinks->layers[0].first_token[2]));
  EXPECT_TRUE(std::isnan(report.selection->layers[0].kept_mass[2]));
  EXPECT_TRUE(std::isnan(report.selection->layers[0].oracle.kept_mass()));
  EXPECT_TRUE(std::isnan(report.selection->layers[0].oracle.oracle_mass()));
  EXPECT_TRUE(std::isnan(report.selection->layers[0].oracle.recall()));
  EXPECT_TRUE(std::isnan(report.selection->kept_over_oracle_mean()));
  EXPECT_EQ(report.selection->worst_layer(), 0u);
  EXPECT_EQ(report.selection->layers[0].k_t.min(), 0);  // such a query selects nothing
}

TEST(EvaluateErrors, SayWhatIsExpected) {
  nn::ModelConfig config = nn::testing::small_model(nn::testing::small(nn::AttentionConfig::gsa()));
  nn::Model model = nn::testing::make_model(config);  // 37 ids
  const NumberedDocuments documents({20});
  expect_error([&] { evaluate(model, documents); }, {"numbers", "at most 37", "258"});
  nn::Model bytes = model_of(config.attention);
  expect_error([&] { evaluate(bytes, documents, {.perplexity = false}); },
               {"perplexity, sinks, selection or agreement"});
  expect_error([&] { evaluate(bytes, documents, {.windows = {.length = 8, .stride = 9}}); }, {"stride"});
  expect_error([&] { evaluate(bytes, documents, {.selection = true, .oracle_queries = -1}); },
               {"oracle_queries", "0 (all) or more", "-1"});
}

TEST(EvaluateProgress, TellsHowFarAndCanStop) {
  nn::Model model = model_of(nn::testing::small(nn::AttentionConfig::standard()));
  const NumberedDocuments documents({100});
  std::vector<std::int64_t> told;
  EvaluateOptions options{.windows = {.length = 25, .stride = 25, .batch_tokens = 25},
                          .progress = [&](std::int64_t done, std::int64_t total) {
                            EXPECT_EQ(total, 99);
                            told.push_back(done);
                          }};
  evaluate(model, documents, options);
  EXPECT_EQ(told, (std::vector<std::int64_t>{25, 50, 75, 99}));
  options.progress = [](std::int64_t, std::int64_t) { throw std::runtime_error("enough"); };
  model->train();
  EXPECT_THROW(evaluate(model, documents, options), std::runtime_error);
  EXPECT_TRUE(model->is_training());
}

TEST(Masks, DoNotDependOnTheChunk) {
  nn::Model model = model_of(nn::testing::small(nn::AttentionConfig::gsa()));
  torch::NoGradGuard no_grad;
  torch::manual_seed(5);
  const Tensor tokens = torch::randint(0, 256, {700}, at::kLong);
  const Tensor starts = torch::tensor({0, 0, 300, 301, 700}, at::kLong);
  std::vector<nn::AttentionView> views;
  model->eval();
  model->forward(
      tokens, {.cu_seqlens = starts, .observe_attention = [&](std::int64_t, const nn::AttentionView& view) {
                 views.push_back(view);
               }});
  const SelectionRows rows{views[1].k_t, views[1].threshold, views[1].tie_cut};
  const MaskFacts whole = read_masks(starts, *views[1].indexer, rows);
  const MaskFacts parts = read_masks(starts, *views[1].indexer, rows, 1);  // 64 queries at a time
  EXPECT_TRUE(whole.has_first.equal(parts.has_first));
  for (std::size_t i = 0; i < kTiles.size(); ++i) {
    EXPECT_EQ(whole.unions[i].keys, parts.unions[i].keys);
    EXPECT_EQ(whole.unions[i].tiles, 300 / kTiles[i] + 399 / kTiles[i]);
    EXPECT_EQ(parts.unions[i].tiles, whole.unions[i].tiles);
    EXPECT_NEAR(whole.unions[i].budget, parts.unions[i].budget, 1e-9);
  }
}

TEST(KeyCounts, GiveExactQuantiles) {
  KeyCounts counts;
  counts.add(torch::tensor({3, 1, 4, 1, 5}, at::kInt));
  counts.add(torch::tensor({9, 2, 6, 5, 3}, at::kInt));
  EXPECT_EQ(counts.total(), 10);
  EXPECT_EQ(counts.min(), 1);
  EXPECT_EQ(counts.max(), 9);
  EXPECT_EQ(counts.quantile(0.5), 3);
  EXPECT_EQ(counts.quantile(0.9), 6);
  EXPECT_EQ(counts.quantile(0.91), 9);
  EXPECT_NEAR(counts.mean(), 3.9, 1e-12);
  expect_error([] { KeyCounts().quantile(0.5); }, {"k_t", "at least one query"});
}

}  // namespace
}  // namespace gsa::eval
