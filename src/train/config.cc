#include "train/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>

#include "core/file.h"
#include "core/suggest.h"
#include "core/usage_error.h"
#include "model/indexer_kl_sample.h"
#include "torch/threads.h"
#include "train/model_sizes.h"

namespace gsa::train {
namespace {

constexpr std::int64_t kMaxConfigBytes = 1 << 20;
constexpr double kMany = 9e15;  // beyond any count, and exact as a double

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

std::string number_text(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return concat(static_cast<std::int64_t>(value), ".0");
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, end.ptr};
}

std::string bound_text(double value) {
  return value == std::floor(value) ? concat(static_cast<std::int64_t>(value)) : number_text(value);
}

std::string expectation(const Option& option) {
  if (!option.choices.empty()) {
    std::vector<std::string> shown;
    for (const std::string& choice : option.choices) shown.push_back(choice.empty() ? "\"\"" : choice);
    return alternatives(shown);
  }
  if (std::holds_alternative<bool*>(option.target)) return "true or false";
  if (std::holds_alternative<std::string*>(option.target)) return "text";
  std::string range = option.high >= kMany
                          ? concat(" of at least ", bound_text(option.low))
                          : concat(" from ", bound_text(option.low), " to ", bound_text(option.high));
  return option.type() + range;
}

[[noreturn]] void refuse_key(const Option& option, const std::string& got) {
  throw UsageError(concat("option '", option.key, "': expected ", expectation(option), ", got ", got));
}

void assign(const Option& option, double value, const std::string& shown) {
  if (!(value >= option.low && value <= option.high)) refuse_key(option, shown);
  if (const auto target = std::get_if<std::int64_t*>(&option.target)) {
    if (value != std::floor(value)) refuse_key(option, shown);
    **target = static_cast<std::int64_t>(value);
  } else if (const auto real = std::get_if<double*>(&option.target)) {
    **real = value;
  } else {
    refuse_key(option, shown);
  }
}

void assign(const Option& option, const std::string& value) {
  const auto target = std::get_if<std::string*>(&option.target);
  if (target == nullptr) refuse_key(option, quoted(value));
  if (!option.choices.empty() && std::ranges::find(option.choices, value) == option.choices.end()) {
    refuse_key(option, with_suggestion(value, option.choices));
  }
  **target = value;
}

void assign(const Option& option, bool value) {
  // A flag that may also be left as it is: a choice of "", "true" and "false".
  if (std::ranges::find(option.choices, "true") != option.choices.end()) {
    return assign(option, std::string(value ? "true" : "false"));
  }
  const auto target = std::get_if<bool*>(&option.target);
  if (target == nullptr) refuse_key(option, value ? "true" : "false");
  **target = value;
}

// Old names, which files of older runs have.
std::string present_name(const std::string& key) {
  if (key == "model.yarn_factor") return "model.extend";
  return key == "spans" || key.starts_with("spans.") ? "phases" + key.substr(5) : key;
}

// The option of this name; errors call it as it was typed.
Option find(const std::vector<Option>& options, const std::string& typed) {
  const std::string key = present_name(typed);
  std::vector<std::string> keys;
  for (const Option& option : options) {
    if (option.key == key) {
      Option found = option;
      found.key = typed;
      return found;
    }
    keys.push_back(option.key);
  }
  throw UsageError(concat("expected an option that exists (gsa train --help lists them), got ",
                          with_suggestion(key, keys)));
}

std::string placed(const std::filesystem::path& folder, const std::string& path) {
  if (path.empty() || folder.empty()) return path;
  const std::filesystem::path whole = (folder / path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).string();  // "run/." is "run"
}

void read_value(const toml::node& node, const std::string& key, const std::vector<Option>& options,
                const std::filesystem::path& folder) {
  const Option option = find(options, key);
  if (const auto* flag = node.as_boolean()) {
    assign(option, flag->get());
  } else if (const auto* text = node.as_string()) {
    assign(option, option.path ? placed(folder, text->get()) : text->get());
  } else if (const auto* whole = node.as_integer()) {
    assign(option, static_cast<double>(whole->get()), concat(whole->get()));
  } else if (const auto* real = node.as_floating_point()) {
    assign(option, real->get(), number_text(real->get()));
  } else {
    refuse_key(option, "a list or a date");
  }
}

void read_table(const toml::table& table, const std::string& prefix, const std::vector<Option>& options,
                const std::string& file, const std::filesystem::path& folder) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    const toml::table* const inner = node.as_table();
    if (inner != nullptr && !inner->empty()) {
      read_table(*inner, key + ".", options, file, folder);
      continue;
    }
    const bool known_group = inner != nullptr && std::ranges::any_of(options, [&](const Option& option) {
                               return option.key.starts_with(present_name(key) + ".");
                             });
    if (known_group) continue;  // an empty group says nothing
    try {
      read_value(node, key, options, folder);
    } catch (const UsageError& error) {
      throw UsageError(concat("file '", file, "', line ", node.source().begin.line, ": ", error.what()));
    }
  }
}

}  // namespace

