// The trainer's configuration. Every option is declared once, in options_of(): reading TOML, --set key=value,
// --help, printing and the errors about them all follow from that table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/model_config.h"

namespace gsa::train {

struct TrainConfig {
  struct {
    std::string from;                                         // a model's folder; empty: from scratch
    bool ignore_tokenizer = false;                            // of that folder
    std::string preset, system;                               // empty: see resolve()
    std::string value_gate, output_gate, score_form, budget;  // empty: as the system has it
    std::int64_t k_base = 0, k_min = 0, k_max = 0;            // 0: as the preset or the folder has it
    std::int64_t vocab_size = 0;                              // 0: the tokenizer's
    double extend = 0;                                        // 0: as the preset or the folder has it
    // Sizes (model_sizes.h). 0, -1 or empty: as the preset or the folder has it.
    std::int64_t layers = 0, d_model = 0, intermediate_size = 0, heads = 0, kv_heads = 0, head_size = 0;
    std::string tie_embeddings;
    double rope_theta = 0;
    double gate_init = 0;
    std::int64_t dense_below = -1;
    std::int64_t index_every = 0;  // 0: as the folder has it, in a new indexer every layer
    std::string index_layers;      // the same as a list; empty: by index_every
    std::int64_t index_heads = 0, index_head_size = 0;
    double index_rope_fraction = -1, index_temperature = 0, index_variance_momentum = -1;
    std::string index_temperature_learned;
    std::string indexer_init;  // empty: see indexer_start.h
  } model;
  struct {
    std::string train, validation;
    std::int64_t length = 512;
    std::int64_t seed = 1;
  } data;
  struct {
    std::int64_t dense = 0, warmup = 0, sparse = 0;
  } phases;
  struct {
    std::int64_t tokens = 8192;
    std::int64_t rows = 4;
  } batch;
  struct {
    double lr = 1e-3;
    double indexer_lr_multiplier = 10, gate_lr_multiplier = 1;
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
    double weight_decay = 0.1;
    double clip = 1;
    std::string schedule = "cosine";
    std::int64_t warmup_steps = -1;  // -1: a twentieth of all steps
    std::int64_t decay_steps = 0;
    double min_lr_ratio = 0.1;
  } optimizer;
  struct {
    bool skip_spikes = false;
    std::int64_t window = 128;
    double sigmas = 6;
  } guard;
  struct {
    std::string folder;
    std::int64_t save_every = 200;
    std::int64_t keep_last = 2;
    std::int64_t log_every = 10;
    std::int64_t validate_every = 100;
    std::int64_t validation_tokens = 65536;
    std::int64_t sample_every = 0;
    std::string sample_prompt;
    std::int64_t sample_tokens = 64;
    bool tensorboard = true;
    double peak_tflops = 0;
  } output;
  double kl_weight = 1;
  std::string kl_support = "all";
  double kl_share = 0.015625;
  std::string precision = "auto";
  std::string device = "auto";
  bool deterministic = true;
  bool checkpoint_activations = false;
  std::int64_t seed = 1;
  std::int64_t threads = 0;

  std::int64_t steps() const { return phases.dense + phases.warmup + phases.sparse; }

  // Whether a run can begin: a dataset, a folder for its output and steps are named. What is missing, as
  // keys.
  std::vector<std::string> missing() const;

  // Puts in place what follows from other options (preset, system, warmup_steps), then throws gsa::Error
  // where options contradict each other or something needed is missing.
  void resolve();

  // The model that the options describe. stored: the configuration of the folder that it starts from; absent:
  // from scratch. vocab_size: the tokenizer's.
  nn::ModelConfig model_config(std::int64_t tokenizer_vocab_size,
                               const std::optional<nn::ModelConfig>& stored) const;
};

struct Option {
  using Target = std::variant<bool*, std::int64_t*, double*, std::string*>;

  std::string key;  // "optimizer.lr"
  Target target;
  std::string help;
  double low = 0, high = 0;               // of numbers
  std::vector<std::string> choices = {};  // of text; empty: any text
  bool path = false;                      // text that names a file or a folder

  std::string type() const;   // "a number", "a whole number", "true or false", "text"
  std::string value() const;  // as TOML writes it
};

// The table. Targets point into config.
std::vector<Option> options_of(TrainConfig& config);

// "optimizer.lr=3e-4". Unknown keys, wrong types and values out of range are errors that say what was
// expected.
void set_option(TrainConfig& config, const std::string& assignment);

// A relative path in the file is taken from the file's own folder: a run that is moved, config.toml and all,
// is still the run that its file means.
void read_toml(TrainConfig& config, const std::filesystem::path& file);
// file: for messages. folder: where relative paths begin; empty: at the current one.
void read_toml_text(TrainConfig& config, const std::string& text, const std::string& file,
                    const std::filesystem::path& folder = {});

// Every path from the root on: as it has to stand in a file that may be read from anywhere.
TrainConfig with_absolute_paths(TrainConfig config);

// The whole configuration as TOML that read_toml() takes.
std::string to_toml(const TrainConfig& config);

// Every option with its default, range or choices, and what it does, as a TOML file. For --help.
std::string options_help();

}  // namespace gsa::train
