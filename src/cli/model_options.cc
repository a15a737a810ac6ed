#include "cli/model_options.h"

#include "cli/checks.h"
#include "core/dangling_link.h"
#include "core/file.h"
#include "core/suggest.h"
#include "core/usage_error.h"
#include "kernels/decode/decode.h"
#include "model/config_json.h"
#include "model/newest_model.h"

namespace gsa::cli {

using namespace gsa::nn;

void add_model_options(CLI::App& app, ModelOptions& options) {
  const char* kChoice = "Which model";
  CLI::Option* folder =
      app.add_option("folder", options.folder, "a model folder (config.json and model.safetensors)");
  folder->group(kChoice);
  app.add_option(
         "--preset", options.preset,
         concat("sizes by name, where no folder is given: ", alternatives(ModelConfig::preset_names())))
      ->capture_default_str()
      ->excludes(folder)
      ->group(kChoice);
  app.add_option("--system", options.system, concat("attention: ", alternatives(system_names())))
      ->group(kChoice);
  const char* kSwitches = "Ablations, on top of the system";
  app.add_option("--value-gate", options.value_gate, "G2: none, elementwise or headwise")->group(kSwitches);
  app.add_option("--output-gate", options.output_gate, "G1: none, elementwise or headwise")->group(kSwitches);
  app.add_option("--score", options.score, "the indexer's scores: sigmoid or relu")->group(kSwitches);
  app.add_option("--budget", options.budget,
                 "how k follows the scores' variance: inverse, proportional or fixed")
      ->group(kSwitches);
  app.add_option("--k", options.k, "keys a query attends to (k_base)")->group(kSwitches);
  app.add_option("--k-min", options.k_min, "lower bound of k")->group(kSwitches);
  app.add_option("--k-max", options.k_max, "upper bound of k")->group(kSwitches);
  app.add_option("--index-heads", options.index_heads, "heads of the indexer")->group(kSwitches);
  app.add_option("--index-head-dim", options.index_head_dim, "size of an indexer head")->group(kSwitches);
  CLI::Option* every =
      app.add_option("--index-every", options.index_every,
                     "layers 0, n, 2n, ... have an indexer, those after each share its selection");
  every->check(positive_whole())->group(kSwitches);
  app.add_option("--index-layers", options.index_layers, "the same as a list, such as 0,4,9")
      ->excludes(every)
      ->group(kSwitches);
  app.add_option("--dense-below", options.dense_below, "sequences with fewer keys run dense; 0: none do")
      ->group(kSwitches);
  app.add_option("--vocab-size", options.vocab_size, "another vocabulary")->group(kSwitches);
  add_extend_option(app, options.extend, kSwitches);
}

void add_extend_option(CLI::App& app, std::optional<double>& extend, const char* group) {
  CLI::Option* option =
      app.add_option("--extend", extend, "YaRN to this many times the trained length; 1: none");
  option->group(group);
  app.add_option_function<double>("--yarn",
                                  [&extend](const double& factor) {
                                    tell_note("--yarn is now --extend");
                                    extend = factor;
                                  })
      ->group("")  // not in --help
      ->excludes(option);
}

void extend_by(ModelConfig& config, double factor) {
  const double max_factor =
      static_cast<double>(kMaxDecodeLength) / static_cast<double>(config.trained_length());
  // The comparison is false for NaN.
  if (!(factor >= 1 && factor <= max_factor)) {
    throw UsageError(concat("--extend: expected a number from 1 to ", max_factor, ", which makes ",
                            kMaxDecodeLength, " tokens of the ", config.trained_length(),
                            " the model was trained at, got ", factor));
  }
  checking_option("--extend", [&] { extend(config, factor); });
}

std::string model_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  constexpr const char* kExpected = "a model's folder (config.json and model.safetensors)";
  const fs::path path = folder;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    bad_file(folder, kExpected,
             fs::exists(path, error) ? "a file" : concat("no such folder", dangling_link(path)));
  }
  const std::string found = newest_model(path).string();
  if (!fs::exists(fs::path(found) / "config.json", error))
    bad_file(folder, kExpected, "no config.json in it");
  return found;
}

namespace {

ModelConfig config_of_folder(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(model_folder(folder)) / "config.json";
  return config_from_json(read_file(path, 16 << 20), path.string()).config;
}

void apply_options(ModelConfig& config, const ModelOptions& options) {
  AttentionConfig& a = config.attention;
  if (!options.system.empty())
    apply(config, checking_option("--system", [&] { return system_by_name(options.system); }));
  const auto gate = [](const char* option, const std::string& name) {
    return checking_option(option, [&] { return gate_kind_by_name(name); });
  };
  if (!options.value_gate.empty()) a.value_gate = gate("--value-gate", options.value_gate);
  if (!options.output_gate.empty()) a.output_gate = gate("--output-gate", options.output_gate);
  // An option that a dense model would ignore is refused.
  const bool about_selection = !options.score.empty() || !options.budget.empty() || options.k ||
                               options.k_min || options.k_max || options.index_heads ||
                               options.index_head_dim || options.index_every ||
                               !options.index_layers.empty() || options.dense_below;
  if (about_selection && !a.sparse) {
    throw Error(
        "--score, --budget, --k, --k-min, --k-max, --index-heads, --index-head-dim, --index-every, "
        "--index-layers and --dense-below: expected a sparse system, got a dense one");
  }
  if (!options.score.empty())
    set_form(a.indexer, checking_option("--score", [&] { return score_form_by_name(options.score); }));
  if (!options.budget.empty())
    a.budget.mode = checking_option("--budget", [&] { return budget_mode_by_name(options.budget); });
  a.budget.base = options.k.value_or(a.budget.base);
  a.budget.min = options.k_min.value_or(a.budget.min);
  a.budget.max = options.k_max.value_or(a.budget.max);
  const bool ordered = 1 <= a.budget.min && a.budget.min <= a.budget.base && a.budget.base <= a.budget.max;
  if ((options.k || options.k_min || options.k_max) && !ordered) {
    throw Error(concat("expected 1 <= --k-min <= --k <= --k-max, got --k-min ", a.budget.min, ", --k ",
                       a.budget.base, ", --k-max ", a.budget.max, " (those not given are the model's)"));
  }
  a.indexer.heads = options.index_heads.value_or(a.indexer.heads);
  a.indexer.head_size = options.index_head_dim.value_or(a.indexer.head_size);
  if (options.index_every) {
    set_index_layers(config, every_nth_layer(config.layers, *options.index_every));
  } else if (!options.index_layers.empty()) {
    checking_option("--index-layers", [&] {
      set_index_layers(config, layers_by_text(options.index_layers));
      validate_index_layers(config);
    });
  }
  a.dense_below = options.dense_below.value_or(a.dense_below);
  config.vocab_size = options.vocab_size.value_or(config.vocab_size);
  if (options.extend) extend_by(config, *options.extend);
  config.validate();
}

}  // namespace

ModelConfig chosen_config(const ModelOptions& options) {
  ModelConfig config = options.folder.empty()
                           ? checking_option("--preset", [&] { return ModelConfig::preset(options.preset); })
                           : config_of_folder(options.folder);
  checking_option("", [&] { apply_options(config, options); });
  return config;
}

}  // namespace gsa::cli