std::vector<Option> options_of(TrainConfig& c) {
  const auto flag = [](const char* key, bool& target, const char* help) {
    return Option{key, &target, help};
  };
  const auto whole = [](const char* key, std::int64_t& target, double low, double high, const char* help) {
    return Option{key, &target, help, low, high};
  };
  const auto real = [](const char* key, double& target, double low, double high, const char* help) {
    return Option{key, &target, help, low, high};
  };
  const auto text = [](const char* key, std::string& target, const char* help) {
    return Option{key, &target, help};
  };
  const auto path = [](const char* key, std::string& target, const char* help) {
    return Option{key, &target, help, 0, 0, {}, true};
  };
  const auto or_empty = [](std::vector<std::string> names) {
    names.insert(names.begin(), "");
    return names;
  };
  const auto choice = [](const char* key, std::string& target, std::vector<std::string> choices,
                         const char* help) { return Option{key, &target, help, 0, 0, std::move(choices)}; };
  return {
      path("model.from", c.model.from,
           "start from this model folder, or from the newest checkpoint of this run; empty: from scratch"),
      flag("model.ignore_tokenizer", c.model.ignore_tokenizer,
           "take the dataset's ids for the model's, whatever tokenizer stands in model.from"),
      choice("model.preset", c.model.preset, or_empty(nn::ModelConfig::preset_names()),
             "sizes of a model from scratch; empty: tiny"),
      choice(
          "model.system", c.model.system, or_empty(nn::system_names()),
          "attention; empty: gsa, or what the folder has. Parts that the folder lacks (gates, indexer) are "
          "initialised such that the model starts as the function it was"),
      choice("model.value_gate", c.model.value_gate, {"", "none", "elementwise", "headwise"},
             "G2; empty: as the system has it"),
      choice("model.output_gate", c.model.output_gate, {"", "none", "elementwise", "headwise"},
             "G1; empty: as the system has it"),
      real(
          "model.gate_init", c.model.gate_init, 0, 0.9999,
          "where new gates start; what a folder has is divided by it, to stay the same function; 0: 0.9 in a "
          "model from scratch, 0.5 in a folder that has none"),
      choice("model.score_form", c.model.score_form, {"", "sigmoid", "relu"},
             "the indexer's activation; empty: as the system has it"),
      choice("model.budget", c.model.budget, {"", "inverse", "proportional", "fixed"},
             "how k follows the variance of the scores; empty: as the system has it"),
      whole("model.k_base", c.model.k_base, 0, kMany, "keys a query attends to; 0: as it is"),
      whole("model.k_min", c.model.k_min, 0, kMany, "the fewest; 0: as it is"),
      whole("model.k_max", c.model.k_max, 0, kMany, "the most; 0: as it is"),
      whole("model.vocab_size", c.model.vocab_size, 0, 1 << 30,
            "of a model from scratch, at least the tokenizer's; 0: just that"),
      // Sizes may repeat what a folder has, never contradict it (model_sizes.h).
      whole("model.layers", c.model.layers, 0, 65536, "decoder blocks; 0: as it is"),
      whole("model.d_model", c.model.d_model, 0, 1 << 24, "width of the residual stream; 0: as it is"),
      whole("model.intermediate_size", c.model.intermediate_size, 0, 1 << 24,
            "width of the SwiGLU block; 0: as it is"),
      whole("model.heads", c.model.heads, 0, 1 << 16, "query heads; 0: as it is"),
      whole("model.kv_heads", c.model.kv_heads, 0, 1 << 16,
            "key/value heads, a divisor of heads; 0: as it is"),
      whole("model.head_size", c.model.head_size, 0, 256, "dimensions of a head, even; 0: as it is"),
      choice("model.tie_embeddings", c.model.tie_embeddings, {"", "true", "false"},
             "the output projection is the embedding's weight; empty: as it is"),
      real("model.rope_theta", c.model.rope_theta, 0, 1e15,
           "base of RoPE's frequencies, above 1; of a folder too, as for longer contexts; 0: as it is"),
      whole("model.dense_below", c.model.dense_below, -1, kMany,
            "sequences with fewer keys run dense; 0: none do; -1: as it is (presets: 16384 in paper-1.7b and "
            "llama-7b-class, else 0)"),
      whole("model.index_every", c.model.index_every, 0, 65536,
            "layers 0, n, 2n, ... have an indexer, and the layers after each share its selection; 1: every "
            "layer has one; 0: as it is, in a new indexer 1"),
      text("model.index_layers", c.model.index_layers,
           "the same as a list, such as \"0,4,9\": layers that have an indexer, the first 0; empty: by "
           "index_every"),
      whole("model.index_heads", c.model.index_heads, 0, 128, "query heads of the indexer; 0: as it is"),
      whole("model.index_head_size", c.model.index_head_size, 0, 256,
            "dimensions of an indexer head; 0: as it is"),
      real("model.index_rope_fraction", c.model.index_rope_fraction, -1, 1,
           "share of the indexer's dimensions that RoPE rotates, an even number of them; -1: as it is"),
      real(
          "model.index_temperature", c.model.index_temperature, 0, 1e6,
          "divides the indexer's scores in its loss; where learned, the start; 0: as it is, in a new indexer "
          "0.1 for sigmoid scores and 1 for relu"),
      choice("model.index_temperature_learned", c.model.index_temperature_learned, {"", "true", "false"},
             "empty: as it is"),
      real("model.index_variance_momentum", c.model.index_variance_momentum, -1, 0.999999,
           "of the running mean of the scores' variance, which budgets follow; -1: as it is"),
      choice("model.indexer_init", c.model.indexer_init, {"", "attention", "random"},
             "a new indexer starts from q_proj and k_proj as they are when it begins to learn, or at random; "
             "empty: attention after dense steps or from a folder, else random; an indexer that the folder "
             "has goes on"),
      real("model.extend", c.model.extend, 0, 1024,
           "YaRN to this many times the trained length; 1: none; 0: as it is"),
      path("data.train", c.data.train, "dataset folder (gsa tokenize makes one)"),
      path("data.validation", c.data.validation, "dataset folder for validation; empty: none"),
      whole("data.length", c.data.length, 1, 1 << 24,
            "tokens a row; from scratch also the length that the model is meant for"),
      whole("data.seed", c.data.seed, 0, kMany, "of the order of documents"),
      whole("phases.dense", c.phases.dense, 0, kMany, "steps with dense attention, indexer frozen"),
      whole("phases.warmup", c.phases.warmup, 0, kMany,
            "steps in which the indexer alone learns, attention dense"),
      whole("phases.sparse", c.phases.sparse, 0, kMany, "steps with sparse attention, everything learns"),
      whole("batch.tokens", c.batch.tokens, 1, kMany, "tokens a step, reached by accumulating gradients"),
      whole("batch.rows", c.batch.rows, 1, 1 << 20, "rows at a time (bounds memory)"),
      real("optimizer.lr", c.optimizer.lr, 0, 10, "peak learning rate"),
      real("optimizer.indexer_lr_multiplier", c.optimizer.indexer_lr_multiplier, 0, 1e4, "for the indexer"),
      real("optimizer.gate_lr_multiplier", c.optimizer.gate_lr_multiplier, 0, 1e4, "for the gates"),
      real("optimizer.beta1", c.optimizer.beta1, 0, 0.99999, "decay of the mean of gradients"),
      real("optimizer.beta2", c.optimizer.beta2, 0, 0.999999, "decay of the mean of their squares"),
      real("optimizer.eps", c.optimizer.eps, 1e-20, 1, "keeps the division finite"),
      real("optimizer.weight_decay", c.optimizer.weight_decay, 0, 10,
           "of matrices; never of biases and norms"),
      real("optimizer.clip", c.optimizer.clip, 0, 1e9,
           "bound of the gradient's norm, of the model and of the indexer each; 0: none"),
      choice("optimizer.schedule", c.optimizer.schedule, {"cosine", "wsd", "constant"},
             "after the warm-up: cosine to the end, stable then linear decay, or constant"),
      whole("optimizer.warmup_steps", c.optimizer.warmup_steps, -1, kMany,
            "steps from 0 to the peak; -1: a twentieth of all"),
      whole("optimizer.decay_steps", c.optimizer.decay_steps, 0, kMany,
            "of wsd: how many of the last steps go down; 0: a tenth of all"),
      real("optimizer.min_lr_ratio", c.optimizer.min_lr_ratio, 0, 1,
           "where cosine and wsd end, as a share of the peak"),
      flag("guard.skip_spikes", c.guard.skip_spikes,
           "leave out steps whose loss or gradient norm is a spike"),
      whole("guard.window", c.guard.window, 8, 1 << 20, "steps that a spike is judged by"),
      real("guard.sigmas", c.guard.sigmas, 1, 1e6, "a spike lies this many deviations above their mean"),
      path("output.folder", c.output.folder, "where checkpoints and logs go"),
      whole("output.save_every", c.output.save_every, 0, kMany,
            "steps between checkpoints; 0: only at the end"),
      whole("output.keep_last", c.output.keep_last, 1, 1 << 20, "checkpoints that are kept"),
      whole("output.log_every", c.output.log_every, 1, kMany, "steps between lines of the log"),
      whole("output.validate_every", c.output.validate_every, 0, kMany,
            "steps between validations; 0: only at the end"),
      whole("output.validation_tokens", c.output.validation_tokens, 1, kMany, "tokens of a validation"),
      whole("output.sample_every", c.output.sample_every, 0, kMany, "steps between text samples; 0: none"),
      text("output.sample_prompt", c.output.sample_prompt, "what a sample begins with"),
      whole("output.sample_tokens", c.output.sample_tokens, 1, 1 << 20, "tokens of a sample"),
      flag("output.tensorboard", c.output.tensorboard, "write events for TensorBoard"),
      real("output.peak_tflops", c.output.peak_tflops, 0, 1e9,
           "what the device could do in this precision, for MFU (989: H100 and H200 in bf16); 0: no MFU"),
      real("kl_weight", c.kl_weight, 0, 1e9, "factor of the indexer's loss"),
      choice(
          "kl_support", c.kl_support, {"all", "selected"},
          "keys that the indexer's loss of a sparse step runs over. all: every visible key, against dense "
          "attention, so that keys which are not selected can still be learned; gives the kept mass of the "
          "log. selected: the keys of the query alone, of every query (the paper). Warm-up: always all"),
      real(
          "kl_share", c.kl_share, 0.001, 1,
          "share of the queries, in tiles of 64, that a loss over all keys is taken of, drawn anew each step "
          "and layer: 1/n with a whole n. The gradient's mean is that of every query, its cost this share. "
          "What counts is how many queries are left: 1/64 of 65,536 tokens a step, 1,024 queries, taught as "
          "well as 1/4; smaller steps want a larger share. Holds in warm-up, and in sparse steps with "
          "kl_support = \"all\""),
      choice("precision", c.precision, {"auto", "fp32", "bf16"},
             "bf16: weights in bf16 with fp32 masters; auto: bf16 on a GPU, fp32 on a CPU"),
      choice("device", c.device, {"auto", "cpu", "cuda"},
             "auto: cuda where there is a GPU and this build has the operators for it"),
      flag("deterministic", c.deterministic,
           "the same bits every time, and after a resume; false: faster on a GPU, by non-deterministic "
           "(atomic) accumulation"),
      flag("checkpoint_activations", c.checkpoint_activations,
           "recompute blocks in the backward pass: less memory"),
      whole("seed", c.seed, 0, kMany, "of the weights and of sampling"),
      whole("threads", c.threads, 0, binding::kMaxThreads, "CPU threads, at most one a core; 0: one a core"),
  };
}

