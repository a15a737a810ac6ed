// The indexer's start from the attention: the same logits where the sizes agree, the same pairs of RoPE where
// they do not.
#include "nn/indexer_start.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "nn/attention.h"
#include "nn/small_layers.h"

namespace gsa::nn {
namespace {

using at::Tensor;
using testing::make_layer;
using testing::random_input;
using testing::small;

AttentionConfig config_of(std::int64_t heads, std::int64_t kv_heads, std::int64_t size,
                          std::int64_t index_heads, std::int64_t index_size, double rope_fraction) {
  AttentionConfig config = small(AttentionConfig::gsa());
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_size = size;
  config.indexer.heads = index_heads;
  config.indexer.head_size = index_size;
  config.indexer.rope_fraction = rope_fraction;
  return config;
}

struct Started {
  AttentionView view;
  GatedSparseAttention layer{nullptr};
  Tensor random_wq, random_wk;  // before

  Tensor attention_logits(std::int64_t head, std::int64_t kv_head) const {
    return torch::matmul(view.q.select(1, head), view.k.select(1, kv_head).t()) /
           std::sqrt(static_cast<double>(view.q.size(2)));
  }
  Tensor indexer_logits(std::int64_t head) const {
    return torch::matmul(view.indexer->q.select(1, head), view.indexer->k.t()) * view.indexer->scale;
  }
};

// A layer after its start, and what its attention and its indexer worked on.
Started start(const AttentionConfig& config) {
  Started result;
  result.layer = make_layer(config);
  auto& layer = *result.layer;
  result.random_wq = layer.indexer->wq->weight.detach().clone();
  result.random_wk = layer.indexer->wk->weight.detach().clone();
  start_from_attention(config, layer.q_proj->weight, layer.k_proj->weight, layer.indexer->wq->weight,
                       layer.indexer->wk->weight);
  layer.forward(random_input({1, 40, config.d_model}),
                {.phase = Phase::warmup, .observe = [&](const AttentionView& view) { result.view = view; }});
  return result;
}

TEST(IndexerStart, OneHeadOfOneSizeHasTheLogitsOfAttention) {
  const Started s = start(config_of(1, 1, 8, 1, 8, 1));
  EXPECT_GT(s.attention_logits(0, 0).abs().max().item<double>(), 0.1);
  EXPECT_LT((s.indexer_logits(0) - s.attention_logits(0, 0)).abs().max().item<double>(), 1e-12);
}

// Half the size: every second frequency, and the logits are the part of attention's that these pairs make.
TEST(IndexerStart, HalfTheSizeTakesThePairsOfItsFrequencies) {
  const AttentionConfig config = config_of(1, 1, 8, 1, 4, 1);
  EXPECT_EQ(dimensions_from_attention(config), (std::vector<std::int64_t>{0, 2, 4, 6}));
  const Started s = start(config);
  const Tensor kept = torch::tensor({0, 2, 4, 6});
  const Tensor part = torch::matmul(s.view.q.select(1, 0).index_select(1, kept),
                                    s.view.k.select(1, 0).index_select(1, kept).t()) /
                      2;
  EXPECT_LT((s.indexer_logits(0) - part).abs().max().item<double>(), 1e-12);
}

TEST(IndexerStart, DimensionsByFrequency) {
  using Dimensions = std::vector<std::int64_t>;
  const auto from = [](std::int64_t size, std::int64_t index_size, double fraction) {
    return dimensions_from_attention(config_of(1, 1, size, 1, index_size, fraction));
  };
  // Unrotated dimensions take the lowest frequencies that are left: pairs 3 and 1 of 0 .. 3.
  EXPECT_EQ(from(8, 8, 0.5), (Dimensions{0, 2, 4, 6, 3, 7, 1, 5}));
  EXPECT_EQ(from(8, 4, 0), (Dimensions{3, 7, 2, 6}));
  EXPECT_EQ(from(8, 3, 0), (Dimensions{3, 7, 2}));
  // Larger than attention: pairs of its frequencies, the others keep their random start.
  EXPECT_EQ(from(4, 8, 1), (Dimensions{0, -1, 1, -1, 2, -1, 3, -1}));
  EXPECT_EQ(from(4, 8, 0.5), (Dimensions{0, 1, 2, 3, -1, -1, -1, -1}));
  // No dimension twice, whatever the sizes, with YaRN too.
  for (const std::int64_t size : {2, 8, 10, 64, 128}) {
    for (const std::int64_t index_size : {2, 6, 8, 32, 48, 64, 128, 130}) {
      AttentionConfig config = config_of(1, 1, size, 1, index_size, 1);
      config.rope.yarn.factor = 8;
      const Dimensions dimensions = dimensions_from_attention(config);
      std::set<std::int64_t> used;
      for (const std::int64_t d : dimensions) {
        EXPECT_TRUE(d < 0 || used.insert(d).second) << size << " " << index_size << " " << d;
      }
      EXPECT_EQ(static_cast<std::int64_t>(used.size()), std::min(size, index_size))
          << size << " " << index_size;
    }
  }
}

// Means over runs of query heads and over all key/value heads; heads again from the first where there are too
// few.
TEST(IndexerStart, HeadsAreMeansOverGroups) {
  const auto rows = [](const Tensor& weight, std::int64_t head) {
    return weight.slice(0, 8 * head, 8 * head + 8);
  };
  const auto differs = [](const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); };
  const Started three = start(config_of(4, 2, 8, 3, 8, 1));
  const Tensor q = three.layer->q_proj->weight, k = three.layer->k_proj->weight;
  const Tensor wq = three.layer->indexer->wq->weight, wk = three.layer->indexer->wk->weight;
  EXPECT_LT(differs(wk, (rows(k, 0) + rows(k, 1)) / 2), 1e-15);
  EXPECT_LT(differs(rows(wq, 0), rows(q, 0)), 1e-15);
  EXPECT_LT(differs(rows(wq, 1), rows(q, 1)), 1e-15);
  EXPECT_LT(differs(rows(wq, 2), (rows(q, 2) + rows(q, 3)) / 2), 1e-15);
  const Started six = start(config_of(4, 4, 8, 6, 8, 1));
  for (std::int64_t j = 0; j < 6; ++j) {
    EXPECT_EQ(differs(rows(six.layer->indexer->wq->weight, j), rows(six.layer->q_proj->weight, j % 4)), 0)
        << j;
  }
}

TEST(IndexerStart, WhatFindsNoPartnerStaysRandomAndTwiceIsOnce) {
  const AttentionConfig config = config_of(2, 1, 4, 2, 8, 1);
  Started s = start(config);
  const Tensor wk = s.layer->indexer->wk->weight.detach().clone(),
               wq = s.layer->indexer->wq->weight.detach().clone();
  for (const std::int64_t row : {1, 3, 5, 7}) {
    EXPECT_TRUE(wk[row].equal(s.random_wk[row]));
    EXPECT_TRUE(wq[8 + row].equal(s.random_wq[8 + row]));
  }
  EXPECT_FALSE(wk[0].equal(s.random_wk[0]));
  start_from_attention(config, s.layer->q_proj->weight, s.layer->k_proj->weight, s.layer->indexer->wq->weight,
                       s.layer->indexer->wk->weight);
  EXPECT_TRUE(wk.equal(s.layer->indexer->wk->weight));
  EXPECT_TRUE(wq.equal(s.layer->indexer->wq->weight));
}

}  // namespace
}  // namespace gsa::nn
