// A model as a folder in the shape of Hugging Face: config.json and model.safetensors (or, for reading, the
// shards that model.safetensors.index.json names).
//
//   save_model(model, "run/model");
//   Model model = load_model("run/model").model;
//
// Every tensor of the file must be one of the model's, of its shape and of one floating-point type, and every
// one of the model's must be there; anything else is a gsa::Error that names file and tensor.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "gsa/dtype.h"
#include "nn/model.h"
#include "nn/torch.h"

namespace gsa::nn {

struct SaveOptions {
  // Absent: the type the weights have. The running mean of the variance is always float64.
  std::optional<DType> dtype = std::nullopt;
};

// Makes the folder where it is not there. Each file is replaced in one step, weights first.
void save_model(const Model& model, const std::filesystem::path& folder, const SaveOptions& options = {});

// What to do where the file lacks gates or the indexer, as when a dense checkpoint becomes a gsa model.
// Tensors of the base model are never made up.
enum class MissingParts {
  refuse,
  initialise,  // as in a new model: gates near gate_init, which scales values and outputs down
  // The same, and v_proj (where a value gate is new) and o_proj (where an output gate is) divided by
  // gate_init, so that the model starts as the function it was.
  initialise_and_fold,
};

struct LoadOptions {
  // Another system or ablation than the folder's. Sizes must be the folder's.
  std::optional<ModelConfig> config = std::nullopt;
  MissingParts missing = MissingParts::refuse;
  std::optional<DType> dtype = std::nullopt;  // absent: as stored
  torch::Device device = torch::kCPU;
};

struct LoadedModel {
  Model model{nullptr};
  std::vector<std::string> initialised;  // tensors that the file did not have, in the order of the model
};

LoadedModel load_model(const std::filesystem::path& folder, const LoadOptions& options = {});

// The configuration alone; its eos_ids are those of config.json and of generation_config.json, if that is there.
ModelConfig load_config(const std::filesystem::path& folder);
// The type of the weights, by the headers of their files alone.
DType stored_dtype(const std::filesystem::path& folder);
// Throws gsa::Error for a type that weights cannot have.
DType dtype_of(at::ScalarType type);

}  // namespace gsa::nn
