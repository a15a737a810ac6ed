#include "model/model_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/suggest.h"
#include "gsa/error.h"
#include "model/field_checks.h"

namespace gsa::nn {
namespace {

constexpr FieldChecks require_model{"nn::ModelConfig"};

// Position of a name in a list; the list's order is that of the enum it stands for.
std::size_t index_of(const char* what, std::string_view name, const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    bad_argument(require_model.op, what, alternatives(names), with_suggestion(name, names));
  return static_cast<std::size_t>(found - names.begin());
}

// Bytes, 1K tokens: minutes of training on two cores of a CPU.
ModelConfig tiny() {
  ModelConfig config;
  config.vocab_size = 258;  // bytes, begin, end
  config.bos_id = 256;
  config.eos_ids = {257};
  config.layers = 4;
  config.intermediate = 352;
  config.tie_embeddings = true;
  config.max_positions = 1024;
  config.attention.d_model = 128;
  config.attention.heads = 4;
  config.attention.kv_heads = 2;
  config.attention.head_size = 32;
  config.attention.indexer.heads = 4;
  config.attention.indexer.head_size = 16;
  config.attention.budget = {.mode = BudgetMode::inverse, .base = 64, .min = 16, .max = 128};
  // About half of 1 / sqrt(width): from the usual 0.02 such a narrow model needs twice the tokens to learn to
  // look back.
  config.attention.init_std = 0.06;
  return config;
}

ModelConfig small() {
  ModelConfig config;
  config.vocab_size = 32768;
  config.layers = 8;
  config.intermediate = 1408;
  config.tie_embeddings = true;
  config.max_positions = 4096;
  config.attention.d_model = 512;
  config.attention.heads = 8;
  config.attention.kv_heads = 2;
  config.attention.head_size = 64;
  config.attention.indexer.heads = 4;
  config.attention.indexer.head_size = 32;
  config.attention.budget = {.mode = BudgetMode::inverse, .base = 512, .min = 64, .max = 1024};
  return config;
}

// The paper's experiments; the indexer and the budget are its defaults.
ModelConfig paper() {
  ModelConfig config;
  config.vocab_size = 151936;
  config.layers = 24;
  config.intermediate = 5504;
  config.max_positions = 4096;
  config.attention.d_model = 2048;
  config.attention.heads = 16;
  config.attention.kv_heads = 4;
  config.attention.head_size = 128;
  config.attention.dense_below = kSparsePays;
  return config;
}

// The defaults of ModelConfig and AttentionConfig are the 7B class.
ModelConfig seven() {
  ModelConfig config;
  config.attention.dense_below = kSparsePays;
  return config;
}

struct Preset {
  const char* name;
  ModelConfig (*make)();
};

constexpr Preset kPresets[] = {
    {"tiny", tiny}, {"small", small}, {"paper-1.7b", paper}, {"llama-7b-class", seven}};

}  // namespace

const std::vector<std::string>& system_names() {
  static const std::vector<std::string> names = {"standard", "sparse-only", "gated-only", "gsa"};
  return names;
}

const char* name_of(System system) {
  const auto index = static_cast<std::size_t>(system);
  if (index >= system_names().size())
    bad_argument(require_model.op, "system", alternatives(system_names()), concat(index));
  return system_names()[index].c_str();
}

System system_by_name(std::string_view name) {
  return static_cast<System>(index_of("system", name, system_names()));
}

GateKind gate_kind_by_name(std::string_view name) {
  return static_cast<GateKind>(index_of("gate", name, {"none", "elementwise", "headwise"}));
}

ScoreForm score_form_by_name(std::string_view name) {
  return index_of("indexer.form", name, {"sigmoid", "relu"}) == 0 ? ScoreForm::sigmoid : ScoreForm::relu;
}

BudgetMode budget_mode_by_name(std::string_view name) {
  constexpr BudgetMode kModes[] = {BudgetMode::inverse, BudgetMode::proportional, BudgetMode::fixed};
  return kModes[index_of("budget.mode", name, {"inverse", "proportional", "fixed"})];
}

const std::vector<std::string>& ModelConfig::preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Preset& preset : kPresets) list.emplace_back(preset.name);
    return list;
  }();
  return names;
}

