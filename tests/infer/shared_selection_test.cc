// Layers that share a selection: prefill and decode against one full forward pass, what followers attend to, what
// their cache holds. And budgets that cover every key, whose prompts run dense.
#include "core/file.h"
#include "engines.h"
#include "infer/network.h"
#include "model/errors.h"
#include "model/temporary_folder.h"

namespace gsa::infer::testing {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;

constexpr double kSharedExact = 1e-11;  // float64: the order of sums in matrix products of other shapes

// Four layers, and which of them select.
const std::vector<std::vector<std::int64_t>> kGroups = {{0, 2}, {0}, {0, 1}, {0, 3}};

nn::ModelConfig sharing(std::vector<std::int64_t> index_layers, nn::AttentionConfig attention) {
  nn::ModelConfig config = nn::testing::small_model(attention);
  config.layers = 4;
  config.index_layers = std::move(index_layers);
  return config;
}

nn::ModelConfig sharing(std::vector<std::int64_t> index_layers) {
  return sharing(std::move(index_layers), nn::testing::four_systems()[3].config);
}

// Every token once, as often as it goes: equal tokens could have equal scores.
Tokens different_tokens(std::int64_t count) {
  torch::manual_seed(7);
  const Tensor all = torch::cat({torch::randperm(nn::testing::kVocabulary, torch::kInt64),
                                 torch::randperm(nn::testing::kVocabulary, torch::kInt64)});
  const auto* first = all.const_data_ptr<std::int64_t>();
  return {first, first + count};
}

TEST(SharedSelection, EveryChunkingGivesTheFullForwardPass) {
  for (const std::vector<std::int64_t>& groups : kGroups) {
    nn::Model model = make_model(sharing(groups));
    const Tokens tokens = different_tokens(74);
    const Tensor expected = full_logits(model, tokens);
    for (const std::int64_t chunk : {1, 7, 64, 1000}) {
      Engine engine(model, {.page_size = 8, .chunk = chunk});
      EXPECT_LT(max_difference(stepped_logits(engine, tokens, 60), expected), kSharedExact)
          << concat(groups.size(), " of 4 layers, chunk ", chunk);
    }
    Engine dense(model, {.phase = nn::Phase::dense});
    EXPECT_LT(max_difference(stepped_logits(dense, tokens, 60), full_logits(model, tokens, nn::Phase::dense)),
              kSharedExact);
  }
}

TEST(SharedSelection, InEverySparseVariant) {
  for (const NamedConfig& variant : nn::testing::all_variants()) {
    if (!variant.config.sparse) continue;
    nn::Model model = make_model(sharing({0, 2}, variant.config));
    Tokens tokens = different_tokens(74);
    if (variant.config.indexer.rope_fraction == 0) tokens.resize(nn::testing::kVocabulary);
    Engine engine(model, {.chunk = 13});
    const auto prompt = static_cast<std::int64_t>(tokens.size()) - 9;
    EXPECT_LT(max_difference(stepped_logits(engine, tokens, prompt), full_logits(model, tokens)),
              kSharedExact)
        << variant.name;
  }
}

TEST(SharedSelection, RoundsNoWorseThanTheFullPassInEveryType) {
  const nn::ModelConfig config = sharing({0, 2});
  nn::Model exact = make_model(config);
  const Tokens tokens = random_tokens(90);
  const Tensor expected = full_logits(exact, tokens);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    nn::Model model = make_model(config, type);
    Engine engine(exact, {.dtype = type, .chunk = 32});
    EXPECT_LT(relative_error(stepped_logits(engine, tokens, 60), expected),
              2 * relative_error(full_logits(model, tokens), expected))
        << type;
  }
}

TEST(SharedSelection, PackedPromptsThenDecodeInOneBatch) {
  nn::Model model = make_model(sharing({0, 2}));
  Engine engine(model, {.page_size = 16, .chunk = 20, .count_keys = true});
  const std::vector<Tokens> texts = {random_tokens(3, 1), random_tokens(41, 2), random_tokens(26, 3)};
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < texts.size(); ++i) sequences.push_back(engine.start());
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < texts.size(); ++i) prompts.push_back({&sequences[i], texts[i]});
  const Tensor read = engine.prefill(prompts).logits.clone();
  const Tensor next = engine.decode({{&sequences[0], 5}, {&sequences[1], 6}, {&sequences[2], 7}});
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    Tokens longer = texts[i];
    longer.push_back(5 + row);
    const Tensor expected = full_logits(model, longer);
    EXPECT_LT(max_difference(read[row], expected[-2]), kSharedExact) << i;
    EXPECT_LT(max_difference(next[row], expected[-1]), kSharedExact) << i;
  }
  EXPECT_GT(engine.keys_per_query(), 3);
  EXPECT_LT(engine.keys_per_query(), 20);
}

