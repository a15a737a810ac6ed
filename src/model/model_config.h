// The configuration of a whole language model: sizes, presets by name, and the four systems of the paper, any
// of which can be put on any preset. Ablations are fields of `attention` (model/config.h). No torch header.
//
//   ModelConfig config = ModelConfig::preset("small");
//   apply(config, System::gated_only);
//   config.attention.value_gate = GateKind::none;   // G1 alone
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace gsa::nn {

enum class System { standard, sparse_only, gated_only, gsa };

// "standard", "sparse-only", "gated-only", "gsa".
const char* name_of(System system);
System system_by_name(std::string_view name);  // throws with a suggestion
const std::vector<std::string>& system_names();

// About the length at which a sparse layer was measured to train as fast as a dense one (docs/recipe.md).
// The large presets run shorter sequences dense; tiny and small, which are for experiments, do not.
constexpr std::int64_t kSparsePays = 16384;

struct ModelConfig {
  std::int64_t vocab_size = 32000;
  std::int64_t layers = 32;
  std::int64_t intermediate = 14336;  // width of the SwiGLU block
  double rms_eps = 1e-5;
  bool tie_embeddings = false;  // the output projection is the embedding's weight
  // The longest sequence the model is meant for: the trained length, times YaRN's factor where one is set.
  std::int64_t max_positions = 4096;
  std::optional<std::int64_t> bos_id = std::nullopt;
  std::vector<std::int64_t> eos_ids;  // any of them ends a text

  // A name alone: where a standard model has the parts of Llama and Mistral, it is written as Mistral's.
  bool mistral = false;

  // d_model, heads, kv_heads, head_size, RoPE, initialisation, and every switch between systems.
  AttentionConfig attention;

  // Layers that have an indexer, ascending, the first is 0: each selects for itself and for the layers after
  // it that have none. Empty: every layer has one (a list of them all is refused, so that equal models compare
  // equal), or the model is dense.
  std::vector<std::int64_t> index_layers;

  // Projections that write into the residual stream (o_proj, down_proj) start smaller, by sqrt(2 layers).
  bool scale_residual_init = false;

  // tiny, small, paper-1.7b, llama-7b-class; throws with a suggestion. The system is gsa.
  static ModelConfig preset(std::string_view name);
  static const std::vector<std::string>& preset_names();

  // Throws gsa::Error naming the field, what was expected and what came.
  void validate() const;

  // A few lines for people.
  std::string describe() const;

  // Of a layer in 0 .. layers - 1. has_indexer: false for every layer of a dense model. leader_of: the layer
  // whose indexer selects for this one. attention_of: `attention` as this layer has it.
  bool has_indexer(std::int64_t layer) const;
  std::int64_t leader_of(std::int64_t layer) const;
  AttentionConfig attention_of(std::int64_t layer) const;

  // How many layers have an indexer.
  std::int64_t indexers() const;

  // The length that the model was trained at: max_positions without YaRN's extension.
  std::int64_t trained_length() const;
};

// Sets the switches of `system` (sparse, score form, budget mode, gates) and leaves sizes, k and all the
// rest; but a new form brings its temperature (set_form), and a dense system has neither dense_below nor
// index_layers.
void apply(ModelConfig& config, System system);

// Layers 0, n, 2n, ..., as index_layers has them: n = 1 gives the empty list.
std::vector<std::int64_t> every_nth_layer(std::int64_t layers, std::int64_t n);

// A list of layers as options and messages have it: "0, 4, 9"; blanks may be left out. The reader throws where
// a part is no number.
std::string layers_text(const std::vector<std::int64_t>& layers);
std::vector<std::int64_t> layers_by_text(std::string_view text);

// Sets index_layers; a list of every layer becomes the empty one.
void set_index_layers(ModelConfig& config, std::vector<std::int64_t> index_layers);
// What validate() says of index_layers, alone.
void validate_index_layers(const ModelConfig& config);
// Which layers have an indexer, for people: layers_text, or "every layer".
std::string shown_index_layers(const std::vector<std::int64_t>& index_layers);

// Which system a configuration is; absent for an ablation that is none of the four.
std::optional<System> system_of(const AttentionConfig& config);

// YaRN for `factor` times the trained length; 1 takes an extension away.
void extend(ModelConfig& config, double factor);

// Names as they appear in config files and on the command line; all throw with a suggestion.
GateKind gate_kind_by_name(std::string_view name);
ScoreForm score_form_by_name(std::string_view name);
BudgetMode budget_mode_by_name(std::string_view name);

}  // namespace gsa::nn