ModelConfig ModelConfig::preset(std::string_view name) {
  return kPresets[index_of("preset", name, preset_names())].make();
}

void apply(ModelConfig& config, System system) {
  AttentionConfig switches;
  switch (system) {
    case System::standard:
      switches = AttentionConfig::standard();
      break;
    case System::sparse_only:
      switches = AttentionConfig::sparse_only();
      break;
    case System::gated_only:
      switches = AttentionConfig::gated_only();
      break;
    case System::gsa:
      switches = AttentionConfig::gsa();
      break;
    default:
      name_of(system);  // throws
  }
  AttentionConfig& attention = config.attention;
  attention.sparse = switches.sparse;
  set_form(attention.indexer, switches.indexer.form);
  attention.budget.mode = switches.budget.mode;
  attention.value_gate = switches.value_gate;
  attention.output_gate = switches.output_gate;
  if (!attention.sparse) {  // they say nothing where everything is dense
    attention.dense_below = 0;
    config.index_layers.clear();
  }
}

std::optional<System> system_of(const AttentionConfig& config) {
  for (const std::string& name : system_names()) {
    const System system = system_by_name(name);
    ModelConfig other;
    other.attention = config;
    apply(other, system);
    const AttentionConfig& a = other.attention;
    const bool same_switches =
        a.sparse == config.sparse && a.value_gate == config.value_gate && a.output_gate == config.output_gate;
    const bool same_selection =
        !a.sparse || (a.indexer.form == config.indexer.form && a.budget.mode == config.budget.mode);
    if (same_switches && same_selection) return system;
  }
  return std::nullopt;
}

std::vector<std::int64_t> every_nth_layer(std::int64_t layers, std::int64_t n) {
  require_model(n >= 1, "index_every", "a positive number of layers", n);
  std::vector<std::int64_t> list;
  for (std::int64_t layer = 0; n > 1 && layer < layers; layer += n) list.push_back(layer);
  if (std::ssize(list) == layers) list.clear();  // one layer
  return list;
}

std::string layers_text(const std::vector<std::int64_t>& layers) {
  std::string text;
  for (const std::int64_t layer : layers) text += concat(text.empty() ? "" : ", ", layer);
  return text;
}

std::string shown_index_layers(const std::vector<std::int64_t>& index_layers) {
  return index_layers.empty() ? "every layer" : concat("layers ", layers_text(index_layers));
}

std::vector<std::int64_t> layers_by_text(std::string_view text) {
  std::vector<std::int64_t> layers;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    std::int64_t layer = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), layer);
    const bool whole = error == std::errc() && end == part.data() + part.size();
    require_model(whole && (comma == std::string_view::npos || !rest.empty()), "index_layers",
                  "layers with commas between them, such as 0,4,9", concat("'", text, "'"));
    layers.push_back(layer);
    if (comma == std::string_view::npos) break;
  }
  return layers;
}

void set_index_layers(ModelConfig& config, std::vector<std::int64_t> index_layers) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(std::max<std::int64_t>(config.layers, 0)));
  std::iota(all.begin(), all.end(), 0);
  config.index_layers = index_layers == all ? std::vector<std::int64_t>() : std::move(index_layers);
}

void validate_index_layers(const ModelConfig& config) {
  const std::vector<std::int64_t>& list = config.index_layers;
  if (list.empty()) return;
  require_model(config.attention.sparse, "index_layers", "none where attention is dense", layers_text(list));
  bool good = list.front() == 0 && list.back() < config.layers;
  for (std::size_t i = 1; i < list.size(); ++i) good = good && list[i - 1] < list[i];
  require_model(good, "index_layers",
                concat("layers in 0 .. ", config.layers - 1,
                       ", ascending, each once, the first 0 (a layer shares "
                       "the selection of one before it)"),
                layers_text(list));
  require_model(std::ssize(list) < config.layers, "index_layers",
                "an empty list where every layer has an indexer (set_index_layers makes it one)",
                layers_text(list));
}

