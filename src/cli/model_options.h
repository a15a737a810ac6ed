// Options that choose a model's configuration, shared by subcommands: a preset and a system, a folder, and
// every ablation.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "nn/model_config.h"

namespace gsa::cli {

struct ModelOptions {
  std::string folder;  // a model folder, or empty
  std::string preset = "tiny";
  std::string system;  // empty: gsa for a preset, what it is for a folder
  std::string value_gate, output_gate, budget, score;
  std::optional<std::int64_t> k, k_min, k_max, index_heads, index_head_dim, dense_below, vocab_size;
  std::optional<double> extend;
};

void add_model_options(CLI::App& app, ModelOptions& options);

// Refuses what is no model's folder; of a run's folder, with the path of its newest model.
void check_model_folder(const std::string& folder);

nn::ModelConfig chosen_config(const ModelOptions& options);

}  // namespace gsa::cli
