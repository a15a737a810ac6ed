// Prefill and decode against one full forward pass of the model, for every system and ablation.
#include <algorithm>
#include <cmath>

#include "engines.h"
#include "model/errors.h"

namespace gsa::infer::testing {
namespace {

using gsa::testing::expect_error;
using nn::testing::small_model;

// float64 leaves only the order of sums in matrix products of other shapes.
constexpr double kExact = 1e-11;

class EngineOf : public ::testing::TestWithParam<NamedConfig> {
 protected:
  // An indexer without positions gives two equal tokens equal scores in the first layer, and the last bit of
  // a matrix product decides between them: every token once, then.
  Tokens text(std::int64_t count, std::uint64_t seed = 3) const {
    if (!GetParam().config.sparse || GetParam().config.indexer.rope_fraction > 0)
      return random_tokens(count, seed);
    torch::manual_seed(seed);
    const Tensor all = torch::randperm(nn::testing::kVocabulary, torch::kInt64);
    const auto* first = all.const_data_ptr<std::int64_t>();
    return {first, first + std::min(count, nn::testing::kVocabulary)};
  }
};

TEST_P(EngineOf, EveryChunkingGivesTheFullForwardPass) {
  nn::Model model = make_model(GetParam().config);
  const Tokens tokens = text(83);
  const Tensor expected = full_logits(model, tokens);
  for (const std::int64_t chunk : {1, 7, 64, 1000}) {
    Engine engine(model, {.page_size = 8, .chunk = chunk});
    const std::int64_t prompt = static_cast<std::int64_t>(tokens.size()) - 13;
    EXPECT_LT(max_difference(stepped_logits(engine, tokens, prompt), expected), kExact) << "chunk " << chunk;
  }
}

TEST_P(EngineOf, PackedPromptsOfOtherLengthsThenDecode) {
  nn::Model model = make_model(GetParam().config);
  Engine engine(model, {.page_size = 16, .chunk = 20});
  std::vector<Tokens> texts;
  for (const std::int64_t length : {1, 16, 41, 60, 33}) {
    texts.push_back(text(length + 5, static_cast<std::uint64_t>(length)));
  }
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < texts.size(); ++i) sequences.push_back(engine.start());
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    prompts.push_back({&sequences[i], std::span(texts[i]).first(texts[i].size() - 5)});
  }
  Tensor logits = engine.prefill(prompts).logits;
  ASSERT_EQ(logits.size(0), 5);
  for (std::size_t step = 5; step > 0; --step) {
    std::vector<Step> steps;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const Tokens so_far(texts[i].begin(), texts[i].end() - static_cast<std::ptrdiff_t>(step));
      EXPECT_LT(max_difference(logits[static_cast<std::int64_t>(i)], full_logits(model, so_far)[-1]), kExact)
          << "sequence " << i << ", " << step << " tokens left";
      steps.push_back({&sequences[i], texts[i][texts[i].size() - step]});
    }
    logits = engine.decode(steps);
  }
  EXPECT_EQ(sequences[2].tokens(), texts[2]);
}

INSTANTIATE_TEST_SUITE_P(Variants, EngineOf, ::testing::ValuesIn(nn::testing::all_variants()),
                         nn::testing::name_of_case);

// Our error against float64 is at most twice the one that the full pass in the same type makes.
TEST(Engine, RoundsNoWorseThanTheFullPassInEveryType) {
  for (const NamedConfig& system : nn::testing::four_systems()) {
    nn::Model exact = make_model(system.config);
    const Tokens tokens = random_tokens(90);
    const Tensor expected = full_logits(exact, tokens);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      nn::Model model = make_model(system.config, type);
      Engine engine(exact, {.dtype = type, .chunk = 32});  // converts the weights itself
      const double ours = relative_error(stepped_logits(engine, tokens, 60), expected);
      const double plain = relative_error(full_logits(model, tokens), expected);
      EXPECT_LT(ours, 2 * plain) << system.name << " " << type;
    }
  }
}

TEST(Engine, PagesLeaveNoTraceInTheResult) {
  nn::Model model = make_model(nn::testing::four_systems()[3].config, torch::kFloat32);
  // Lengths at, before and behind the edges of pages.
  for (const std::int64_t length : {7, 8, 9, 16, 31, 32, 33, 64, 65}) {
    const Tokens tokens = random_tokens(length + 10);
    Tensor first;
    for (const std::int64_t page : {8, 16, 32, 64}) {
      Engine engine(model, {.page_size = page});
      const Tensor logits = stepped_logits(engine, tokens, length);
      if (!first.defined()) first = logits;
      EXPECT_TRUE(torch::equal(logits, first)) << length << " tokens, pages of " << page;
    }
  }
}

