// One layer of gated sparse attention: forward with the indexer's loss and statistics, one backward pass, and
// the dense layer of the same shape beside it.
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "nn/attention.h"

namespace {

gsa::nn::AttentionConfig shrink(gsa::nn::AttentionConfig config) {
  config.d_model = 256;
  config.heads = 8;
  config.kv_heads = 2;
  config.head_size = 32;
  config.indexer.head_size = 32;
  config.budget.base = 64;  // each query attends to about 64 keys, never to more than 128
  config.budget.min = 16;
  config.budget.max = 128;
  return config;
}

double norm_of(const at::Tensor& x) { return x.defined() ? x.norm().item<double>() : 0; }

std::string text(const char* format, double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

void print_row(const char* what, const std::string& sparse, const std::string& dense) {
  std::printf("%-28s %12s %12s\n", what, sparse.c_str(), dense.c_str());
}

}  // namespace

int main() {
  using gsa::nn::AttentionConfig;
  torch::manual_seed(0);
  gsa::nn::GatedSparseAttention gsa(shrink(AttentionConfig::gsa()));
  gsa::nn::GatedSparseAttention dense(shrink(AttentionConfig::standard()));
  std::printf("%s\n", gsa->config().describe().c_str());

  // The first training batch sets the running mean of the score variance; the budget adapts from the second
  // on.
  gsa->forward(torch::randn({2, 512, 256}));
  const at::Tensor h = torch::randn({2, 512, 256});

  const auto sparse_result = gsa->forward(h, {.want_kl = true, .want_stats = true});
  const auto dense_result = dense->forward(h, {.want_stats = true});
  const auto& s = *sparse_result.stats;
  const auto& d = *dense_result.stats;

  // The language-model loss (here: any function of the output) teaches projections and gates, the KL teaches
  // the indexer; neither reaches the other's parameters, so one backward pass of the sum serves both.
  (sparse_result.out.square().mean() + *sparse_result.kl).backward();
  dense_result.out.square().mean().backward();

  print_row("2 sequences of 512 tokens", "gsa", "standard");
  print_row("keys a query, mean", text("%.1f", s.k_mean), text("%.1f", d.k_mean));
  print_row("keys a query, most", std::to_string(s.k_max), std::to_string(d.k_max));
  print_row("dense attention mass kept", text("%.3f", s.kept_mass), text("%.3f", d.kept_mass));
  print_row("score variance, mean", text("%.2e", s.variance_mean.value_or(0)), "-");
  print_row("indexer loss (KL)", text("%.4f", sparse_result.kl->item<double>()), "-");
  print_row("value gate, mean", text("%.3f", s.value_gate_mean.value_or(0)), "-");
  print_row("output gate, mean", text("%.3f", s.output_gate_mean.value_or(0)), "-");
  print_row("norm of the output", text("%.3f", norm_of(sparse_result.out)),
            text("%.3f", norm_of(dense_result.out)));
  print_row("gradient norm, q_proj", text("%.2e", norm_of(gsa->q_proj->weight.grad())),
            text("%.2e", norm_of(dense->q_proj->weight.grad())));
  print_row("gradient norm, indexer.wq", text("%.2e", norm_of(gsa->indexer->wq->weight.grad())), "-");
  return 0;
}
