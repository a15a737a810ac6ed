// Sizes of the model that the options ask for, and the budget of a model that gets an indexer.
#pragma once

#include <optional>
#include <string>

#include "train/config.h"

namespace gsa::train {

// Puts the sizes of options.model into config, whose system is set. stored: the configuration of the folder
// that the model starts from. What its weights fix (layers, widths, heads, tied embeddings, vocabulary; of an
// indexer that it has, heads, size, rotated share and temperature) may be repeated but not contradicted. An
// option about the indexer of a system without one is refused.
void apply_sizes(const TrainConfig& options, nn::ModelConfig& config,
                 const std::optional<nn::ModelConfig>& stored);

// model.gate_init, for a model that gets gates; in a folder without gates one half, unless it is set. Other gates are
// where training has left them: refused without a new one, unless it repeats what the folder says.
void apply_gate_init(const TrainConfig& options, nn::ModelConfig& config,
                     const std::optional<nn::ModelConfig>& stored);

// k_base, k_min and k_max: what the options say, else what the preset or the folder has. A folder without an
// indexer has none, and gets
//   k_base = data.length / 8, to the nearest multiple of 64 (below 512 tokens to a whole number, at least 1)
//   k_min = k_base / 8, k_max = 2 k_base
// as the preset small has them at its length.
void apply_budget(const TrainConfig& options, nn::ModelConfig& config,
                  const std::optional<nn::ModelConfig>& stored);

// What was chosen for a folder that gets an indexer, in one line for people; empty where it gets none.
std::string conversion_note(const TrainConfig& options, const nn::ModelConfig& config,
                            const nn::ModelConfig& stored);

// What one should know of sparse steps at this length, in one line for people; empty: nothing. That
// dense_below leaves none of them sparse, or that on a GPU they may take longer than dense ones.
std::string length_note(const TrainConfig& options, const nn::AttentionConfig& attention, bool on_gpu);

// That a step has few queries for the indexer's loss to draw from, in one line for people; empty: it has
// enough, or every one counts.
std::string sample_note(const TrainConfig& options);

}  // namespace gsa::train