TEST(Engine, TiedEmbeddingsAndYarn) {
  nn::ModelConfig config = small_model(nn::testing::four_systems()[3].config);
  config.tie_embeddings = true;
  nn::extend(config, 4);
  nn::Model model = make_model(config);
  const Tokens tokens = random_tokens(150);
  Engine engine(model, {.chunk = 50});
  EXPECT_LT(max_difference(stepped_logits(engine, tokens, 140), full_logits(model, tokens)), kExact);
}

TEST(Engine, DensePhaseOfASparseModelKeepsNoIndexerKeys) {
  nn::Model model = make_model(nn::testing::four_systems()[3].config);
  const Tokens tokens = random_tokens(60);
  Engine engine(model, {.phase = nn::Phase::dense}), sparse(model);
  EXPECT_LT(max_difference(stepped_logits(engine, tokens, 50), full_logits(model, tokens, nn::Phase::dense)),
            kExact);
  EXPECT_LT(engine.cache_use().bytes_per_token, sparse.cache_use().bytes_per_token);
  nn::Model standard = make_model(nn::testing::four_systems()[0].config);
  expect_error([&] { Engine(standard, {.phase = nn::Phase::sparse}); }, {"phase", "dense", "sparse"});
}

TEST(Engine, DenseBelowCountsBySequence) {
  nn::AttentionConfig config = nn::testing::four_systems()[3].config;
  config.dense_below = 40;
  nn::Model model = make_model(config);
  Engine engine(model, {.chunk = 16});
  const Tokens shorter = random_tokens(30, 1), longer = random_tokens(50, 2);
  Sequence a = engine.start(), b = engine.start(), c = engine.start();
  const Tensor logits = engine.prefill({{&a, shorter}, {&b, longer}, {&c, shorter}}).logits;
  EXPECT_LT(max_difference(logits[0], full_logits(model, shorter)[-1]), kExact);
  EXPECT_LT(max_difference(logits[1], full_logits(model, longer)[-1]), kExact);
  EXPECT_TRUE(torch::equal(logits[0], logits[2]));
  // A step of both kinds in one batch, with the rows in their places.
  Tokens shorter_next = shorter, longer_next = longer;
  shorter_next.push_back(3);
  longer_next.push_back(4);
  const Tensor next = engine.decode({{&b, 4}, {&a, 3}});
  EXPECT_LT(max_difference(next[0], full_logits(model, longer_next)[-1]), kExact);
  EXPECT_LT(max_difference(next[1], full_logits(model, shorter_next)[-1]), kExact);
}

TEST(Engine, DenseBelowDecidesForAllOfAPrompt) {
  nn::AttentionConfig config = nn::testing::four_systems()[3].config;
  config.dense_below = 40;
  nn::Model model = make_model(config);
  Engine engine(model);
  const Tokens tokens = random_tokens(50, 2);
  const std::span<const std::int64_t> all(tokens);
  const auto read = [&](std::int64_t whole) {
    Sequence sequence = engine.start();
    engine.prefill({{&sequence, all.first(20), whole}});
    return engine.prefill({{&sequence, all.subspan(20), whole}}).logits[0];
  };
  EXPECT_LT(max_difference(read(50), full_logits(model, tokens)[-1]), kExact);
  EXPECT_GT(max_difference(read(0), full_logits(model, tokens)[-1]),
            kExact);  // 20 tokens by themselves are dense
}

TEST(Engine, LogProbabilitiesOfAPrompt) {
  nn::Model model = make_model(nn::testing::four_systems()[3].config);
  Engine engine(model, {.chunk = 9});
  const Tokens first = random_tokens(40, 1), second = {5};
  Sequence a = engine.start(), b = engine.start();
  const PrefillResult result = engine.prefill({{&a, first}, {&b, second}}, {.log_probs = true});
  ASSERT_EQ(result.log_probs.size(), 2u);
  const Tensor targets = torch::tensor(at::ArrayRef<std::int64_t>(first), torch::kInt64).narrow(0, 1, 39);
  const Tensor expected = torch::log_softmax(full_logits(model, first).narrow(0, 0, 39), -1)
                              .gather(1, targets.unsqueeze(1))
                              .squeeze(1);
  EXPECT_LT(max_difference(result.log_probs[0], expected), 1e-6);
  EXPECT_EQ(result.log_probs[1].numel(), 0);
  EXPECT_EQ(result.logits.size(0), 2);
}

