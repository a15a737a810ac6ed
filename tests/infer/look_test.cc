// Where a model looked: against the full forward pass, against gsa::decode, and against plain sums.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engines.h"
#include "infer/attention_look.h"
#include "model/errors.h"

namespace gsa::infer::testing {
namespace {

using gsa::testing::expect_error;
using nn::testing::all_variants;
using nn::testing::four_systems;

double sum(const std::vector<float>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

Look look_at_last(Engine& engine, const Tokens& tokens) {
  Sequence sequence = engine.start();
  engine.prefill({{&sequence, std::span(tokens).first(tokens.size() - 1)}});
  return engine.look(sequence, tokens.back());
}

// exp(q . k / sqrt(d)) of the last query of a pass for each head and key, in plain float64.
std::vector<std::vector<double>> exponentials(const Tensor& q, const Tensor& k) {
  const auto queries = q.accessor<double, 3>();
  const auto keys = k.accessor<double, 3>();
  const std::int64_t group = q.size(1) / k.size(1), last = q.size(0) - 1;
  std::vector<std::vector<double>> result;
  for (std::int64_t h = 0; h < q.size(1); ++h) {
    result.emplace_back();
    for (std::int64_t s = 0; s < k.size(0); ++s) {
      double dot = 0;
      for (std::int64_t i = 0; i < q.size(2); ++i) dot += queries[last][h][i] * keys[s][h / group][i];
      result.back().push_back(std::exp(dot / std::sqrt(static_cast<double>(q.size(2)))));
    }
  }
  return result;
}

double mean_sigmoid(const Tensor& gate) {
  return gate.defined() ? gate[-1].sigmoid().mean().item<double>() : 1;
}

// What the full forward pass says of the last token, layer by layer.
std::vector<LayerLook> expected_looks(nn::Model& model, const Tokens& tokens) {
  std::vector<LayerLook> looks;
  nn::ModelForwardOptions options;
  options.observe_attention = [&](std::int64_t, const nn::AttentionView& view) {
    LayerLook look;
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (view.k_t.defined()) {
      const ops::Layout layout{view.starts, view.starts, std::nullopt};
      const Tensor mask = ops::select_mask(*view.indexer, view.threshold, view.tie_cut, layout)[-1];
      for (std::int64_t s = 0; s < count; ++s) {
        const auto word = static_cast<std::uint32_t>(mask[s / 32].item<std::int32_t>());
        if ((word >> (s % 32) & 1U) != 0) look.positions.push_back(static_cast<std::int32_t>(s));
      }
      look.k_t = view.k_t[-1].item<std::int64_t>();
    } else {
      for (std::int64_t s = 0; s < count; ++s) look.positions.push_back(static_cast<std::int32_t>(s));
      look.k_t = count;
    }
    look.weights.resize(look.positions.size());
    look.kept_mass = 0;
    const auto heads = exponentials(view.q.contiguous(), view.k.contiguous());
    for (const std::vector<double>& head : heads) {
      double kept = 0;
      for (const std::int32_t s : look.positions) kept += head[static_cast<std::size_t>(s)];
      for (std::size_t i = 0; i < look.positions.size(); ++i) {
        const double share = head[static_cast<std::size_t>(look.positions[i])] / kept;
        look.weights[i] += static_cast<float>(share / static_cast<double>(heads.size()));
      }
      look.kept_mass +=
          kept / std::accumulate(head.begin(), head.end(), 0.0) / static_cast<double>(heads.size());
    }
    look.value_gate = mean_sigmoid(view.value_gate);
    look.output_gate = mean_sigmoid(view.output_gate);
    looks.push_back(look);
  };
  const torch::NoGradGuard no_grad;
  model->forward(torch::tensor(at::ArrayRef<std::int64_t>(tokens), torch::kInt64).unsqueeze(0), options);
  return looks;
}

class LookOf : public ::testing::TestWithParam<NamedConfig> {};

TEST_P(LookOf, IsWhatTheFullForwardPassSays) {
  nn::Model model = make_model(GetParam().config);
  torch::manual_seed(9);  // every token once: equal ones could have equal scores
  const Tensor all = torch::randperm(nn::testing::kVocabulary, torch::kInt64);
  const Tokens tokens(all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + all.numel());
  Engine engine(model, {.page_size = 8});
  const Look look = look_at_last(engine, tokens);
  const std::vector<LayerLook> expected = expected_looks(model, tokens);
  EXPECT_EQ(look.position, static_cast<std::int64_t>(tokens.size()) - 1);
  EXPECT_EQ(look.sparse, GetParam().config.sparse);
  ASSERT_EQ(look.layers.size(), expected.size());
  for (std::size_t n = 0; n < expected.size(); ++n) {
    const LayerLook &layer = look.layers[n], &wanted = expected[n];
    EXPECT_EQ(layer.k_t, wanted.k_t) << "layer " << n;
    EXPECT_EQ(layer.positions, wanted.positions) << "layer " << n;
    ASSERT_EQ(layer.weights.size(), wanted.weights.size());
    for (std::size_t i = 0; i < wanted.weights.size(); ++i) {
      EXPECT_NEAR(layer.weights[i], wanted.weights[i], 1e-6) << "layer " << n << ", key " << i;
    }
    EXPECT_NEAR(sum(layer.weights), 1, 1e-6);
    EXPECT_NEAR(layer.kept_mass, wanted.kept_mass, 1e-9) << "layer " << n;
    EXPECT_NEAR(layer.value_gate, wanted.value_gate, 1e-9) << "layer " << n;
    EXPECT_NEAR(layer.output_gate, wanted.output_gate, 1e-9) << "layer " << n;
    EXPECT_TRUE(GetParam().config.sparse || layer.kept_mass == 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, LookOf, ::testing::ValuesIn(all_variants()), nn::testing::name_of_case);

TEST(Look, LeavesTheSequenceAsDecodeDoes) {
  for (const NamedConfig& system : four_systems()) {
    for (const bool int8 : {false, true}) {
      if (int8 && !system.config.sparse) continue;
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        nn::Model model = make_model(system.config, type);
        Engine looking(model, {.page_size = 8, .index_int8 = int8, .count_keys = true});
        Engine plain(model, {.page_size = 8, .index_int8 = int8, .count_keys = true});
        const Tokens prompt = random_tokens(45, 1), rest = random_tokens(12, 2);
        Sequence a = looking.start(), b = plain.start();
        looking.prefill({{&a, prompt}});
        plain.prefill({{&b, prompt}});
        looking.reset_counts();
        plain.reset_counts();
        for (std::size_t i = 0; i < rest.size(); i += 2) {
          const Look look = looking.look(a, rest[i]);
          plain.decode({{&b, rest[i]}});
          double k_t = 0;
          for (const LayerLook& layer : look.layers) k_t += static_cast<double>(layer.k_t);
          looking.reset_counts();
          EXPECT_DOUBLE_EQ(plain.keys_per_query(), k_t / static_cast<double>(look.layers.size()));
          EXPECT_TRUE(torch::equal(looking.decode({{&a, rest[i + 1]}}), plain.decode({{&b, rest[i + 1]}})))
              << system.name << (int8 ? ", 8 bits, " : ", ") << type << ", token " << i;
          looking.reset_counts();
          plain.reset_counts();
        }
        EXPECT_EQ(a.tokens(), b.tokens());
      }
    }
  }
}

TEST(Look, CountsItsKeysAsDecodeDoes) {
  nn::Model model = make_model(four_systems()[3].config);
  Engine engine(model, {.count_keys = true});
  Sequence sequence = engine.start();
  engine.prefill({{&sequence, random_tokens(30)}});
  engine.reset_counts();
  double k_t = 0;
  for (const LayerLook& layer : engine.look(sequence, 4).layers) k_t += static_cast<double>(layer.k_t);
  EXPECT_DOUBLE_EQ(engine.keys_per_query(), k_t / 3);
}

TEST(Look, SeesNothingOfWhatFollows) {
  nn::Model model = make_model(four_systems()[3].config);
  Engine engine(model, {.page_size = 8});
  const Tokens tokens = random_tokens(50);
  Sequence longer = engine.start();
  engine.prefill({{&longer, tokens}});
  Sequence fork = longer.fork(29);  // pages that hold more than the fork
  const Look look = engine.look(fork, tokens[29]);
  const Look alone = look_at_last(engine, Tokens(tokens.begin(), tokens.begin() + 30));
  for (std::size_t n = 0; n < look.layers.size(); ++n) {
    EXPECT_LT(look.layers[n].positions.back(), 30);
    EXPECT_EQ(look.layers[n].positions, alone.layers[n].positions);
    EXPECT_EQ(look.layers[n].weights, alone.layers[n].weights);
    EXPECT_LE(look.layers[n].kept_mass, 1);
    EXPECT_LT(look.layers[n].k_t, 30);
  }
  EXPECT_EQ(longer.length(), 50);
}

TEST(Look, FirstTokenSeesItself) {
  for (const NamedConfig& system : four_systems()) {
    nn::Model model = make_model(system.config);
    Engine engine(model);
    Sequence sequence = engine.start();
    const Look look = engine.look(sequence, 5);
    for (const LayerLook& layer : look.layers) {
      EXPECT_EQ(layer.positions, std::vector<std::int32_t>{0});
      EXPECT_EQ(layer.weights, std::vector<float>{1});
      EXPECT_EQ(layer.kept_mass, 1);
    }
  }
}

TEST(Look, IsDenseBelowDenseBelowAndInTheDensePhase) {
  nn::AttentionConfig config = four_systems()[3].config;
  config.dense_below = 40;
  nn::Model model = make_model(config);
  Engine engine(model), dense(model, {.phase = nn::Phase::dense});
  const Tokens tokens = random_tokens(60);
  Sequence sequence = engine.start();
  engine.prefill({{&sequence, std::span(tokens).first(38)}});
  const Look below = engine.look(sequence, 1), at = engine.look(sequence, 2);
  EXPECT_FALSE(below.sparse);
  EXPECT_EQ(below.layers[1].k_t, 39);
  EXPECT_EQ(below.layers[1].kept_mass, 1);
  EXPECT_TRUE(at.sparse);
  EXPECT_LT(at.layers[1].k_t, 40);
  EXPECT_LT(at.layers[1].kept_mass, 1);
  EXPECT_FALSE(look_at_last(dense, tokens).sparse);
}

TEST(Look, RefusesWhatDecodeRefuses) {
  nn::Model model = make_model(four_systems()[3].config);
  Engine engine(model), other(model);
  Sequence sequence = engine.start(), foreign = other.start();
  expect_error([&] { engine.look(sequence, 37); }, {"tokens", "0 .. 36", "got 37"});
  expect_error([&] { engine.look(foreign, 1); }, {"sequence", "one of this cache"});
  EXPECT_EQ(sequence.length(), 0);
}

// ---- against the operator itself

struct Case {
  at::ScalarType type;
  bool int8;
};

// Attention over the positions with the weights is what gsa::decode gives.
void expect_output_of_decode(const Case& c, std::uint64_t seed) {
  const std::int64_t pages = 200, page = 16, kv_heads = 2, heads = 6, size = 16, index_heads = 3,
                     length = 3000;
  SCOPED_TRACE(concat(c.type, c.int8 ? ", 8 bits" : "", ", seed ", seed));
  torch::manual_seed(seed);
  const auto random = [&](at::IntArrayRef shape) { return torch::randn(shape, at::kDouble).to(c.type); };
  ops::PagedCache cache;
  cache.k = random({pages, page, kv_heads, size});
  cache.v = random({pages, page, kv_heads, size});
  cache.index_k = random({pages, page, size});
  if (c.int8) {
    const ops::QuantizedKeys keys = ops::quantize_index_keys(*cache.index_k);
    cache.index_k = keys.values;
    cache.index_k_scale = keys.scale;
  }
  cache.block_table = torch::randperm(pages, torch::dtype(at::kInt)).unsqueeze(0);
  cache.lengths = torch::full({1}, length, torch::dtype(at::kInt));
  cache.max_length = length;
  const Tensor q = random({1, 1, heads, size});
  ops::IndexerInputs indexer;
  indexer.q = random({1, 1, index_heads, size});
  indexer.w = random({1, 1, index_heads}).sigmoid();
  indexer.bias = random({index_heads});
  indexer.scale = 0.25;
  const ops::BudgetOptions budget{.mode = "inverse",
                                  .base = 1000,
                                  .min = 900,
                                  .max = 2000,
                                  .mean_variance = torch::full({1}, 0.01, at::kDouble)};
  const auto [decoded, selection] = ops::decode_with_selection(q, cache, indexer, budget);
  const std::int64_t k_t = decoded.k_t.item<std::int64_t>();
  ASSERT_LT(k_t, length);

  const Tensor at = torch::arange(length, at::kLong);
  const Tensor slots =
      cache.block_table[0].to(at::kLong).index_select(0, at.floor_divide(page)) * page + at.remainder(page);
  const Tensor positions = selection.positions.flatten().narrow(0, 0, k_t).to(at::kLong);
  const HeadWeights looked = head_weights(q[0][0], cache, slots, positions);
  const Tensor v = cache.v.flatten(0, 1).index_select(0, slots.index_select(0, positions)).to(at::kDouble);
  std::vector<Tensor> out;
  for (std::int64_t h = 0; h < heads; ++h) {
    out.push_back(at::matmul(looked.weights[h], v.select(1, h / (heads / kv_heads))));
  }
  const double tolerance = c.type == at::kDouble  ? 1e-12
                           : c.type == at::kFloat ? 1e-5
                           : c.type == at::kHalf  ? 2e-3
                                                  : 1e-2;
  EXPECT_LT(max_difference(at::stack(out), decoded.out[0][0]), tolerance);
  // The sum over the selected keys alone: another key instead of one of them would show.
  const Tensor keys = cache.k.flatten(0, 1).index_select(0, slots.index_select(0, positions)).to(at::kDouble);
  for (std::int64_t h = 0; h < heads; ++h) {
    const Tensor logits =
        at::matmul(keys.select(1, h / (heads / kv_heads)), q[0][0][h].to(at::kDouble)) / 4.0;
    EXPECT_NEAR(at::logsumexp(logits, 0).item<double>(), decoded.lse[0][0][h].item<double>(), 1e-5);
  }
  EXPECT_TRUE((looked.kept_mass < 1).all().item<bool>());
  EXPECT_NEAR(layer_look(looked, positions).kept_mass, looked.kept_mass.mean().item<double>(), 1e-12);
}

// Long and often enough that a key rounded once more would change places with another.
TEST(Look, WeightsGiveTheOutputOfDecode) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool int8 : {false, true}) {
      for (std::uint64_t seed = 1; seed <= 12; ++seed) expect_output_of_decode({type, int8}, seed);
    }
  }
}

TEST(Look, SaysWhereNothingIsSelected) {
  nn::Model model = make_model(four_systems()[3].config);
  const torch::NoGradGuard no_grad;
  model->model->layers[1]->self_attn->indexer->wk->weight.fill_(std::nan(""));
  Engine engine(model);
  Sequence sequence = engine.start();
  expect_error([&] { engine.look(sequence, 3); }, {"look", "layer 1", "finite"});
}

}  // namespace
}  // namespace gsa::infer::testing