TEST(SharedSelection, PagesAndForksLeaveNoTrace) {
  nn::Model model = make_model(sharing({0, 2}), torch::kFloat32);
  const Tokens tokens = random_tokens(70);
  Engine small(model, {.page_size = 8}), large(model, {.page_size = 64});
  EXPECT_TRUE(torch::equal(stepped_logits(small, tokens, 50), stepped_logits(large, tokens, 50)));
  expect_forks_keep_apart(model, {.page_size = 16}, 37);
}

// What a layer without an indexer attends to is what the layer before it has selected, with weights of its own.
TEST(SharedSelection, FollowersLookWhereTheirLeaderLooks) {
  for (const bool int8 : {false, true}) {
    nn::Model model = make_model(sharing({0, 2}), torch::kFloat32);
    Engine looking(model, {.page_size = 8, .index_int8 = int8}), plain(model, {.index_int8 = int8});
    Sequence a = looking.start(), b = plain.start();
    const Tokens prompt = random_tokens(60);
    looking.prefill({{&a, prompt}});
    plain.prefill({{&b, prompt}});
    const Look look = looking.look(a, 3);
    plain.decode({{&b, 3}});
    EXPECT_TRUE(torch::equal(looking.decode({{&a, 4}}), plain.decode({{&b, 4}})));
    ASSERT_EQ(look.layers.size(), 4u);
    for (const std::size_t leader : {0, 2}) {
      const LayerLook &first = look.layers[leader], &second = look.layers[leader + 1];
      EXPECT_LT(first.k_t, 61);
      EXPECT_EQ(second.k_t, first.k_t);
      EXPECT_EQ(second.positions, first.positions);
      EXPECT_NE(second.weights, first.weights);
      EXPECT_LT(second.kept_mass, 1);
    }
    EXPECT_NE(look.layers[0].positions, look.layers[2].positions);
  }
}

// A pass whose keys are copied out of their pages, as prefill on a GPU runs it: the mask is made once a group.
TEST(SharedSelection, PassesOverRowsAreThoseOverPages) {
  for (const std::vector<std::int64_t>& groups : kGroups) {
    nn::Model model = make_model(sharing(groups));
    const torch::NoGradGuard no_grad;
    const Weights weights =
        make_weights(model, {.dtype = at::kDouble, .device = at::kCPU, .selects = true, .take_over = false});
    const Network network(weights);
    Cache cache(cache_shape(weights.config, {.dtype = DType::f64}), at::kCPU);
    // Two sequences, the second one behind 20 tokens that the cache holds already.
    const Tokens first = random_tokens(33, 1), second = random_tokens(60, 2);
    Sequence a = cache.start(), b = cache.start();
    const std::vector<Cache::Growth> growth = {{&a, 33}, {&b, 60}};
    cache.reserve(growth);
    const auto read_rows =
        [&](const std::vector<std::pair<Sequence*, std::pair<const Tokens*, std::int64_t>>>& what) {
          std::vector<std::int64_t> tokens, positions, slots, key_slots, starts_q = {0}, starts_k = {0};
          for (const auto& [sequence, part] : what) {
            const auto& [text, count] = part;
            const std::int64_t begin = sequence->length();
            const auto new_tokens =
                std::span(*text).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
            tokens.insert(tokens.end(), new_tokens.begin(), new_tokens.end());
            for (std::int64_t i = 0; i < count; ++i) positions.push_back(begin + i);
            cache.slots(*sequence, begin, count, slots);
            cache.slots(*sequence, 0, begin + count, key_slots);
            starts_q.push_back(starts_q.back() + count);
            starts_k.push_back(starts_k.back() + begin + count);
            cache.append(*sequence, new_tokens);
          }
          const auto tensor = [](const std::vector<std::int64_t>& values) {
            return torch::tensor(at::ArrayRef<std::int64_t>(values), at::kLong);
          };
          Pass pass;
          pass.tokens = tensor(tokens);
          pass.positions = tensor(positions);
          pass.slots = tensor(slots);
          pass.sparse = true;
          pass.key_slots = tensor(key_slots);
          pass.starts_q = tensor(starts_q);
          pass.starts_k = tensor(starts_k);
          return network.logits(network.forward(pass, cache, std::nullopt));
        };
    const Tensor before = read_rows({{&b, {&second, 20}}});
    const Tensor both = read_rows({{&a, {&first, 33}}, {&b, {&second, 40}}});
    EXPECT_LT(max_difference(both.narrow(0, 0, 33), full_logits(model, first)), kSharedExact);
    EXPECT_LT(max_difference(torch::cat({before, both.narrow(0, 33, 40)}), full_logits(model, second)),
              kSharedExact);
  }
}