TEST(Engine, StopsBetweenChunksAndGoesOn) {
  nn::Model model = make_model(nn::testing::four_systems()[3].config);
  Engine engine(model, {.chunk = 10});
  const Tokens tokens = random_tokens(35);
  Sequence sequence = engine.start();
  std::vector<std::int64_t> seen;
  const PrefillResult stopped =
      engine.prefill({{&sequence, tokens}}, {.progress = [&](auto done, auto total) {
                       EXPECT_EQ(total, 35);
                       seen.push_back(done);
                       return done < 20;
                     }});
  EXPECT_FALSE(stopped.complete);
  EXPECT_FALSE(stopped.logits.defined());
  EXPECT_EQ(seen, (std::vector<std::int64_t>{10, 20}));
  EXPECT_EQ(sequence.tokens(), Tokens(tokens.begin(), tokens.begin() + 20));
  const PrefillResult rest = engine.prefill({{&sequence, std::span(tokens).subspan(20)}});
  EXPECT_TRUE(rest.complete);
  EXPECT_LT(max_difference(rest.logits[0], full_logits(model, tokens)[-1]), kExact);
}

// What a neighbour holds changes no bit, as long as the batch has the same shape; in a batch of another shape
// matrix products may add up in another order.
TEST(Engine, NeighboursChangeNothing) {
  for (const NamedConfig& system : nn::testing::four_systems()) {
    nn::Model model = make_model(system.config, torch::kFloat32);
    Engine engine(model);
    const Tokens tokens = random_tokens(70, 1);
    const auto beside = [&](const std::vector<Tokens>& others) {
      std::vector<Sequence> sequences;
      for (std::size_t i = 0; i <= others.size(); ++i) sequences.push_back(engine.start());
      std::vector<Prompt> prompts = {{&sequences[0], tokens}};
      for (std::size_t i = 0; i < others.size(); ++i) prompts.push_back({&sequences[i + 1], others[i]});
      std::vector<Tensor> rows = {engine.prefill(prompts).logits[0]};
      for (std::int64_t token = 0; token < 8; ++token) {
        std::vector<Step> steps;
        for (std::size_t i = 0; i < sequences.size(); ++i) {
          steps.push_back({&sequences[i], (token + static_cast<std::int64_t>(i) * others[0][0]) % 30});
        }
        steps[0].token = token;
        rows.push_back(engine.decode(steps)[0].clone());
      }
      return torch::stack(rows);
    };
    const Tensor one = beside({random_tokens(20, 7), random_tokens(9, 8)});
    const Tensor two = beside({random_tokens(20, 9), random_tokens(9, 10)});
    EXPECT_TRUE(torch::equal(one, two)) << system.name;
    Sequence alone = engine.start();
    std::vector<Tensor> rows = {engine.prefill({{&alone, tokens}}).logits[0]};
    for (std::int64_t token = 0; token < 8; ++token)
      rows.push_back(engine.decode({{&alone, token}})[0].clone());
    EXPECT_LT(relative_error(torch::stack(rows), one), 1e-5) << system.name;
  }
}

TEST(Engine, CountsTheKeysThatQueriesRead) {
  nn::Model model = make_model(nn::testing::four_systems()[3].config);
  const Tokens tokens = random_tokens(64);
  const Tensor input = torch::tensor(at::ArrayRef<std::int64_t>(tokens), torch::kInt64).unsqueeze(0);
  nn::ModelForwardOptions options;
  options.want_stats = true;
  double expected = 0;
  for (const nn::AttentionStats& layer : model->forward(input, options).stats) expected += layer.k_mean / 3;
  Engine engine(model, {.chunk = 20, .count_keys = true});
  EXPECT_EQ(engine.keys_per_query(), 0);
  stepped_logits(engine, tokens, 50);
  EXPECT_NEAR(engine.keys_per_query(), expected, 1e-9);
  engine.reset_counts();
  EXPECT_EQ(engine.keys_per_query(), 0);
  Engine silent(model);
  expect_error([&] { silent.keys_per_query(); }, {"count_keys"});
}

TEST(Engine, TakesOverAModelsWeights) {
  nn::Model model = make_model(nn::testing::four_systems()[3].config);
  const Tokens tokens = random_tokens(40);
  const Tensor expected = full_logits(model, tokens);
  const nn::Model gone = model;
  Engine engine(std::move(model));
  EXPECT_LT(max_difference(stepped_logits(engine, tokens, 30), expected), kExact);
  for (const auto& item : gone->named_parameters()) {
    if (item.key().find("log_temperature") == std::string::npos) {
      EXPECT_EQ(item.value().numel(), 0) << item.key();
    }
  }
  EXPECT_GT(engine.weight_bytes(), 0);
}

