// A model folder made into another system's, file to file: one tensor is in memory at a time, so that a model
// may be as large as the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "gsa/dtype.h"
#include "model/model_config.h"

namespace gsa::nn {

struct ConvertOptions {
  // What it becomes; sizes are the folder's. Layers that have an indexer may lose it (index_layers).
  ModelConfig config;
  bool indexer_from_attention = true;  // false: drawn at random
  std::uint64_t seed = 0;
  // Called before each tensor with bytes written so far and in all; may throw to stop.
  std::function<void(std::int64_t done, std::int64_t total)> progress = nullptr;
};

struct Conversion {
  DType dtype = DType::f32;                                  // of the weights, as the folder has them
  std::int64_t gate_parameters = 0, indexer_parameters = 0;  // that are new
  std::int64_t dropped_parameters = 0;                       // of indexers that were left behind
};

// Writes config.json and model.safetensors into `to`, a folder that is there. New gates are gate_init
// everywhere (their weights are 0) and folded into v_proj and o_proj: the same function, up to rounding, of
// every text that no query's budget cuts.
Conversion convert_model(const std::filesystem::path& from, const std::filesystem::path& to,
                         const ConvertOptions& options);

}  // namespace gsa::nn
