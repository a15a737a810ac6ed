#include "train/indexer_start.h"

#include <algorithm>
#include <map>

#include "gsa/error.h"
#include "nn/indexer_start.h"

namespace gsa::train {

IndexerStart indexer_start(const TrainConfig& config, const std::optional<nn::ModelConfig>& stored) {
  const std::string& asked = config.model.indexer_init;
  if (asked.empty() && stored && stored->attention.sparse) return IndexerStart::kept;
  const bool trained = config.phases.dense > 0 || stored;
  return asked == "attention" || (asked.empty() && trained) ? IndexerStart::attention : IndexerStart::random;
}

void renew_indexer(nn::Model& model) {
  const torch::NoGradGuard no_grad;
  for (nn::Block& block : model->model->layers) {
    if (!block->self_attn->indexer) continue;
    const nn::Indexer fresh(model->config().attention);
    nn::IndexerImpl& old = *block->self_attn->indexer;
    auto parameters = old.named_parameters();
    for (const auto& item : fresh->named_parameters()) parameters[item.key()].copy_(item.value());
    old.mean_variance.copy_(fresh->mean_variance);
  }
}

std::string start_indexer_from_attention(const nn::ModelConfig& config, AdamW& optimizer) {
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : optimizer.state()) state[name] = tensor;
  const nn::AttentionConfig& attention = config.attention;
  for (std::int64_t n = 0; n < config.layers; ++n) {
    if (!config.has_indexer(n)) continue;
    const auto master = [&](const char* name) {
      return state.at(concat("model.layers.", n, ".self_attn.", name, ".weight.master"));
    };
    nn::start_from_attention(attention, master("q_proj"), master("k_proj"), master("indexer.wq"),
                             master("indexer.wk"));
  }
  optimizer.take_state();
  const auto from = nn::dimensions_from_attention(attention);
  return concat("the indexer starts from q_proj and k_proj: ", attention.indexer.heads, " heads from ",
                attention.heads, ", one key from the mean of ", attention.kv_heads, ", ",
                std::ranges::count_if(from, [](std::int64_t d) { return d >= 0; }), " of its ", from.size(),
                " dimensions from the ", attention.head_size, " of attention");
}

}  // namespace gsa::train