std::string Option::type() const {
  return std::visit(
      Overloaded{[](bool*) { return "true or false"; }, [](std::int64_t*) { return "a whole number"; },
                 [](double*) { return "a number"; }, [](std::string*) { return "text"; }},
      target);
}

std::string Option::value() const {
  return std::visit(Overloaded{[](const bool* v) -> std::string { return *v ? "true" : "false"; },
                               [](const std::int64_t* v) { return concat(*v); },
                               [](const double* v) { return number_text(*v); },
                               [](const std::string* v) { return quoted(*v); }},
                    target);
}

void set_option(TrainConfig& config, const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw UsageError(concat("--set: expected key=value, got '", assignment, "'"));
  }
  const std::vector<Option> options = options_of(config);
  const Option option = find(options, assignment.substr(0, equals));
  const std::string text = assignment.substr(equals + 1);
  if (std::holds_alternative<std::string*>(option.target)) {
    assign(option, text);
  } else if (std::holds_alternative<bool*>(option.target)) {
    if (text != "true" && text != "false") refuse_key(option, concat("'", text, "'"));
    assign(option, text == "true");
  } else {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) refuse_key(option, concat("'", text, "'"));
    assign(option, value, concat("'", text, "'"));
  }
}

void read_toml(TrainConfig& config, const std::filesystem::path& file) {
  read_toml_text(config, read_file(file, kMaxConfigBytes), file.string(), file.parent_path());
}

