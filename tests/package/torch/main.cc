// A layer whose budget covers every key, and the operator beneath it beside torch's own attention.
#include <gsa/nn/attention.h>
#include <gsa/nn/model_io.h>
#include <gsa/torch/ops.h>

#include <ATen/ops/scaled_dot_product_attention.h>

#include <cstdio>

int main() {
  torch::manual_seed(0);
  const auto q = torch::randn({1, 64, 4, 16}), k = torch::randn({1, 64, 4, 16}),
             v = torch::randn({1, 64, 4, 16});
  const gsa::ops::IndexerInputs indexer{
      .q = torch::randn({1, 64, 2, 8}), .k = torch::randn({1, 64, 8}), .w = torch::rand({1, 64, 2})};
  const auto dense =
      at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {}, 0,
                                       /*is_causal=*/true)
          .transpose(1, 2);
  const auto all =
      gsa::ops::sparse_attend(q, k, v, indexer, {.mode = "fixed", .base = 64, .min = 64, .max = 64});
  const auto few =
      gsa::ops::sparse_attend(q, k, v, indexer, {.mode = "fixed", .base = 8, .min = 8, .max = 8});
  const double error = (all.attention.out - dense).abs().max().item<double>();

  gsa::nn::AttentionConfig config = gsa::nn::AttentionConfig::gsa();
  config.d_model = 64;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_size = 16;
  config.budget = {.base = 16, .min = 8, .max = 32};
  gsa::nn::GatedSparseAttention layer(config);
  const auto result = layer->forward(torch::randn({2, 64, 64}), {.want_kl = true});
  (result.out.square().mean() + *result.kl).backward();

  const auto keys = few.selection.k_t.max().item<int>();
  std::printf("keys %d, error %s, gradient %s\n", keys, error < 1e-5 ? "below 1e-5" : "too large",
              layer->q_proj->weight.grad().defined() ? "there" : "missing");
  return keys == 8 && error < 1e-5 ? 0 : 1;
}
