// Whether an evaluation fits into memory, counted before the weights are read.
#pragma once

#include <optional>
#include <string>

#include "eval/evaluate.h"
#include "gsa/dtype.h"
#include "model/model_config.h"
#include "nn/torch.h"

namespace gsa::cli {

struct EvaluatedModel {
  std::string folder;
  nn::ModelConfig config;      // as it is evaluated
  std::optional<DType> dtype;  // absent: as stored
  torch::Device device = torch::kCPU;
};

// Throws where it does not fit. advice: what to do about it; empty: the options of gsa eval by which it fits.
void check_eval_memory(const EvaluatedModel& model, const eval::Documents& documents,
                       const eval::EvaluateOptions& options, std::string advice = "");

}  // namespace gsa::cli
