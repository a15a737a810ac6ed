// How the indexer of a run starts (model.indexer_init), and its start from the attention.
#pragma once

#include <optional>
#include <string>

#include "nn/model.h"
#include "train/adamw.h"
#include "train/config.h"

namespace gsa::train {

enum class IndexerStart {
  kept,       // the folder's own goes on
  random,     // as a new model has it
  attention,  // at random, and before its first step q_proj and k_proj go into it (nn/indexer_start.h)
};

// What model.indexer_init means in this run; stored: the configuration of the folder that the model starts
// from. Left open, an indexer that the folder has is kept, and a new one starts from an attention that has
// learned something: the folder's, or one that dense steps come before.
IndexerStart indexer_start(const TrainConfig& config, const std::optional<nn::ModelConfig>& stored);

// A new indexer in every layer, drawn from torch's generator.
void renew_indexer(nn::Model& model);

// Every layer's indexer from its attention, in the optimiser's masters and in the model. Doing it twice is
// doing it once. Returns one line for people.
std::string start_indexer_from_attention(const nn::ModelConfig& config, AdamW& optimizer);

}  // namespace gsa::train