TEST(SharedSelection, TheCacheHoldsIndexerKeysOfLeadersAlone) {
  nn::Model all = make_model(sharing({})), some = make_model(sharing({0, 2}));
  const nn::AttentionConfig& attention = all->config().attention;
  const std::int64_t keys = 2 * attention.kv_heads * attention.head_size * 8,
                     index = attention.indexer.head_size * 8;
  EXPECT_EQ(Engine(all).cache_use().bytes_per_token, 4 * (keys + index));
  EXPECT_EQ(Engine(some).cache_use().bytes_per_token, 4 * keys + 2 * index);
  EXPECT_EQ(Engine(some, {.index_int8 = true}).cache_use().bytes_per_token,
            4 * keys + 2 * (attention.indexer.head_size + 4));
  Engine engine(some);
  EXPECT_TRUE(engine.cache().pages(2).index_k.has_value());
  EXPECT_FALSE(engine.cache().pages(3).index_k.has_value());
  EXPECT_LT(engine.weight_bytes(), Engine(all).weight_bytes());
}

TEST(SharedSelection, FilesGoOnBitForBitAndFitTheirGroups) {
  const TemporaryFolder folder;
  for (const bool int8 : {false, true}) {
    nn::Model model = make_model(sharing({0, 2}), torch::kFloat32);
    Engine engine(model, {.page_size = 8, .index_int8 = int8}), other(model, {.index_int8 = int8});
    Sequence sequence = engine.start();
    engine.prefill({{&sequence, random_tokens(50)}});
    engine.save(sequence, folder / "cache");
    Sequence loaded = other.load(folder / "cache");
    for (std::int64_t token = 0; token < 5; ++token) {
      EXPECT_TRUE(torch::equal(engine.decode({{&sequence, token}}), other.decode({{&loaded, token}})));
    }
    nn::Model another = make_model(sharing({0, 3}), torch::kFloat32);
    Engine wrong(another, {.index_int8 = int8});
    expect_error([&] { wrong.load(folder / "cache"); }, {"indexer keys in layers 0, 3", "got layers 0, 2"});
  }
}

// ---- Budgets for every key

// gsa with a budget that covers so many keys by `min` alone (by_rule), or because the running mean is so large that
// every query gets `max`, which nobody can know without scoring.
nn::Model covering(bool by_rule, torch::Dtype type = torch::kFloat64) {
  nn::AttentionConfig config = nn::testing::four_systems()[3].config;
  config.budget = {BudgetMode::inverse, 100, by_rule ? 100 : 1, 100};
  nn::Model model = make_model(config, type);
  for (nn::Block& block : model->model->layers) nn::testing::set_mean_variance(block->self_attn, 1e12);
  return model;
}

TEST(EveryKey, DenseKernelsGiveTheBitsOfASelectionOfAll) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    nn::Model knows = covering(true, type), scores = covering(false, type);
    const Tokens tokens = random_tokens(90);
    for (const std::int64_t chunk : {16, 1000}) {
      Engine a(knows, {.page_size = 8, .chunk = chunk}), b(scores, {.page_size = 8, .chunk = chunk});
      EXPECT_TRUE(torch::equal(stepped_logits(a, tokens, 70), stepped_logits(b, tokens, 70)))
          << type << ", chunk " << chunk;
    }
  }
}

