// Every figure here was computed by hand from the sizes beside it.
#include "model/cost.h"

#include <gtest/gtest.h>

#include "model/errors.h"

namespace gsa::nn {
namespace {

using gsa::testing::expect_error;

TEST(Parameters, OfThePapersModel) {
  const ModelConfig config = ModelConfig::preset("paper-1.7b");
  const ParameterCount layer = count_layer(config);
  EXPECT_EQ(layer.attention, 10'485'760);  // 2048 x 128 x (16 + 4 + 4 + 16)
  EXPECT_EQ(layer.mlp, 33'816'576);        // 3 x 2048 x 5504
  EXPECT_EQ(layer.norms, 4096);
  EXPECT_EQ(layer.value_gate, 1'049'088);   // 512 x (2048 + 1)
  EXPECT_EQ(layer.output_gate, 4'196'352);  // 2048 x (2048 + 1)
  EXPECT_EQ(layer.indexer, 663'556);        // 2048 x (256 + 64 + 4) + 4
  const ParameterCount model = count_model(config);
  EXPECT_EQ(model.embedding, 311'164'928);  // 151,936 x 2048
  EXPECT_EQ(model.output, 311'164'928);
  EXPECT_EQ(model.base(), 1'685'686'272);
  EXPECT_EQ(model.added(), 141'815'904);
  // Not the paper's 4.4 %: 13.3 % of a layer, 8.4 % of the model.
  EXPECT_NEAR(static_cast<double>(layer.added()) / static_cast<double>(layer.base()), 0.1334, 1e-4);
  EXPECT_NEAR(static_cast<double>(model.added()) / static_cast<double>(model.base()), 0.0841, 1e-4);
}

TEST(Parameters, OfTheOtherPresets) {
  ModelConfig small = ModelConfig::preset("small");
  EXPECT_EQ(count_layer(small).base(), 2'819'072);  // 655,360 + 2,162,688 + 1,024
  EXPECT_EQ(count_model(small).base(), 39'330'304);
  small.tie_embeddings = false;
  EXPECT_EQ(count_model(small).base(), 56'107'520);
  const ParameterCount seven = count_layer(ModelConfig::preset("llama-7b-class"));
  EXPECT_EQ(seven.base(), 218'112'000);
  EXPECT_EQ(seven.added(), 22'303'748);  // about 10 %
  EXPECT_NEAR(static_cast<double>(count_model(ModelConfig::preset("llama-7b-class")).base()), 7.24e9, 0.01e9);
}

TEST(Parameters, FollowTheSwitches) {
  ModelConfig config = ModelConfig::preset("paper-1.7b");
  apply(config, System::standard);
  EXPECT_EQ(count_model(config).added(), 0);
  apply(config, System::gated_only);
  EXPECT_EQ(count_layer(config).indexer, 0);
  EXPECT_EQ(count_layer(config).value_gate, 1'049'088);
  config.attention.value_gate = GateKind::headwise;
  config.attention.output_gate = GateKind::none;
  EXPECT_EQ(count_layer(config).value_gate, 4 * 2049);
  EXPECT_EQ(count_layer(config).output_gate, 0);
  apply(config, System::sparse_only);
  EXPECT_EQ(count_layer(config).indexer, 663'552);  // no bias with ReLU
}

TEST(Pairs, AreSumsOverQueries) {
  EXPECT_EQ(visible_pairs(5), 15);
  EXPECT_EQ(selected_pairs(5, 3), 1 + 2 + 3 + 3 + 3);
  EXPECT_EQ(selected_pairs(5, 9), 15);
  EXPECT_EQ(selected_pairs(1, 1), 1);
}

// d 8, 2/1 heads of 4, SwiGLU 16, vocabulary 10, one layer; indexer 2 heads of 4; k 3; 5 tokens, 2 bytes
// each. Matrices: 192 (attention) + 384 (MLP) + 32 + 64 (gates) + 112 (indexer) = 784 weights.
ModelConfig by_hand() {
  ModelConfig config;
  config.vocab_size = 10;
  config.layers = 1;
  config.intermediate = 16;
  config.attention.d_model = 8;
  config.attention.heads = 2;
  config.attention.kv_heads = 1;
  config.attention.head_size = 4;
  config.attention.indexer.heads = 2;
  config.attention.indexer.head_size = 4;
  config.attention.budget = {BudgetMode::inverse, 3, 1, 4};
  return config;
}

TEST(Cost, OfPrefillAndDecodeByHand) {
  const Cost cost = estimate_cost(by_hand(), {.length = 5, .dtype = DType::bf16, .phase = Phase::sparse});
  EXPECT_EQ(cost.keys_per_query, 12.0 / 5);
  EXPECT_EQ(cost.prefill.projections, 2 * 5 * 784);
  EXPECT_EQ(cost.prefill.attention, 4 * 8 * 12);
  EXPECT_EQ(cost.prefill.indexer, 2 * (2 * 4 + 2) * 15);
  EXPECT_EQ(cost.prefill.output, 2 * 10 * 8);
  EXPECT_EQ(cost.prefill.total(), 7840 + 384 + 300 + 160);
  EXPECT_EQ(cost.sigmoids, 2 * 15);
  EXPECT_EQ(cost.decode.operations.projections, 2 * 784);
  EXPECT_EQ(cost.decode.operations.attention, 4 * 8 * 3);
  EXPECT_EQ(cost.decode.operations.indexer, 20 * 5);
  EXPECT_EQ(cost.cache.keys, 5 * 4 * 2);
  EXPECT_EQ(cost.cache.values, 5 * 4 * 2);
  EXPECT_EQ(cost.cache.index_keys, 5 * 4 * 2);
  EXPECT_EQ(cost.decode.read.keys, 3 * 4 * 2);
  EXPECT_EQ(cost.decode.read.index_keys, 5 * 4 * 2);
  // 10 x 8 twice, 192 + 384 + 3 x 8 (norms), gates 4 x 9 + 8 x 9, indexer 112 + 2.
  const double parameters = 80 + 80 + 192 + 384 + 24 + 36 + 72 + 114;
  EXPECT_EQ(cost.weight_bytes, 2 * parameters);
  EXPECT_EQ(cost.decode.weight_bytes, 2 * (parameters - 80));
  EXPECT_EQ(cost.training_bytes, 16 * parameters);  // 2 + 2, master 4, moments 8
}

// Three layers, of which one has the indexer: scores, their weights and the cache of their keys are there once,
// the gradient of the loss in every layer.
TEST(Cost, OfASharedSelectionByHand) {
  ModelConfig config = by_hand();
  config.layers = 3;
  config.index_layers = {0};
  EXPECT_EQ(count_model(config).indexer, 114);
  EXPECT_EQ(count_layer(config).indexer, 114);
  const CostOptions options{.length = 5, .dtype = DType::bf16, .phase = Phase::sparse};
  const Cost cost = estimate_cost(config, options);
  const double matrices = 3 * (784 - 112) + 112;
  EXPECT_EQ(cost.prefill.projections, 2 * 5 * matrices);
  EXPECT_EQ(cost.prefill.attention, 3 * 4 * 8 * 12);
  EXPECT_EQ(cost.prefill.indexer, 300);
  EXPECT_EQ(cost.sigmoids, 2 * 15);
  EXPECT_EQ(cost.decode.operations.projections, 2 * matrices);
  EXPECT_EQ(cost.decode.operations.indexer, 20 * 5);
  EXPECT_EQ(cost.cache.keys, 3 * 5 * 4 * 2);
  EXPECT_EQ(cost.cache.index_keys, 5 * 4 * 2);
  EXPECT_EQ(cost.decode.read.index_keys, 5 * 4 * 2);
  EXPECT_EQ(cost.training.indexer, 20 * (15 + 3 * 2 * 12));
  EXPECT_EQ(cost.training.projections, 3 * cost.prefill.projections - 2 * 5 * 112);
  const Cost warmup = estimate_cost(config, {.length = 5, .dtype = DType::bf16, .phase = Phase::warmup});
  EXPECT_EQ(warmup.training.indexer, 3 * 3 * 20 * 15);
  config.index_layers.clear();
  EXPECT_EQ(estimate_cost(config, options).prefill.indexer, 3 * 300);
  EXPECT_EQ(estimate_cost(config, options).cache.index_keys, 3 * 5 * 4 * 2);
}

TEST(Cost, BiasesAndNormsOfQueriesAndKeysAreParametersAndNoProducts) {
  ModelConfig config = by_hand();
  const Cost before = estimate_cost(config, {.length = 5});
  const ParameterCount plain = count_layer(config);
  config.attention.qkv_bias = config.attention.qk_norm = true;
  const AttentionConfig& a = config.attention;
  const ParameterCount count = count_layer(config);
  EXPECT_EQ(count.attention - plain.attention, (a.heads + 2 * a.kv_heads) * a.head_size);
  EXPECT_EQ(count.norms - plain.norms, 2 * a.head_size);
  const Cost after = estimate_cost(config, {.length = 5});
  EXPECT_EQ(after.prefill.projections, before.prefill.projections);
  EXPECT_GT(after.weight_bytes, before.weight_bytes);
}

TEST(Cost, OfTrainingByHand) {
  const auto training = [](Phase phase) {
    return estimate_cost(by_hand(), {.length = 5, .dtype = DType::bf16, .phase = phase}).training;
  };
  // Sparse: three times forward, but the indexer's projections pass no gradient on to their input.
  EXPECT_EQ(training(Phase::sparse).projections, 3 * 7840 - 2 * 5 * 112);
  EXPECT_EQ(training(Phase::sparse).attention, 3 * 384);
  EXPECT_EQ(training(Phase::sparse).indexer, 20 * (15 + 2 * 12));
  EXPECT_EQ(training(Phase::sparse).output, 3 * 2 * 5 * 80);
  // Dense: as if there were no indexer.
  ModelConfig gated = by_hand();
  apply(gated, System::gated_only);
  const Operations dense =
      estimate_cost(gated, {.length = 5, .dtype = DType::bf16, .phase = Phase::dense}).training;
  EXPECT_EQ(training(Phase::dense).projections, dense.projections);
  EXPECT_EQ(training(Phase::dense).attention, dense.attention);
  EXPECT_EQ(dense.projections, 3 * 2 * 5 * (784 - 112));
  EXPECT_EQ(dense.attention, 3 * 4 * 8 * 15);
  EXPECT_EQ(dense.indexer, 0);
  // Warm-up: the base runs forward, the indexer learns over all visible keys.
  EXPECT_EQ(training(Phase::warmup).projections, 7840 + 2 * 5 * 112);
  EXPECT_EQ(training(Phase::warmup).attention, 4 * 8 * 15);
  EXPECT_EQ(training(Phase::warmup).indexer, 3 * 20 * 15);
  EXPECT_EQ(training(Phase::warmup).output, 0);
}

TEST(Cost, OfALossOverAllKeysOfASampleByHand) {
  const auto training = [](Phase phase, KlSupport support, double share) {
    return estimate_cost(
               by_hand(),
               {.length = 5, .dtype = DType::bf16, .phase = phase, .kl_support = support, .kl_share = share})
        .training;
  };
  // The gradient of scores over all 15 pairs of a fifth of the queries, and q k^T of their heads for the
  // target.
  const Operations sparse = training(Phase::sparse, KlSupport::all, 0.2);
  EXPECT_EQ(sparse.indexer, 20 * (15 + 2 * 3));
  EXPECT_EQ(sparse.attention, 3 * 384 + 2 * 8 * 3);
  EXPECT_EQ(training(Phase::warmup, KlSupport::selected, 0.2).indexer, 3 * 20 * 3);
  EXPECT_EQ(training(Phase::sparse, KlSupport::selected, 0.2).indexer, 20 * (15 + 2 * 12));
}

TEST(Cost, DenseSystemsReadEverything) {
  ModelConfig config = by_hand();
  apply(config, System::standard);
  const Cost cost = estimate_cost(config, {.length = 5, .dtype = DType::f32, .phase = Phase::dense});
  EXPECT_EQ(cost.prefill.attention, 4 * 8 * 15);
  EXPECT_EQ(cost.prefill.indexer, 0);
  EXPECT_EQ(cost.sigmoids, 0);
  EXPECT_EQ(cost.cache.index_keys, 0);
  EXPECT_EQ(cost.decode.read.keys, 5 * 4 * 4);
  EXPECT_EQ(cost.training_bytes, 16 * static_cast<double>(count_model(config).total()));  // 4 + 4, moments 8
}

// The design's own figures: a 7B-class layer's decode at 128K reads 25 MB instead of 537 MB.
TEST(Cost, OfOneLayerAt128K) {
  ModelConfig config = ModelConfig::preset("llama-7b-class");
  config.layers = 1;
  const CostOptions options = {.length = 131072, .dtype = DType::bf16, .phase = Phase::sparse};
  const CacheBytes sparse = estimate_cost(config, options).decode.read;
  EXPECT_EQ(sparse.index_keys, 16'777'216);
  EXPECT_EQ(sparse.keys + sparse.values, 8'388'608);
  EXPECT_NEAR(sparse.total(), 25.2e6, 0.1e6);
  apply(config, System::standard);
  const Cost dense = estimate_cost(config, {.length = 131072, .dtype = DType::bf16, .phase = Phase::dense});
  EXPECT_EQ(dense.decode.read.total(), 536'870'912);
}

// By default a large model runs short sequences dense, and costs what that costs.
TEST(Cost, OfAPresetBelowTheLengthWhereSparsePays) {
  ModelConfig config = ModelConfig::preset("paper-1.7b");
  ModelConfig gated = config;
  apply(gated, System::gated_only);
  for (const std::int64_t length : {kSparsePays - 1, kSparsePays}) {
    const Cost cost = estimate_cost(config, {.length = length, .phase = Phase::sparse});
    const Cost dense = estimate_cost(gated, {.length = length, .phase = Phase::dense});
    EXPECT_EQ(cost.prefill.attention == dense.prefill.attention, length < kSparsePays) << length;
    EXPECT_EQ(cost.prefill.indexer == 0, length < kSparsePays) << length;
  }
}

TEST(Cost, DenseBelowIsHonoured) {
  ModelConfig config = by_hand();
  config.attention.dense_below = 6;
  const Cost cost = estimate_cost(config, {.length = 5, .dtype = DType::bf16, .phase = Phase::sparse});
  EXPECT_EQ(cost.prefill.attention, 4 * 8 * 15);
  EXPECT_EQ(cost.prefill.indexer, 0);
  EXPECT_GT(cost.cache.index_keys, 0);  // kept for the time when the sequence has grown
  EXPECT_EQ(cost.decode.read.index_keys, 0);
  // Dense steps, and beside them the indexer's loss over all keys, of which 15 pairs are visible.
  EXPECT_EQ(cost.training.attention, 3 * cost.prefill.attention);
  const Cost warmup = estimate_cost(config, {.length = 5, .dtype = DType::bf16, .phase = Phase::warmup});
  EXPECT_EQ(cost.training.indexer, warmup.training.indexer);
}

TEST(Cost, RefusesWhatMakesNoSense) {
  expect_error([] { estimate_cost(by_hand(), {.length = 0, .dtype = DType::bf16, .phase = Phase::sparse}); },
               {"length", "got 0"});
  ModelConfig config = by_hand();
  apply(config, System::standard);
  expect_error([&] { estimate_cost(config, {.length = 5, .dtype = DType::bf16, .phase = Phase::sparse}); },
               {"phase", "got sparse"});
}

// Of fp32: weights, gradients and two moments. Activations grow with the tokens, and far less where blocks
// keep their input only.
TEST(Memory, OfTrainingAndOfAForwardPass) {
  const ModelConfig config = ModelConfig::preset("tiny");
  const double parameters = static_cast<double>(count_model(config).total());
  const MemoryNeed one = training_memory(config, {.tokens = 1000});
  EXPECT_EQ(one.state, 16 * parameters);
  EXPECT_EQ(training_memory(config, {.tokens = 2000}).activations, 2 * one.activations);
  const MemoryNeed half = training_memory(config, {.tokens = 1000, .dtype = DType::bf16});
  EXPECT_EQ(half.state, 16 * parameters);  // with masters
  EXPECT_EQ(half.activations, one.activations / 2);
  const MemoryNeed several =
      training_memory(config, {.tokens = 1000, .dtype = DType::bf16, .several_batches = true});
  EXPECT_EQ(several.state, 20 * parameters);
  const MemoryNeed less = training_memory(config, {.tokens = 1000, .checkpoint_activations = true});
  EXPECT_LT(less.activations, 0.5 * one.activations);
  // A bit for every pair and layer, up to four times as much as q.
  const double q = static_cast<double>(4 * config.attention.heads * config.attention.head_size);
  const auto with_masks = [&](std::int64_t length) {
    return (training_memory(config, {.tokens = 1000, .length = length}).activations - one.activations) / 1000;
  };
  const double layers = static_cast<double>(config.layers);
  EXPECT_EQ(with_masks(320), 40 * layers);
  EXPECT_EQ(with_masks(static_cast<std::int64_t>(32 * q)), 4 * q * layers);
  EXPECT_EQ(with_masks(static_cast<std::int64_t>(32 * q) + 1), 0);
  const MemoryNeed forward = forward_memory(config, 1000, 1000, DType::f32);
  EXPECT_EQ(forward.state, 4 * parameters);
  EXPECT_LT(forward.activations, less.activations);
}

// A selection that several layers share has one mask, which may take the memory of them all; with recomputed
// activations it waits for them beside the indexer's inputs.
TEST(Memory, OfSharedSelections) {
  ModelConfig config = ModelConfig::preset("tiny");  // 4 layers
  config.index_layers = {0, 1};
  const AttentionConfig& a = config.attention;
  const double index = static_cast<double>(a.indexer.heads * (a.indexer.head_size + 1) + a.indexer.head_size);
  ModelConfig every = config;
  every.index_layers.clear();
  const auto need = [](const ModelConfig& of, std::int64_t length, bool again) {
    return training_memory(of, {.tokens = 1, .length = length, .checkpoint_activations = again}).activations;
  };
  EXPECT_EQ(need(every, 0, false) - need(config, 0, false), 4 * 2 * index);
  EXPECT_EQ(need(config, 0, true) - need(every, 0, true), 4 * index);
  const std::int64_t q = 4 * a.heads * a.head_size;
  EXPECT_EQ(need(config, 320, false) - need(config, 0, false), 2 * 40);
  EXPECT_EQ(need(config, 320, true) - need(config, 0, true), 2 * 40);
  EXPECT_EQ(need(every, 320, true) - need(every, 0, true), 40);
  EXPECT_EQ(need(config, 32 * 3 * q, false) - need(config, 0, false), 4 * 3 * static_cast<double>(q));
  EXPECT_EQ(need(config, 32 * 3 * q + 1, false), need(config, 0, false));
  // Without gradients no other mask is kept.
  const auto forward = [](const ModelConfig& of, std::int64_t length, Phase phase = Phase::sparse) {
    return forward_memory(of, 1, length, DType::f32, phase).activations;
  };
  EXPECT_EQ(forward(config, 320) - forward(config, 0), 40);
  EXPECT_EQ(forward(every, 320), forward(every, 0));
  // Where everything is read, nothing is selected.
  EXPECT_EQ(forward(config, 320, Phase::warmup), forward(config, 0));
  EXPECT_EQ(forward(config, 320, Phase::dense), forward(config, 0));
  config.attention.dense_below = 321;
  EXPECT_EQ(forward(config, 320), forward(config, 0));
  EXPECT_EQ(need(config, 320, false), need(config, 0, false));
  EXPECT_EQ(forward(config, 321) - forward(config, 0), 4 * 11);
}

}  // namespace
}  // namespace gsa::nn
