// The engine on a GPU: against one full forward pass there, graphs and all. Without a GPU, or without the
// CUDA operators, skipped.
#include <c10/core/CachingDeviceAllocator.h>

#include "engines.h"
#include "model/errors.h"
#include "model/temporary_folder.h"

namespace gsa::infer::testing {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;

const at::Device kGpu(at::kCUDA, 0);

class OnCuda : public ::testing::TestWithParam<NamedConfig> {
 protected:
  void SetUp() override {
    if (!ops::built_with_cuda()) GTEST_SKIP() << "libgsa.so is built without the CUDA operators";
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};
using EngineOnCuda = OnCuda;

EngineOptions on_gpu(std::int64_t chunk = 4096, bool graphs = true) {
  EngineOptions options;
  options.dtype = at::kBFloat16;
  options.device = kGpu;
  options.page_size = 16;
  options.cache_bytes = 64 << 20;
  options.chunk = chunk;
  options.cuda_graphs = graphs;
  return options;
}

// Our error against float64 is at most twice the one that the full pass makes on the GPU in the same type.
// Both select by scores that are rounded, each in its own order.
TEST_P(EngineOnCuda, EveryChunkingRoundsNoWorseThanTheFullPass) {
  nn::Model exact = make_model(GetParam().config);
  const Tokens tokens = random_tokens(150);
  const Tensor expected = full_logits(exact, tokens);
  nn::Model model = make_model(GetParam().config);
  model->to(kGpu, at::kBFloat16);
  const double plain = relative_error(full_logits(model, tokens), expected);
  for (const std::int64_t chunk : {1, 7, 64, 4096}) {
    Engine engine(exact, on_gpu(chunk));
    EXPECT_LT(relative_error(stepped_logits(engine, tokens, 130), expected), 2 * plain) << "chunk " << chunk;
  }
}

TEST_P(EngineOnCuda, GraphsGiveWhatPlainStepsGive) {
  nn::Model model = make_model(GetParam().config);
  const Tokens tokens = random_tokens(100);
  Engine with(model, on_gpu()), without(model, on_gpu(4096, false));
  EXPECT_LT(relative_error(stepped_logits(with, tokens, 60), stepped_logits(without, tokens, 60)), 2e-3);
  // Three sequences run in a graph for four; other lengths, other pages.
  std::vector<Tensor> results;
  for (Engine* engine : {&with, &without}) {
    std::vector<Sequence> sequences;
    for (int i = 0; i < 3; ++i) sequences.push_back(engine->start());
    std::vector<Tokens> prompts = {random_tokens(9, 1), random_tokens(70, 2), random_tokens(33, 3)};
    engine->prefill({{&sequences[0], prompts[0]}, {&sequences[1], prompts[1]}, {&sequences[2], prompts[2]}});
    std::vector<Tensor> rows;
    for (std::int64_t step = 0; step < 20; ++step) {
      rows.push_back(
          engine->decode({{&sequences[0], step}, {&sequences[1], step + 1}, {&sequences[2], step + 2}})
              .clone());
    }
    results.push_back(torch::cat(rows));
  }
  EXPECT_LT(relative_error(results[0], results[1]), 2e-2);
}

TEST_P(EngineOnCuda, ForkedAndGrownCachesReplayWithOtherPages) {
  nn::Model model = make_model(GetParam().config);
  expect_forks_keep_apart(model, on_gpu(), 37);
}

TEST_P(EngineOnCuda, AFileGoesOnBitForBit) {
  const TemporaryFolder folder;
  nn::Model model = make_model(GetParam().config);
  Engine engine(model, on_gpu());
  Sequence sequence = engine.start();
  engine.prefill({{&sequence, random_tokens(50)}});
  engine.save(sequence, folder / "cache");
  Engine other(model, on_gpu());
  Sequence loaded = other.load(folder / "cache");
  for (std::int64_t token = 0; token < 5; ++token) {
    EXPECT_TRUE(torch::equal(engine.decode({{&sequence, token}}), other.decode({{&loaded, token}})));
  }
}

TEST_P(EngineOnCuda, LooksAtWhatDecodeReads) {
  nn::Model model = make_model(GetParam().config);
  const Tokens prompt = random_tokens(90, 1);
  for (const bool int8 : {false, true}) {
    if (int8 && !GetParam().config.sparse) continue;
    EngineOptions options = on_gpu(4096, false);
    options.index_int8 = int8;
    Engine looking(model, options), plain(model, options);
    Sequence a = looking.start(), b = plain.start();
    looking.prefill({{&a, prompt}});
    plain.prefill({{&b, prompt}});
    for (std::int64_t token = 0; token < 6; ++token) {
      const Look look = looking.look(a, token);
      plain.decode({{&b, token}});
      for (const LayerLook& layer : look.layers) {
        double sum = 0;
        for (const float weight : layer.weights) sum += weight;
        EXPECT_NEAR(sum, 1, 1e-5);
        EXPECT_EQ(layer.k_t, static_cast<std::int64_t>(layer.positions.size()));
        EXPECT_LE(layer.positions.back(), look.position);
        EXPECT_GT(layer.kept_mass, 0);
        EXPECT_LE(layer.kept_mass, 1);
      }
      EXPECT_TRUE(torch::equal(looking.decode({{&a, token}}), plain.decode({{&b, token}})));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Systems, EngineOnCuda, ::testing::ValuesIn(nn::testing::four_systems()),
                         nn::testing::name_of_case);

class CudaEngine : public OnCuda {};

TEST_P(CudaEngine, StepsLeaveMemoryFlatAndFloat32IsRefused) {
  nn::Model model = make_model(GetParam().config);
  EngineOptions options = on_gpu();
  options.count_keys = true;
  Engine engine(model, options);
  Sequence sequence = engine.start();
  engine.prefill({{&sequence, random_tokens(20)}});
  const auto allocated = [] {
    return c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(0).allocated_bytes[0].current;
  };
  std::int64_t before = 0;
  for (int step = 0; step < 2000; ++step) {
    if (step == 200) before = allocated();
    if (sequence.length() == 120) sequence.truncate(20);
    engine.decode({{&sequence, step % nn::testing::kVocabulary}});
  }
  EXPECT_EQ(allocated(), before);
  EXPECT_GT(engine.keys_per_query(), 4);
  EXPECT_LE(engine.keys_per_query(), 20);
  options.dtype = at::kFloat;
  expect_error([&] { Engine(model, options); }, {"dtype", "bfloat16 or float16 on a GPU", "Float"});
}

TEST_P(CudaEngine, EightBitKeysInPrefillAndDecode) {
  nn::AttentionConfig config = GetParam().config;
  // Every key, so that the selection cannot differ; by the scores, so that they are asked for.
  config.budget = {BudgetMode::inverse, 1000, 1, 1000};
  nn::Model model = make_model(config);
  for (nn::Block& block : model->model->layers) nn::testing::set_mean_variance(block->self_attn, 1e12);
  const Tokens tokens = random_tokens(90);
  EngineOptions options = on_gpu(32);
  Engine full(model, options);
  options.index_int8 = true;
  Engine reduced(model, options);
  EXPECT_LT(relative_error(stepped_logits(reduced, tokens, 60), stepped_logits(full, tokens, 60)), 2e-3);
}

// Two groups of two layers: prefill selects once a group by a mask, a step hands positions on, in a graph too.
TEST_P(CudaEngine, LayersShareSelections) {
  nn::ModelConfig config = nn::testing::small_model(GetParam().config);
  config.layers = 4;
  config.index_layers = {0, 2};
  nn::Model exact = make_model(config);
  const Tokens tokens = random_tokens(150);
  const Tensor expected = full_logits(exact, tokens);
  nn::Model model = make_model(config);
  model->to(kGpu, at::kBFloat16);
  const double plain = relative_error(full_logits(model, tokens), expected);
  for (const std::int64_t chunk : {1, 7, 64, 4096}) {
    for (const bool graphs : {false, true}) {
      Engine engine(exact, on_gpu(chunk, graphs));
      EXPECT_LT(relative_error(stepped_logits(engine, tokens, 130), expected), 2 * plain)
          << "chunk " << chunk << (graphs ? ", graphs" : "");
    }
  }
  Engine looking(exact, on_gpu(4096, false)), replaying(exact, on_gpu());
  Sequence a = looking.start(), b = replaying.start();
  looking.prefill({{&a, tokens}});
  replaying.prefill({{&b, tokens}});
  for (std::int64_t token = 0; token < 4; ++token) {
    const Look look = looking.look(a, token);
    EXPECT_EQ(look.layers[1].positions, look.layers[0].positions);
    EXPECT_EQ(look.layers[3].positions, look.layers[2].positions);
    EXPECT_NE(look.layers[1].weights, look.layers[0].weights);
    replaying.decode({{&b, token}});
    EXPECT_LT(relative_error(looking.decode({{&a, token}}), replaying.decode({{&b, token}})), 2e-2);
  }
}

// A prompt that the budget covers runs dense; one whose scores make it select all does not.
TEST_P(CudaEngine, ABudgetForEveryKeyIsAttentionToAll) {
  const Tokens tokens = random_tokens(90);
  std::vector<Tensor> results;
  for (const std::int64_t min : {100, 1}) {
    nn::AttentionConfig config = GetParam().config;
    config.budget = {BudgetMode::inverse, 100, min, 100};
    nn::Model model = make_model(config);
    for (nn::Block& block : model->model->layers) nn::testing::set_mean_variance(block->self_attn, 1e12);
    Engine engine(model, on_gpu(32));
    results.push_back(stepped_logits(engine, tokens, 60));
  }
  EXPECT_LT(relative_error(results[0], results[1]), 2e-2);
}

INSTANTIATE_TEST_SUITE_P(Gsa, CudaEngine, ::testing::Values(nn::testing::four_systems()[3]),
                         nn::testing::name_of_case);

}  // namespace
}  // namespace gsa::infer::testing