void read_toml_text(TrainConfig& config, const std::string& text, const std::string& file,
                    const std::filesystem::path& folder) {
  toml::table table;
  try {
    table = toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    throw Error(concat("file '", file, "', line ", error.source().begin.line,
                       ": expected TOML, got an error: ", error.description()));
  }
  if (table.contains("phases") && table.contains("spans")) {
    throw UsageError(concat("file '", file, "', line ", table.get("spans")->source().begin.line,
                            ": expected [phases] or its old name [spans], got both"));
  }
  read_table(table, "", options_of(config), file, folder);
}

TrainConfig with_absolute_paths(TrainConfig config) {
  for (const Option& option : options_of(config)) {
    if (!option.path) continue;
    std::string& text = **std::get_if<std::string*>(&option.target);
    text = placed(std::filesystem::current_path(), text);
  }
  return config;
}

std::string to_toml(const TrainConfig& config) {
  TrainConfig copy = config;
  std::string top, groups, group;
  for (const Option& option : options_of(copy)) {
    const std::size_t dot = option.key.find('.');
    if (dot == std::string::npos) {
      top += concat(option.key, " = ", option.value(), "\n");
      continue;
    }
    if (option.key.substr(0, dot) != group) {
      group = option.key.substr(0, dot);
      groups += concat("\n[", group, "]\n");
    }
    groups += concat(option.key.substr(dot + 1), " = ", option.value(), "\n");
  }
  return top + groups;
}

