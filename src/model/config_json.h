// config.json of a model folder, in the shape of Hugging Face. No torch header.
//
// A standard model is written as the family it is (model_type "llama", "mistral" where it was one, "qwen2"
// with biases of q, k and v, "qwen3" with norms of q and k), so that other programs load it; every other one
// as model_type "gated_sparse_attention" (read too: "gsa", its old name), which adds the keys of indexer,
// budget and gates (docs/model.md lists them). Reading is strict: a key is ours, one of the family's, one
// that is known not to matter (a fixed list), or an error with a suggestion; a value that would change the
// mathematics in a way we do not have is an error too.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "gsa/dtype.h"
#include "model/model_config.h"

namespace gsa::nn {

struct ConfigFile {
  ModelConfig config;
  std::optional<DType> dtype;  // of the weights, where the file says; what counts is the weights themselves
};

std::string config_to_json(const ConfigFile& file);

// file: for messages. The configuration comes back validated.
ConfigFile config_from_json(std::string_view text, const std::string& file);

}  // namespace gsa::nn
