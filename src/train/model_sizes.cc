#include "train/model_sizes.h"

#include <algorithm>

#include "core/usage_error.h"
#include "kernels/attention/query_tiles.h"

namespace gsa::train {
namespace {

[[noreturn]] void refuse_size(const std::string& key, const std::string& expected, const std::string& got) {
  throw UsageError(concat("option '", key, "': expected ", expected, ", got ", got));
}

template <typename T>
std::string shown_value(const T& value) {
  return concat(value);
}
std::string shown_value(bool value) { return value ? "true" : "false"; }

// One field at a time: nothing where the option is not set, and no other value than the owner's where there
// is one.
class Chooser {
 public:
  // owner: who has fixed the fields; empty: nobody.
  explicit Chooser(std::string owner) : owner_(std::move(owner)) {}

  template <typename T>
  void operator()(const char* key, bool is_set, const T& asked, T& field) const {
    if (!is_set || asked == field) return;
    if (!owner_.empty())
      refuse_size(key, concat(shown_value(field), ", as ", owner_, " has it"), shown_value(asked));
    field = asked;
  }
  void operator()(const char* key, std::int64_t asked, std::int64_t& field) const {
    (*this)(key, asked > 0, asked, field);
  }
  void operator()(const char* key, const std::string& asked, bool& field) const {
    (*this)(key, !asked.empty(), asked == "true", field);
  }