std::string options_help() {
  TrainConfig defaults;
  std::string top, groups, group;
  for (const Option& option : options_of(defaults)) {
    const std::size_t dot = option.key.find('.');
    if (dot != std::string::npos && option.key.substr(0, dot) != group) {
      group = option.key.substr(0, dot);
      groups += concat("\n[", group, "]\n");
    }
    std::string line =
        concat(dot == std::string::npos ? option.key : option.key.substr(dot + 1), " = ", option.value());
    line.resize(std::max<std::size_t>(line.size() + 1, 34), ' ');
    line += "# " + option.help;
    const bool plain_text = std::holds_alternative<std::string*>(option.target) && option.choices.empty();
    if (!plain_text) line += concat(" [", expectation(option), "]");
    (dot == std::string::npos ? top : groups) += line + "\n";
  }
  return top + groups;
}

std::vector<std::string> TrainConfig::missing() const {
  std::vector<std::string> keys;
  if (data.train.empty()) keys.push_back("data.train");
  if (output.folder.empty()) keys.push_back("output.folder");
  if (steps() == 0) keys.push_back("phases");
  return keys;
}

void TrainConfig::resolve() {
  const auto refuse_because = [](const char* key, const std::string& expected, const std::string& got) {
    throw UsageError(concat("option '", key, "': expected ", expected, ", got ", got));
  };
  if (data.train.empty()) refuse_because("data.train", "a dataset folder (gsa tokenize makes one)", "none");
  if (output.folder.empty()) refuse_because("output.folder", "a folder for checkpoints and logs", "none");
  if (steps() == 0)
    refuse_because("phases", "at least one step in dense, warmup and sparse together", "none");
  if (steps() > std::int64_t(9e9)) {
    refuse_because("phases", "fewer than ten thousand million steps", concat(steps()));
  }
  if (batch.tokens % data.length != 0) {
    refuse_because("batch.tokens", concat("a multiple of data.length = ", data.length), concat(batch.tokens));
  }
  if (!model.from.empty()) {
    // A folder has its sizes: a preset would be ignored.
    if (!model.preset.empty()) refuse_because("model.preset", "none beside model.from", model.preset);
  } else {
    if (model.preset.empty()) model.preset = "tiny";
    if (model.system.empty()) model.system = "gsa";
  }
  if (model.ignore_tokenizer && model.from.empty()) {
    refuse_because("model.ignore_tokenizer", "model.from beside it, whose tokenizer it is about", "none");
  }
  if (!nn::parts_of_share(kl_share)) refuse_because("kl_share", nn::kShareExpected, number_text(kl_share));
  if (model.extend > 0 && model.extend < 1) {
    refuse_because("model.extend", "0, or a number of at least 1", number_text(model.extend));
  }
  if (model.index_every > 0 && !model.index_layers.empty()) {
    refuse_because("model.index_layers", "none beside model.index_every", model.index_layers);
  }
  if (model.indexer_init == "attention" && phases.warmup + phases.sparse == 0) {
    refuse_because("model.indexer_init", "warm-up or sparse steps beside attention, which it is taken before",
                   "dense steps only");
  }
  if (optimizer.warmup_steps < 0) optimizer.warmup_steps = steps() / 20;
  if (optimizer.warmup_steps > steps()) {
    refuse_because("optimizer.warmup_steps", concat("at most the ", steps(), " steps of all phases"),
                   concat(optimizer.warmup_steps));
  }
  if (optimizer.decay_steps > 0 && optimizer.schedule != "wsd") {
    refuse_because("optimizer.decay_steps", "0 where the schedule is not wsd", concat(optimizer.decay_steps));
  }
  if (optimizer.decay_steps + optimizer.warmup_steps > steps()) {
    refuse_because("optimizer.decay_steps",
                   concat("at most the ", steps() - optimizer.warmup_steps, " steps after the warm-up"),
                   concat(optimizer.decay_steps));
  }
  if (!output.sample_prompt.empty() && output.sample_every == 0) {
    refuse_because("output.sample_prompt", "output.sample_every beside it",
                   "none, so that no sample is drawn");
  }
}

