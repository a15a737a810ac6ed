// Options that choose a model's configuration, shared by subcommands: a preset and a system, a folder, and
// every ablation.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "model/model_config.h"

namespace gsa::cli {

struct ModelOptions {
  std::string folder;  // a model folder, or empty
  std::string preset = "tiny";
  std::string system;  // empty: gsa for a preset, what it is for a folder
  std::string value_gate, output_gate, budget, score, index_layers;
  std::optional<std::int64_t> k, k_min, k_max, index_heads, index_head_dim, index_every, dense_below,
      vocab_size;
  std::optional<double> extend;
};

void add_model_options(CLI::App& app, ModelOptions& options);

// --extend, and --yarn as its old name.
void add_extend_option(CLI::App& app, std::optional<double>& extend, const char* group);

// Positions to so many times the trained length.
void extend_by(nn::ModelConfig& config, double factor);

// The folder of the model that is meant: the folder itself, or a run's newest checkpoint. Refuses what is
// neither.
std::string model_folder(const std::string& folder);

nn::ModelConfig chosen_config(const ModelOptions& options);

}  // namespace gsa::cli
