// gsa train: trains a language model through its phases.
#include <csignal>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/text.h"
#include "cli/train_display.h"
#include "core/file.h"
#include "model/cost.h"
#include "nn/device.h"
#include "train/config.h"
#include "train/trainer.h"

namespace gsa::cli {
namespace {

using namespace gsa::train;

struct TrainCommand {
  std::string file;
  std::vector<std::string> settings;
  bool resume = false, print = false;
};

constexpr const char* kTrainLesson = R"(
A run goes through up to three phases, any of which may have 0 steps:
  dense    attention to everything; the model learns from the language-model loss, the indexer is frozen
  warmup   attention to everything; the indexer alone learns to predict it (its KL), the model is frozen
  sparse   the indexer selects; the model learns from the language-model loss, the indexer from its KL alone
One schedule, one optimiser and one pass through the data lead through all of them. Systems without an indexer
(standard, gated-only) have dense steps only. Before its first step a new indexer starts from the attention's own weights,
where these have learned something (model.indexer_init).
The KL is taken over all visible keys of a sample of the queries (kl_share); kl_support = "selected" takes it over the
keys that sparse steps selected, as the paper does. docs/recipe.md has what to choose and what was measured.

output.folder holds checkpoints/step-N (each a model folder), latest (a link to the newest), config.toml, metrics.jsonl
and tensorboard/. Ctrl-C, SIGTERM, SIGHUP (a closed terminal; not under nohup), SIGXCPU and SIGUSR1 finish the step, save
and end with status 75; --resume goes on bit for bit. A reader of the output that goes away (`| head`) ends nothing. NaN
or infinity stops before the weights change, with the step and the culprit.

Examples
  gsa tokenize book.txt --split blank-lines --output data/book
  gsa train configs/tiny.toml --set data.train=data/book --set output.folder=runs/book
  gsa train runs/book/config.toml --resume
  gsa train runs/book/config.toml --resume --set phases.sparse=400           more steps for a run that has ended
  gsa train --print-config >my.toml                                          every option, to be filled in
  gsa train configs/tiny.toml --set model.system=standard --set phases.dense=300 --set phases.warmup=0 --set phases.sparse=0 ...
  gsa train next.toml --set model.from=runs/book
  gsa train configs/tiny.toml --set model.layers=6 --set model.d_model=192 --set model.index_head_size=32 ...

Relative paths are taken from the current folder in --set, and from the file's own folder in a configuration file.
output.folder/config.toml names that folder as "." and data by absolute paths: a run that was moved goes on from there.

Every option, with its default and what it may be, as a configuration file has it; --set takes group.key=value:

)";

std::string introduction(Trainer& trainer) {
  const TrainConfig& config = trainer.config();
  const nn::ModelConfig& model = trainer.model()->config();
  const auto system = nn::system_of(model.attention);
  std::string text =
      concat("model   ", system ? nn::name_of(*system) : "an ablation", ", ",
             grouped(nn::count_model(model).total()), " parameters, ", config.precision, " on ",
             trainer.device().str(), "\n", "data    ", config.data.train, ": ",
             grouped(trainer.dataset().tokens()), " tokens in ", grouped(trainer.dataset().documents()),
             " documents\n", "steps   ", config.phases.dense, " dense, ", config.phases.warmup, " warm-up, ",
             config.phases.sparse, " sparse; ", grouped(config.batch.tokens), " tokens each, rows of ",
             grouped(config.data.length), "\n", "output  ", config.output.folder, "\n");
  if (config.device == "auto" && trainer.device().is_cpu() && torch::cuda::is_available()) {
    text += "note    there is a GPU, but this build has no CUDA operators: training on the CPU\n";
  }
  if (!trainer.initialised().empty()) {
    text += concat("new     ", trainer.initialised().size(), " tensors that ", config.model.from,
                   " does not have are initialised: ", trainer.initialised().front(), " ...\n");
  }
  for (const std::string& note : trainer.notes()) text += concat("note    ", note, "\n");
  if (trainer.step() > 0) {
    text +=
        concat("resumed from the checkpoint of step ", trainer.step(),
               trainer.step() == config.steps() ? ": all steps are done, nothing is left to train\n" : "\n");
  }
  return text;
}

// The run is where its file is, also after it was moved; the data stay where they are.
void write_config(const TrainConfig& config) {
  TrainConfig written = with_absolute_paths(config);
  written.output.folder = ".";
  write_file(std::filesystem::path(config.output.folder) / "config.toml", to_toml(written));
}

int train_model(const TrainCommand& options) {
  TrainConfig config;
  if (!options.file.empty()) read_toml(config, options.file);
  for (const std::string& setting : options.settings) set_option(config, setting);
  if (options.print) {
    // A template has nothing to settle: what follows from the steps would be wrong once there are some.
    if (const std::vector<std::string> missing = config.missing(); !missing.empty()) {
      std::cout << "# To be filled in before a run:";
      for (const std::string& key : missing) std::cout << ' ' << key;
      std::cout << '\n' << to_toml(config);
      return 0;
    }
    config.resolve();
    config.precision = nn::precision_on(config.precision, nn::device_by_name(config.device));
    std::cout << to_toml(with_absolute_paths(config));
    return 0;
  }
  watch_interrupts();
  std::signal(SIGPIPE, SIG_IGN);  // `| head` ends what is shown, not the training
  TrainDisplay display;
  Trainer trainer(config, options.resume, display.events());
  display.show(introduction(trainer) + "\n");
  write_config(trainer.config());
  display.open(trainer);
  bool done = false;
  try {
    done = trainer.run([] { return interrupted(); });
  } catch (...) {
    display.close();
    throw;
  }
  display.close();
  if (done) return 0;
  display.show(
      concat("interrupted after step ", trainer.step(), "; it is saved, and --resume goes on from it\n"));
  return kInterrupted;
}

}  // namespace

void add_train(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("train", "train a language model through its phases");
  command->footer(kTrainLesson + options_help());
  auto options = std::make_shared<TrainCommand>();
  command->add_option("config", options->file,
                      "a TOML file with options; what it does not name has its default");
  command->add_option("--set", options->settings, "group.key=value, over the file; any number of times")
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--resume", options->resume, "go on from the newest checkpoint in output.folder");
  command->add_flag("--print-config", options->print,
                    "print the effective configuration as TOML and end; without a dataset, a template");
  command->callback([&run, options] { run = [options] { return train_model(*options); }; });
}

}  // namespace gsa::cli