nn::ModelConfig TrainConfig::model_config(std::int64_t tokenizer_vocab_size,
                                          const std::optional<nn::ModelConfig>& stored) const {
  const auto refuse_because = [](const char* key, const std::string& expected, const std::string& got) {
    throw UsageError(concat("option '", key, "': expected ", expected, ", got ", got));
  };
  nn::ModelConfig config = stored ? *stored : nn::ModelConfig::preset(model.preset);
  nn::AttentionConfig& attention = config.attention;
  if (!model.system.empty()) nn::apply(config, nn::system_by_name(model.system));
  if (!model.score_form.empty()) nn::set_form(attention.indexer, nn::score_form_by_name(model.score_form));
  apply_sizes(*this, config, stored);
  if (!stored) {
    if (model.vocab_size == 0) config.vocab_size = tokenizer_vocab_size;
    config.max_positions = data.length;  // what it is trained at is what it is meant for, whatever the preset
  }
  if (config.vocab_size < tokenizer_vocab_size) {
    refuse_because(
        stored ? "model.from" : "model.vocab_size",
        concat("a vocabulary of at least ", tokenizer_vocab_size, ", as the dataset's tokenizer has"),
        concat(config.vocab_size));
  }
  if (!model.value_gate.empty()) attention.value_gate = nn::gate_kind_by_name(model.value_gate);
  if (!model.output_gate.empty()) attention.output_gate = nn::gate_kind_by_name(model.output_gate);
  apply_gate_init(*this, config, stored);
  if (!model.budget.empty()) attention.budget.mode = nn::budget_mode_by_name(model.budget);
  apply_budget(*this, config, stored);
  try {
    if (model.extend > 0) nn::extend(config, model.extend);
  } catch (const Error& error) {  // which speaks of a field of the model's configuration
    const std::string message = error.what();
    throw UsageError(concat("option 'model.extend': ", message.substr(message.find("expected "))));
  }
  if (data.length > config.max_positions) {
    refuse_because("data.length",
                   concat("at most the ", config.max_positions,
                          " positions of the model (model.extend makes more of them)"),
                   concat(data.length));
  }
  if (!attention.sparse && phases.warmup + phases.sparse > 0) {
    refuse_because("phases",
                   "dense steps only: this system has no indexer to warm up and nothing to select with",
                   concat(phases.warmup, " warm-up and ", phases.sparse, " sparse steps"));
  }
  checking_usage([&] { config.validate(); });  // a folder's own configuration has been looked at before
  return config;
}

}  // namespace gsa::train
