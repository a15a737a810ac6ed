// gsa convert: a model folder of Hugging Face, or of ours, made into another system's.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/grouping.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/file.h"
#include "core/usage_error.h"
#include "model/cost.h"
#include "nn/convert.h"
#include "nn/model_io.h"
#include "train/config.h"

namespace gsa::cli {
namespace {

namespace fs = std::filesystem;

struct ConvertCommand {
  std::string folder, output, system;  // system empty: see converted_config()
  std::vector<std::string> settings;
  std::int64_t index_every = 0;  // 0: as index_layers, or the settings, have it
  std::string index_layers;
  GroupingOptions grouping;

  bool groups() const { return index_every > 0 || !index_layers.empty(); }
};

constexpr const char* kConvertLesson = R"(
Reads a folder (config.json, and model.safetensors or its shards) of Llama 2 and 3, Mistral without a window that bites,
Qwen2, Qwen3, or of this program, and writes one with what the system adds. Gates come as one half everywhere, folded
into v_proj and o_proj; the indexer starts from q_proj and k_proj and has learned nothing yet. The new model is the same
function, up to rounding, of texts of up to k_base tokens; of longer ones, once the indexer has learned: the last lines
say how. Parts that the folder has stay as they are. Weights keep their type, tokenizer files are copied.

Weights go from file to file, a tensor at a time: beside these, one layer in float32 is in memory. OUT appears when it
is complete; a folder that has something in it is refused.

--index-every n leaves indexers behind: one of n layers keeps its own, and the layers after it attend to what it
selects, which makes long texts faster. With --data the text of a dataset says which layers: those whose groups agree
best on keys, ceil(layers / n) of them (gsa eval --measure agreement has the figures); what each layer kept of
attention's mass before and keeps now is printed, as they select whatever model.dense_below is. Without it every n-th
layer keeps its indexer, and nothing was measured. --index-layers names the layers. Afterwards training gets the model
used to it: gsa train, sparse steps.

--set takes the options of `gsa train` about the model: model.k_base, model.k_min, model.k_max, model.budget,
model.index_heads, model.index_head_size, model.index_rope_fraction, model.index_temperature, model.dense_below,
model.value_gate, model.output_gate, model.gate_init, model.score_form, model.indexer_init and so on; what the folder's
weights fix (sizes, model.rope_theta) cannot be another. model.extend stretches positions, to which the model has to get
used in training. k_base is otherwise an eighth of the model's length, at most 2048; k_min an eighth and k_max twice
that.

Examples
  gsa convert Qwen3-0.6B --output qwen3-gsa
  gsa convert Llama-3.2-1B --output llama-gsa --set model.index_heads=8 --set model.k_base=1024
  gsa convert Mistral-7B-v0.3 --system sparse-only --output mistral-sparse      an indexer, no gates
  gsa convert runs/book/latest --index-every 4 --data data/valid --output book-4    one selection for about four layers
  gsa tokenize text.jsonl --tokenizer qwen3-gsa --output data/text              then let the indexer learn
  gsa train --set model.from=qwen3-gsa --set data.train=data/text ...           (gsa convert prints the command)
)";

constexpr std::int64_t kLongest = 16384;  // for k_base an eighth of it: the default of a new model

// Beside the weights: what makes text of ids, and what others read of a folder.
constexpr const char* kCompanions[] = {"tokenizer.json",     "tokenizer_config.json",
                                       "tokenizer.model",    "special_tokens_map.json",
                                       "added_tokens.json",  "vocab.json",
                                       "merges.txt",         "chat_template.jinja",
                                       "chat_template.json", "generation_config.json"};

// Where the new folder goes, as an absolute path: not there yet, or empty.
fs::path checked_place(const std::string& output) {
  if (output.empty()) throw UsageError("--output: expected a folder for the new model, got none");
  fs::path place = fs::absolute(output).lexically_normal();
  if (place.filename().empty()) place = place.parent_path();  // "out/"
  std::error_code error;
  const auto status = fs::symlink_status(place, error);
  const auto refuse = [&](const char* why) {
    throw UsageError(
        concat("--output: expected a folder that is not there or empty, got '", output, "', which ", why));
  };
  if (fs::exists(status) && !fs::is_directory(status)) refuse("is no folder");
  if (fs::exists(status) && !fs::is_empty(place, error)) refuse("has something in it");
  if (place == fs::current_path()) refuse("is the working folder");  // it is replaced, not filled
  check_writable_folder(place.string());
  return place;
}

// A model in a model's folder would be copied, moved and removed with it.
void require_outside(const fs::path& place, const fs::path& source) {
  const fs::path outer = fs::canonical(source), inner = fs::weakly_canonical(place);
  if (std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first != outer.end()) return;
  throw UsageError(
      concat("--output: expected a folder outside of '", source.string(), "', got '", place.string(), "'"));
}

// A folder under another name until all is written. Without commit() nothing remains, of parents neither.
class NewFolder {
 public:
  explicit NewFolder(fs::path place) : place_(std::move(place)) {
    temporary_ = place_.parent_path() / concat(".", place_.filename().string(), ".convert-", ::getpid());
    for (fs::path parent = place_.parent_path(); !fs::exists(parent); parent = parent.parent_path()) {
      made_.push_back(parent);
    }
    try {
      fs::create_directories(temporary_);
    } catch (const fs::filesystem_error& error) {
      remove();
      fail("made", error);
    }
  }
  ~NewFolder() {
    if (!committed_) remove();
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const fs::path& path() const { return temporary_; }
  void commit() {
    sync_folder(temporary_);
    try {
      fs::rename(temporary_, place_);
    } catch (const fs::filesystem_error& error) {
      fail("put in place", error);
    }
    committed_ = true;
    sync_folder(place_.parent_path());
  }

 private:
  void remove() {
    std::error_code error;
    fs::remove_all(temporary_, error);
    for (const fs::path& parent : made_) fs::remove(parent, error);  // stays where it is not empty
  }
  [[noreturn]] void fail(const char* what, const fs::filesystem_error& error) const {
    throw Error(concat("--output: expected a folder that can be ", what, ", got '", place_.string(),
                       "': ", error.code().message()));
  }

  fs::path place_, temporary_;
  std::vector<fs::path> made_;  // parents that were not there, the innermost first
  bool committed_ = false;
};

nn::ModelConfig converted_config(const ConvertCommand& options, const std::string& from,
                                 const nn::ModelConfig& stored, train::TrainConfig& train) {
  for (const std::string& setting : options.settings) {
    const std::string key = setting.substr(0, setting.find('='));
    const bool about_folder = key == "model.from" || key == "model.preset" || key == "model.ignore_tokenizer";
    if (!key.starts_with("model.") || key == "model.system" || about_folder) {
      throw UsageError(
          concat("--set: expected options of the model (model.k_base, model.index_heads, ...; the system by "
                 "--system), got ",
                 key));
    }
    set_option(train, setting);
  }
  // A folder that only leaves indexers behind stays the system it is.
  if (!options.system.empty() || !stored.attention.sparse || !options.groups()) {
    const std::string name = options.system.empty() ? "gsa" : options.system;
    train.model.system = nn::name_of(checking_option("--system", [&] { return nn::system_by_name(name); }));
  }
  train.model.from = from;
  train.data.length = std::min(stored.max_positions, kLongest);
  nn::ModelConfig config = train.model_config(0, stored);
  if (!options.groups()) return config;
  if (!config.attention.sparse) {
    throw UsageError(
        concat("--index-every, --index-layers: expected a system with an indexer, got ", options.system));
  }
  if (train.model.index_every > 0 || !train.model.index_layers.empty()) {
    throw UsageError(
        "--set: expected no model.index_every or model.index_layers beside --index-every and "
        "--index-layers, got one");
  }
  const bool listed = !options.index_layers.empty();
  checking_option(listed ? "--index-layers" : "--index-every", [&] {
    nn::set_index_layers(config, listed ? nn::layers_by_text(options.index_layers)
                                        : nn::every_nth_layer(config.layers, options.index_every));
    nn::validate_index_layers(config);
  });
  config.validate();
  return config;
}

// Indexers may be left behind, never made up beside others that have learned.
void check_index_layers(const ConvertCommand& options, const nn::ModelConfig& stored,
                        const nn::ModelConfig& config) {
  if (!stored.attention.sparse) return;
  for (std::int64_t n = 0; n < config.layers; ++n) {
    if (!config.has_indexer(n) || stored.has_indexer(n)) continue;
    throw UsageError(concat(options.index_every > 0 ? "--index-every" : "--index-layers",
                            ": expected layers whose indexer the folder has (",
                            nn::layers_text(stored.index_layers), "), got layer ", n));
  }
}

std::string system_name(const nn::ModelConfig& model) {
  const auto system = nn::system_of(model.attention);
  return system ? nn::name_of(*system) : "an ablation";
}

// Parts are added, none is taken away or changed in kind, and at least one is new.
void check_parts(const ConvertCommand& options, const train::TrainConfig& train,
                 const nn::ModelConfig& stored, const nn::ModelConfig& config) {
  const nn::AttentionConfig &before = stored.attention, &after = config.attention;
  const auto refuse_system = [&](const std::string& expected) {
    throw UsageError(concat("--system: expected ", expected, ", got ",
                            options.system.empty() ? system_name(config) : options.system));
  };
  const auto check_gate = [&](const char* key, const char* part, const std::string& asked, nn::GateKind had,
                              nn::GateKind has) {
    if (had == nn::GateKind::none || has == had) return;
    if (has == nn::GateKind::none && asked.empty()) {
      refuse_system(concat("a system with the ", part, " that the folder has"));
    }
    throw UsageError(concat("option '", key, "': expected ", nn::name_of(had), ", as the folder '",
                            options.folder, "' has it, got ", nn::name_of(has)));
  };
  if (before.sparse && !after.sparse) refuse_system("a system with the indexer that the folder has");
  check_gate("model.value_gate", "value gate", train.model.value_gate, before.value_gate, after.value_gate);
  check_gate("model.output_gate", "output gate", train.model.output_gate, before.output_gate,
             after.output_gate);
  if (before.sparse && before.indexer.form == ScoreForm::sigmoid &&
      after.indexer.form != before.indexer.form) {
    throw UsageError(concat("option 'model.score_form': expected sigmoid, as the folder '", options.folder,
                            "' has it (with a bias), got ", nn::name_of(after.indexer.form)));
  }
  if (before.rope.theta != after.rope.theta) {
    throw UsageError(concat("option 'model.rope_theta': expected ", before.rope.theta, ", as the folder '",
                            options.folder, "' has it, got ", after.rope.theta));
  }
  const bool leaves_behind = before.sparse && config.indexers() < stored.indexers();
  const bool nothing_new = !leaves_behind && before.sparse == after.sparse &&
                           before.value_gate == after.value_gate && before.output_gate == after.output_gate;
  if (nothing_new && options.groups()) {
    throw UsageError(
        "--index-every, --index-layers: expected fewer indexers than the folder has, got as many");
  }
  if (nothing_new) refuse_system("another system than the folder's");
}

void copy_companions(const fs::path& from, const fs::path& to) {
  for (const char* name : kCompanions) {
    if (!fs::exists(from / name)) continue;
    AtomicFile file(to / name);
    file.write(MappedFile(from / name).bytes());
    file.commit();
  }
}

void check_grouping(const ConvertCommand& options, const nn::ModelConfig& stored) {
  const GroupingOptions& grouping = options.grouping;
  if (grouping.data.empty()) {
    if (grouping.length || grouping.tokens || grouping.ignore_tokenizer) {
      throw UsageError(
          "--length, --tokens, --ignore-tokenizer: expected --data, of whose text they say what is read, got "
          "none");
    }
    return;
  }
  if (!options.groups())
    throw UsageError("--data: expected --index-every or --index-layers beside it, got neither");
  if (!stored.attention.sparse) {
    throw UsageError("--data: expected a folder with an indexer that has learned, got a dense model");
  }
  if (options.index_every > 0 && stored.indexers() < stored.layers) {
    throw UsageError(
        "--data: expected a folder whose layers all have an indexer, to choose from, got one with " +
        concat(stored.indexers()) + " (--index-layers names those that stay)");
  }
}

// A word as a shell takes it, and no program for an option.
std::string quoted(const std::string& word) {
  if (word.starts_with('-')) return quoted("./" + word);
  if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") ==
      std::string::npos) {
    return word;
  }
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

// The longest text of which every query reads all keys. trained: the indexer has seen variances, so that
// budgets may adapt.
std::int64_t longest_uncut(const nn::AttentionConfig& a, bool trained) {
  const bool adapts = trained && a.budget.mode != BudgetMode::fixed;
  return std::max(adapts ? a.budget.min : a.budget.base, a.dense_below - 1);
}

// What became of the model's function.
std::string verdict(const nn::ModelConfig& stored, const nn::ModelConfig& config) {
  const nn::AttentionConfig &before = stored.attention, &after = config.attention;
  if (before.rope.yarn.factor != after.rope.yarn.factor) {
    return "model.extend stretches positions: the model is not the function it was, until it is trained.";
  }
  const auto up_to = [](std::int64_t length) {
    return concat("The model is the function it was for texts of up to ", grouped(length), " tokens.");
  };
  if (!after.sparse) return "The model is the function it was.";
  if (!before.sparse) return up_to(longest_uncut(after, false));
  if (stored.indexers() != config.indexers()) {
    return up_to(std::min(longest_uncut(before, true), longest_uncut(after, true))) +
           " Of longer ones some layers go by another's selection.";
  }
  const auto selection = [](const nn::AttentionConfig& a) {
    return std::tuple(a.indexer.form, a.budget.mode, a.budget.base, a.budget.min, a.budget.max,
                      a.dense_below);
  };
  if (selection(before) == selection(after)) return "The model is the function it was.";
  return up_to(std::min(longest_uncut(before, true), longest_uncut(after, true))) +
         " Of longer ones it selects other keys.";
}

void tell(const ConvertCommand& options, const nn::ModelConfig& stored, const nn::ModelConfig& config,
          const nn::Conversion& made) {
  const nn::AttentionConfig& a = config.attention;
  std::cout << "read     " << options.folder << ": " << system_name(stored) << ", "
            << grouped(nn::count_model(stored).total()) << " parameters, " << name_of(made.dtype) << '\n'
            << "wrote    " << options.output << ": " << system_name(config) << ", "
            << grouped(nn::count_model(config).total()) << " parameters\n";
  if (made.gate_parameters > 0) {
    std::cout << "gates    " << grouped(made.gate_parameters)
              << (a.gate_init == 0.5 ? " new parameters, all 0: one half"
                                     : concat(" new parameters, weights 0: ", a.gate_init))
              << " everywhere, folded into v_proj and o_proj\n";
  }
  if (made.dropped_parameters > 0) {
    std::cout << concat("indexer  in layers ", nn::layers_text(config.index_layers), "; ",
                        grouped(made.dropped_parameters), " parameters of ",
                        stored.indexers() - config.indexers(), " others were left behind\n");
  }
  if (made.indexer_parameters == 0) {
    std::cout << '\n' << verdict(stored, config) << '\n';
    return;
  }
  const std::int64_t length = std::min({stored.max_positions, 8 * a.budget.base, kLongest});
  std::cout << concat(
      "indexer  ", grouped(made.indexer_parameters), " new parameters in ", config.indexers(), " layers, ",
      a.indexer.heads, " heads of ", a.indexer.head_size, "; ", nn::name_of(a.budget.mode),
      " budgets of k_base ", a.budget.base, ", k_min ", a.budget.min, ", k_max ", a.budget.max, "\n\n",
      verdict(stored, config),
      "\nWhat remains to be learned is the indexer, that is which keys of a "
      "longer text to read: alone in a warm-up,\nthen with the model in sparse steps.\n\n"
      "  gsa tokenize TEXT --tokenizer ",
      quoted(options.output), " --output data\n  gsa train --set model.from=", quoted(options.output),
      " --set data.train=data --set data.length=", length, " --set batch.tokens=", 8 * length,
      " \\\n      --set phases.warmup=1000 --set phases.sparse=1000 --set optimizer.lr=1e-5 \\\n"
      "      --set optimizer.indexer_lr_multiplier=100 --set output.folder=adapted\n\n"
      "docs/recipe.md has what to choose, and `gsa eval adapted/latest` whether it was enough.\n");
}

int convert(const ConvertCommand& options) {
  if (options.folder.empty()) throw UsageError("expected a model's folder, got none");
  const fs::path place = checked_place(options.output);
  const std::string from = model_folder(options.folder);
  for (const std::string& source : {options.folder, from}) require_outside(place, source);
  const nn::ModelConfig stored = nn::load_config(from);
  train::TrainConfig train;
  nn::ConvertOptions how;
  how.config = converted_config(options, from, stored, train);
  how.indexer_from_attention = train.model.indexer_init != "random";
  check_index_layers(options, stored, how.config);
  check_grouping(options, stored);
  check_parts(options, train, stored, how.config);

  watch_interrupts();
  struct Stopped {};
  NewFolder output(place);
  nn::Conversion made;
  std::optional<Grouping> grouping;
  try {
    if (!options.grouping.data.empty()) {
      grouping.emplace(from, options.grouping, [] {
        if (interrupted()) throw Stopped();
      });
      if (options.index_every > 0) {
        const std::int64_t leaders = (stored.layers + options.index_every - 1) / options.index_every;
        nn::set_index_layers(how.config, grouping->choose(leaders));
      }
    }
    std::optional<Progress> progress;
    how.progress = [&](std::int64_t done, std::int64_t total) {
      if (interrupted()) throw Stopped();
      if (!progress) progress.emplace("converting", total);
      progress->update(done, concat("of ", scaled_bytes(static_cast<double>(total))));
    };
    made = nn::convert_model(from, output.path(), how);
    copy_companions(from, output.path());
    if (interrupted()) throw Stopped();
    if (grouping) grouping->measure_converted(output.path());
  } catch (const Stopped&) {
    std::cerr << "gsa: interrupted; nothing was written\n";
    return kInterrupted;
  }
  output.commit();
  tell(options, stored, how.config, made);
  if (grouping) {
    grouping->print(how.config, std::cout);
  } else if (options.index_every > 0 && stored.attention.sparse) {
    std::cout << concat("One of ", options.index_every,
                        " layers kept its indexer. Nothing was measured: --data DATASET chooses by how far "
                        "layers agree.\n");
  }
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("convert", "make a checkpoint of Hugging Face a gsa model");
  command->footer(kConvertLesson);
  auto options = std::make_shared<ConvertCommand>();
  command->add_option("folder", options->folder,
                      "a model folder (config.json and model.safetensors), or a run of gsa train");
  command->add_option("--system", options->system,
                      "what it becomes: gsa, sparse-only or gated-only. Default: gsa; with --index-every or "
                      "--index-layers what a sparse folder is");
  command->add_option("--output", options->output, "the new folder");
  command->add_option("--set", options->settings, "model.key=value, as of gsa train; any number of times")
      ->take_all()
      ->allow_extra_args(false);
  const char* kGroups = "Selections shared between layers";
  CLI::Option* every =
      command->add_option("--index-every", options->index_every,
                          "one of so many layers has an indexer, the others share its selection");
  every->check(whole_in(1, 65536))->group(kGroups);
  command->add_option("--index-layers", options->index_layers, "the layers that have one, such as 0,4,9")
      ->excludes(every)
      ->group(kGroups);
  add_grouping_options(*command, options->grouping, kGroups);
  command->callback([&run, options] { run = [options] { return convert(*options); }; });
}

}  // namespace gsa::cli