 private:
  std::string owner_;
};

// The first option that says something about an indexer; empty: none does.
std::string about_indexer(const TrainConfig& options) {
  const auto& m = options.model;
  const std::pair<const char*, bool> set[] = {
      {"score_form", !m.score_form.empty()},
      {"budget", !m.budget.empty()},
      {"k_base", m.k_base > 0},
      {"k_min", m.k_min > 0},
      {"k_max", m.k_max > 0},
      {"dense_below", m.dense_below > 0},
      {"index_every", m.index_every > 0},
      {"index_layers", !m.index_layers.empty()},
      {"index_heads", m.index_heads > 0},
      {"index_head_size", m.index_head_size > 0},
      {"index_rope_fraction", m.index_rope_fraction != -1},
      {"index_temperature", m.index_temperature > 0},
      {"index_temperature_learned", !m.index_temperature_learned.empty()},
      {"index_variance_momentum", m.index_variance_momentum != -1},
      {"indexer_init", !m.indexer_init.empty()}};
  const auto* const found = std::ranges::find_if(set, [](const auto& item) { return item.second; });
  return found == std::end(set) ? "" : concat("model.", found->first);
}

void apply_indexer_sizes(const TrainConfig& options, nn::AttentionConfig& attention,
                         const std::string& owner) {
  const auto& m = options.model;
  nn::IndexerConfig& indexer = attention.indexer;
  const Chooser fixed(owner), free("");
  fixed("model.index_heads", m.index_heads, indexer.heads);
  fixed("model.index_head_size", m.index_head_size, indexer.head_size);
  fixed("model.index_rope_fraction", m.index_rope_fraction != -1, m.index_rope_fraction,
        indexer.rope_fraction);
  // A temperature that was learned is among the weights; one that was not may be changed at any time.
  nn::TemperatureConfig& temperature = indexer.temperature;
  const Chooser& by_weights = temperature.learned ? fixed : free;
  by_weights("model.index_temperature", m.index_temperature > 0, m.index_temperature, temperature.value);
  by_weights("model.index_temperature_learned", m.index_temperature_learned, temperature.learned);
  free("model.index_variance_momentum", m.index_variance_momentum != -1, m.index_variance_momentum,
       indexer.mean_variance_momentum);
  free("model.dense_below", m.dense_below >= 0, m.dense_below, attention.dense_below);
}

// Which layers have an indexer. What a folder has may be repeated; gsa convert leaves indexers behind.
void apply_index_layers(const TrainConfig& options, nn::ModelConfig& config, const std::string& owner) {
  const auto& m = options.model;
  if (m.index_every == 0 && m.index_layers.empty()) return;
  const std::string key = m.index_every > 0 ? "model.index_every" : "model.index_layers";
  nn::ModelConfig asked = config;
  checking_usage([&] {
    nn::set_index_layers(asked, m.index_every > 0 ? nn::every_nth_layer(config.layers, m.index_every)
                                                  : nn::layers_by_text(m.index_layers));
  });
  if (!owner.empty() && asked.index_layers != config.index_layers) {
    refuse_size(key,
                concat("indexers where ", owner, " has them (", nn::shown_index_layers(config.index_layers),
                       "; gsa convert --index-every leaves some behind)"),
                nn::shown_index_layers(asked.index_layers));
  }
  config.index_layers = asked.index_layers;
}

bool gets_indexer(const nn::ModelConfig& config, const nn::ModelConfig& stored) {
  return config.attention.sparse && !stored.attention.sparse;
}

}  // namespace

void apply_sizes(const TrainConfig& options, nn::ModelConfig& config,
                 const std::optional<nn::ModelConfig>& stored) {
  const auto& m = options.model;
  nn::AttentionConfig& attention = config.attention;
  const std::string folder = concat("the folder '", m.from, "'");
  const Chooser fixed(stored ? folder : ""), free("");
  fixed("model.vocab_size", m.vocab_size, config.vocab_size);
  fixed("model.layers", m.layers, config.layers);
  fixed("model.d_model", m.d_model, attention.d_model);
  fixed("model.intermediate_size", m.intermediate_size, config.intermediate);
  fixed("model.heads", m.heads, attention.heads);
  fixed("model.kv_heads", m.kv_heads, attention.kv_heads);
  fixed("model.head_size", m.head_size, attention.head_size);
  fixed("model.tie_embeddings", m.tie_embeddings, config.tie_embeddings);
  free("model.rope_theta", m.rope_theta > 0, m.rope_theta, attention.rope.theta);
  if (attention.sparse) {
    const std::string owner = stored && stored->attention.sparse ? folder : "";
    apply_indexer_sizes(options, attention, owner);
    apply_index_layers(options, config, owner);
  } else if (const std::string key = about_indexer(options); !key.empty()) {
    refuse_size("model.system", concat("a system with an indexer for ", key), "one without");
  }
}

void apply_gate_init(const TrainConfig& options, nn::ModelConfig& config,
                     const std::optional<nn::ModelConfig>& stored) {
  nn::AttentionConfig& attention = config.attention;
  const double asked = options.model.gate_init;
  const auto is_new = [](nn::GateKind before, nn::GateKind after) {
    return before == nn::GateKind::none && after != nn::GateKind::none;
  };
  nn::GateKind value = nn::GateKind::none, output = nn::GateKind::none;  // before
  if (stored) {
    value = stored->attention.value_gate;
    output = stored->attention.output_gate;
  }
  const bool gets_gates = is_new(value, attention.value_gate) || is_new(output, attention.output_gate);
  if (asked == 0) {
    // A trained model keeps its function, exactly: times two rounds nothing.
    if (stored && gets_gates) attention.gate_init = 0.5;
    return;
  }
  if (!gets_gates) {
    const bool none =
        attention.value_gate == nn::GateKind::none && attention.output_gate == nn::GateKind::none;
    if (none || asked != attention.gate_init) {
      refuse_size("model.gate_init",
                  none ? "none for a model without gates"
                       : concat(attention.gate_init, ", as the folder '", options.model.from, "' has it"),
                  concat(asked));
    }
  }
  attention.gate_init = asked;
}

void apply_budget(const TrainConfig& options, nn::ModelConfig& config,
                  const std::optional<nn::ModelConfig>& stored) {
  if (!config.attention.sparse) return;
  const auto& m = options.model;
  nn::BudgetConfig& budget = config.attention.budget;
  const bool converts = stored && gets_indexer(config, *stored);
  if (converts) {
    const std::int64_t length = options.data.length;
    budget.base = length < 512 ? std::max<std::int64_t>(1, length / 8) : (length / 8 + 32) / 64 * 64;
  }
  if (m.k_base > 0) budget.base = m.k_base;
  if (converts) {
    budget.min = std::max<std::int64_t>(1, budget.base / 8);
    budget.max = 2 * budget.base;
  }
  if (m.k_min > 0) budget.min = m.k_min;
  if (m.k_max > 0) budget.max = m.k_max;
}

std::string conversion_note(const TrainConfig& options, const nn::ModelConfig& config,
                            const nn::ModelConfig& stored) {
  if (!gets_indexer(config, stored)) return "";
  const nn::BudgetConfig& budget = config.attention.budget;
  const nn::IndexerConfig& indexer = config.attention.indexer;
  const char* const why = options.model.k_base > 0 ? "as model.k_base says" : "an eighth of data.length";
  const std::string where = config.index_layers.empty()
                                ? ""
                                : concat(" in ", config.indexers(), " of ", config.layers, " layers (",
                                         nn::layers_text(config.index_layers), ")");
  return concat("the model gets an indexer", where, " of ", indexer.heads, " heads of ", indexer.head_size,
                " and ", nn::name_of(budget.mode), " budgets of k_base ", budget.base, " (", why, "), k_min ",
                budget.min, ", k_max ", budget.max);
}

std::string length_note(const TrainConfig& options, const nn::AttentionConfig& attention, bool on_gpu) {
  if (options.phases.sparse == 0) return "";
  const std::int64_t length = options.data.length;
  if (length < attention.dense_below) {
    return concat("sparse steps run dense: rows of ", length,
                  " tokens are shorter than the model's dense_below, ", attention.dense_below,
                  "; model.dense_below=0 lets them select");
  }
  if (on_gpu && attention.dense_below == 0 && length < nn::kSparsePays) {
    return concat("sparse steps on rows of ", length,
                  " tokens may take longer than dense ones; model.dense_below=", nn::kSparsePays,
                  " runs sequences shorter than that dense");
  }
  return "";
}

std::string sample_note(const TrainConfig& options) {
  // The fewest that were found to teach as well as many (docs/recipe.md).
  constexpr double kTiles = 16;
  const bool samples =
      options.phases.warmup > 0 || (options.phases.sparse > 0 && options.kl_support == "all");
  if (!samples || options.kl_share == 1) return "";
  const double all = static_cast<double>(options.batch.tokens) / kQueryTile;
  const double drawn = all * options.kl_share;
  if (drawn >= kTiles) return "";
  double share = 1;
  while (share / 2 * all >= kTiles) share /= 2;
  return concat("the indexer learns from about ", drawn * kQueryTile,
                " queries a step, which is few; kl_share=", share, " takes ", share * all * kQueryTile);
}

}  // namespace gsa::train