// What cannot have been scored: keys that would make every score NaN. A step of decoding always scores, or its result
// would depend on who else is in it.
TEST(EveryKey, PrefillScoresNothing) {
  const torch::NoGradGuard no_grad;
  nn::Model model = covering(true);
  for (nn::Block& block : model->model->layers) block->self_attn->indexer->wk->weight.fill_(std::nan(""));
  Engine engine(model, {.chunk = 40});
  const Tokens tokens = random_tokens(101);
  const std::span<const std::int64_t> all(tokens);
  Sequence sequence = engine.start();
  EXPECT_TRUE(engine.prefill({{&sequence, all.first(99)}}).logits.isfinite().all().item<bool>());
  Sequence alone = sequence.fork(), neighbour = engine.start();
  EXPECT_TRUE(engine.prefill({{&neighbour, all}}).logits.isnan().all().item<bool>());
  const Tensor both = engine.decode({{&sequence, 1}, {&neighbour, 1}});  // 100 keys, and 102
  EXPECT_TRUE(both.isnan().all().item<bool>());
  EXPECT_TRUE(engine.decode({{&alone, 1}}).isnan().all().item<bool>());
  // The whole prompt decides, not the part that a call reads.
  Sequence other = engine.start();
  EXPECT_TRUE(engine.prefill({{&other, all.first(50), 101}}).logits.isnan().all().item<bool>());
  Sequence third = engine.start();
  EXPECT_TRUE(engine.prefill({{&third, all.first(50), 100}}).logits.isfinite().all().item<bool>());
}

// Without a mean of the variance every query has the budget's base; one layer's mean is enough that k_t may be less.
TEST(EveryKey, OfTheBaseWhileBudgetsDoNotAdapt) {
  const torch::NoGradGuard no_grad;
  nn::AttentionConfig config = nn::testing::four_systems()[3].config;
  config.budget = {BudgetMode::inverse, 50, 1, 100};
  const Tokens tokens = random_tokens(51);
  const std::span<const std::int64_t> all(tokens);
  for (const bool adapts : {false, true}) {
    nn::Model model = nn::testing::make_model(nn::testing::small_model(config), torch::kFloat64);
    if (adapts) nn::testing::set_mean_variance(model->model->layers[1]->self_attn, 1);
    for (nn::Block& block : model->model->layers) {
      block->self_attn->indexer->wk->weight.fill_(std::nan(""));
    }
    model->eval();
    Engine engine(model);
    Sequence covered = engine.start(), longer = engine.start();
    EXPECT_EQ(engine.prefill({{&covered, all.first(50)}}).logits.isfinite().all().item<bool>(), !adapts);
    EXPECT_TRUE(engine.prefill({{&longer, all}}).logits.isnan().all().item<bool>());
  }
}

TEST(EveryKey, TextsGrowOutOfIt) {
  nn::AttentionConfig config = nn::testing::four_systems()[3].config;
  for (const Budget& budget :
       {Budget{BudgetMode::inverse, 40, 30, 60}, Budget{BudgetMode::fixed, 30, 1, 60}}) {
    config.budget = {budget.mode, budget.base, budget.min, budget.max};
    nn::Model model = make_model(sharing({0, 2}, config));
    const Tokens tokens = different_tokens(60);
    const Tensor expected = full_logits(model, tokens);
    for (const std::int64_t prompt : {1, 20, 30, 31, 50}) {
      Engine engine(model, {.chunk = 8, .count_keys = true});
      EXPECT_LT(max_difference(stepped_logits(engine, tokens, prompt), expected), kSharedExact) << prompt;
    }
  }
}

// Of two prompts in a call one is covered; a step of both, and each by itself.
TEST(EveryKey, BatchesOfBothKinds) {
  nn::AttentionConfig config = nn::testing::four_systems()[3].config;
  config.budget = {BudgetMode::inverse, 40, 30, 60};
  nn::Model model = make_model(config);
  Engine engine(model, {.chunk = 16, .count_keys = true});
  const Tokens shorter = random_tokens(20, 1), longer = random_tokens(70, 2);
  Sequence a = engine.start(), b = engine.start();
  const Tensor logits = engine.prefill({{&a, shorter}, {&b, longer}}).logits.clone();
  EXPECT_LT(max_difference(logits[0], full_logits(model, shorter)[-1]), kSharedExact);
  EXPECT_LT(max_difference(logits[1], full_logits(model, longer)[-1]), kSharedExact);
  const Tensor next = engine.decode({{&a, 3}, {&b, 4}});
  Tokens shorter_next = shorter, longer_next = longer;
  shorter_next.push_back(3);
  longer_next.push_back(4);
  EXPECT_LT(max_difference(next[0], full_logits(model, shorter_next)[-1]), kSharedExact);
  EXPECT_LT(max_difference(next[1], full_logits(model, longer_next)[-1]), kSharedExact);
}

}  // namespace
}  // namespace gsa::infer::testing