bool ModelConfig::has_indexer(std::int64_t layer) const {
  return attention.sparse && (index_layers.empty() || std::ranges::binary_search(index_layers, layer));
}

std::int64_t ModelConfig::leader_of(std::int64_t layer) const {
  if (index_layers.empty()) return layer;
  return *std::prev(std::ranges::upper_bound(index_layers, layer));
}

AttentionConfig ModelConfig::attention_of(std::int64_t layer) const {
  AttentionConfig config = attention;
  config.shares_selection = attention.sparse && !has_indexer(layer);
  return config;
}

std::int64_t ModelConfig::indexers() const {
  if (!attention.sparse) return 0;
  return index_layers.empty() ? layers : std::ssize(index_layers);
}

std::int64_t ModelConfig::trained_length() const {
  return attention.rope.yarn.factor == 1 ? max_positions : attention.rope.yarn.original_length;
}

void extend(ModelConfig& config, double factor) {
  const std::int64_t trained = config.trained_length();
  YarnConfig& yarn = config.attention.rope.yarn;
  require_model(factor >= 1 && std::isfinite(factor), "rope.yarn.factor", "a finite number, 1 or more",
                factor);
  require_model(factor * static_cast<double>(trained) <= INT32_MAX, "rope.yarn.factor",
                concat("at most ", INT32_MAX, " positions of the ", trained, " the model was trained at"),
                factor);
  const RopeConfig& rope = config.attention.rope;
  if (rope.linear_factor != 1 || rope.llama3.factor != 1) {
    require_model(factor == 1, "rope.yarn.factor",
                  concat("1, as the model has ", rope.linear_factor != 1 ? "linear" : "llama3",
                         " scaling, beside which there is no YaRN"),
                  factor);
    return;
  }
  yarn.factor = factor;
  yarn.original_length = trained;
  config.max_positions = std::llround(factor * static_cast<double>(trained));
}

void ModelConfig::validate() const {
  constexpr std::int64_t kMax = INT32_MAX;
  attention.validate();
  require_model.range("vocab_size", vocab_size, 1, kMax);
  require_model.range("layers", layers, 1, 65536);
  require_model.range("intermediate", intermediate, 1, kMax);
  require_model.range("max_positions", max_positions, 1, kMax);  // kernels count positions in 32 bits
  require_model.range("attention.d_model", attention.d_model, 1, kMax);
  // A file may say anything; counts of parameters and bytes stay exact below this.
  const double width = static_cast<double>(attention.d_model);
  const double per_layer = width * (3 * static_cast<double>(intermediate) +
                                    8 * static_cast<double>(attention.heads * attention.head_size));
  const double parameters =
      2 * width * static_cast<double>(vocab_size) + per_layer * static_cast<double>(layers);
  require_model(parameters < 1e15, "layers", "sizes of less than 10^15 parameters in all",
                concat("about ", parameters));
  require_model(rms_eps > 0 && std::isfinite(rms_eps), "rms_eps", "a positive finite number", rms_eps);
  if (bos_id) require_model.range("bos_id", *bos_id, 0, vocab_size - 1);
  for (const std::int64_t id : eos_ids) require_model.range("eos_ids", id, 0, vocab_size - 1);
  require_model(!attention.shares_selection, "attention.shares_selection",
                "false, as index_layers says which layers share a selection", "true");
  validate_index_layers(*this);
}

std::string ModelConfig::describe() const {
  std::ostringstream out;
  const auto system = system_of(attention);
  out << "system     " << (system ? name_of(*system) : "an ablation") << '\n'
      << "decoder    " << layers << " layers, SwiGLU " << intermediate << ", vocabulary " << vocab_size
      << (tie_embeddings ? " (tied)" : " (untied)") << ", up to " << max_positions << " tokens, RMSNorm eps "
      << rms_eps << (scale_residual_init ? ", residual projections start scaled" : "") << '\n'
      << attention.describe();
  if (indexers() < layers && attention.sparse) {
    out << "selection  by " << index_layers.size() << " of " << layers << " layers ("
        << layers_text(index_layers) << "), each for itself and for those after it\n";
  }
  return out.str();
}

}  // namespace gsa::nn
