// What can be said of a folder's weights before any tensor is made. No torch header.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gsa/dtype.h"
#include "model/model_config.h"
#include "model/weight_files.h"

namespace gsa::nn {

// Refuses a configuration far beyond its weights, and a tied head that is not the embedding. folder: for
// messages.
void check_before_reading(const WeightFiles& weights, const ModelConfig& config, const std::string& folder);

// The one type of all weights.
DType common_type(const WeightFiles& weights);

// The running mean of the variance is F64, whatever the weights are.
bool is_mean_variance(const std::string& name);

// The tensors of a model, in its order: the name in a file and the shape.
using TensorShapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

// Refuses tensors of another shape or type than the model's, and such as it does not have. Returns the names
// of those that the folder lacks: only parts (gates, indexer) that config.json (`stored`) does not have either
// may be lacking, and these only where they may be new.
std::vector<std::string> check_tensors(const WeightFiles& weights, const TensorShapes& model,
                                       const ModelConfig& stored, bool may_be_new, const std::string& folder);

// Whether a tensor meets a gate that `stored` does not have: a new gate is one half, so the tensor is doubled.
bool meets_new_gate(const std::string& name, const AttentionConfig& stored, const AttentionConfig& wanted);

}  // namespace gsa::nn
