// Passes of prefill get smaller only where what a layer has selected would take too much memory.
#include "infer/core/pass_size.h"

#include <gtest/gtest.h>

namespace gsa::infer {
namespace {

nn::ModelConfig every(std::int64_t n) {
  nn::ModelConfig config = nn::ModelConfig::preset("paper-1.7b");  // k_max 4096
  config.index_layers = nn::every_nth_layer(config.layers, n);
  return config;
}

TEST(PassSize, IsTheChunkWhereNothingIsShared) {
  const PassFacts huge{.chunk = 1 << 20, .longest = 1 << 20, .selects = true, .gpu = true};
  EXPECT_EQ(tokens_of_a_pass(every(1), huge), 1 << 20);
  PassFacts dense = huge;
  dense.selects = false;
  EXPECT_EQ(tokens_of_a_pass(every(4), dense), 1 << 20);
}

TEST(PassSize, OfAMaskOnAGpu) {
  const auto tokens = [](std::int64_t chunk, std::int64_t longest) {
    return tokens_of_a_pass(every(4), {.chunk = chunk, .longest = longest, .selects = true, .gpu = true});
  };
  EXPECT_EQ(tokens(16384, 131072), 16384);
  EXPECT_EQ(tokens(16384, 1 << 20), 16384);   // as much as sparse_attend has
  EXPECT_EQ(tokens(131072, 131072), 16384);   // 16 KiB a query
  EXPECT_EQ(tokens(131072, 16384), 131072);   // 2 KiB a query
  EXPECT_EQ(tokens(1 << 20, 16384), 131072);  // 256 MiB
  EXPECT_EQ(tokens(7, 1), 7);
}

TEST(PassSize, OfPositionsOnACpu) {
  nn::ModelConfig config = every(2);
  const auto tokens = [&](std::int64_t longest) {
    return tokens_of_a_pass(config, {.chunk = 1024, .longest = longest, .selects = true, .gpu = false});
  };
  EXPECT_EQ(tokens(1 << 20), 1024);  // 16 KiB a query
  config.attention.budget.max = 1 << 30;
  EXPECT_EQ(tokens(65536), 1024);
  EXPECT_EQ(tokens(1 << 20), 64);
  EXPECT_EQ(tokens(1 << 29), 1);
}

}  // namespace
}  // namespace gsa::infer