TEST(Engine, ACopyOfTheWeightsIsItsOwn) {
  nn::Model model = make_model(nn::testing::four_systems()[3].config);
  const Tokens tokens = random_tokens(20);
  const Tensor expected = full_logits(model, tokens);
  Engine engine(model);
  {
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : model->parameters()) parameter.zero_();
  }
  EXPECT_LT(max_difference(stepped_logits(engine, tokens, 10), expected), kExact);
}

// Where the budget covers every key, 8-bit keys select what full ones do.
TEST(EightBitKeys, SelectTheSameWhereTheBudgetCoversAll) {
  nn::AttentionConfig config = nn::testing::four_systems()[3].config;
  config.budget = {BudgetMode::inverse, 1000, 1, 1000};  // every query gets the maximum, by its scores
  nn::Model model = make_model(config);
  for (nn::Block& block : model->model->layers) nn::testing::set_mean_variance(block->self_attn, 1e12);
  const Tokens tokens = random_tokens(70);
  Engine engine(model, {.index_int8 = true, .chunk = 30});
  EXPECT_LT(max_difference(stepped_logits(engine, tokens, 60), full_logits(model, tokens)), kExact);
}

TEST(EightBitKeys, AgreementIsReported) {
  for (const NamedConfig& system : nn::testing::four_systems()) {
    nn::Model model = make_model(system.config, torch::kFloat32);
    const SelectionAgreement agreement = index_int8_agreement(model, random_tokens(200));
    if (!system.config.sparse) {
      EXPECT_EQ(agreement.mean, 1);
      EXPECT_EQ(agreement.queries, 0);
      continue;
    }
    EXPECT_GT(agreement.queries, 150);
    EXPECT_GT(agreement.lowest, 0.9) << system.name;
    EXPECT_LT(agreement.mean, 1) << system.name;  // some key near a threshold is exchanged
    EXPECT_LE(agreement.lowest, agreement.mean);
  }
}

TEST(EightBitKeys, ChunksChangeNothing) {
  nn::Model model = make_model(nn::testing::four_systems()[3].config);
  const Tokens tokens = random_tokens(90);
  Engine whole(model, {.index_int8 = true}), cut(model, {.page_size = 8, .index_int8 = true, .chunk = 11});
  EXPECT_LT(max_difference(stepped_logits(whole, tokens, 80), stepped_logits(cut, tokens, 70)), kExact);
  EXPECT_LT(cut.cache_use().bytes_per_token, Engine(model).cache_use().bytes_per_token);
}

TEST(EngineErrors, NameWhatIsWrong) {
  nn::Model model = make_model(nn::testing::four_systems()[3].config);
  Engine engine(model), other(model);
  Sequence sequence = engine.start(), foreign = other.start();
  const Tokens good = {1, 2, 3}, high = {1, nn::testing::kVocabulary}, low = {-1};
  expect_error([&] { engine.prefill({{&sequence, high}}); }, {"tokens", "0 .. 36", "got 37"});
  expect_error([&] { engine.prefill({{&sequence, low}}); }, {"tokens", "got -1"});
  expect_error([&] { engine.prefill({{&sequence, {}}}); }, {"at least one token"});
  expect_error([&] { engine.prefill({{&sequence, good}, {&sequence, good}}); }, {"every sequence once"});
  expect_error([&] { engine.prefill({{nullptr, good}}); }, {"start()", "null"});
  expect_error([&] { engine.prefill({{&foreign, good}}); }, {"one of this cache"});
  expect_error([&] { engine.decode({{&sequence, 99}}); }, {"tokens", "got 99"});
  expect_error([&] { Engine(model, {.page_size = 12}); }, {"page_size", "power of two", "12"});
  expect_error([&] { Engine(model, {.chunk = 0}); }, {"chunk", "at least 1"});
  expect_error([&] { Engine(model, {.dtype = at::kInt}); }, {"dtype", "float32", "Int"});
  expect_error([&] { Engine(model, {.phase = nn::Phase::dense, .index_int8 = true}); }, {"index_int8"});
  EXPECT_EQ(sequence.length(), 0);
  EXPECT_EQ(engine.decode(std::span<const Step>{}).size(0), 0);
  EXPECT_EQ(engine.prefill(std::span<const Prompt>{}).logits.size(0), 0);
}

}  // namespace
}  // namespace gsa::infer::testing
