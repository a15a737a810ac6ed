// A text that the model writes while it learns, for the log.
#pragma once

#include <cstdint>
#include <string>

#include "data/tokenizer.h"
#include "nn/model.h"
#include "nn/torch.h"

namespace gsa::train {

struct SampleOptions {
  std::string prompt;
  std::int64_t tokens = 64;
  std::uint64_t seed = 0;
  nn::Phase phase = nn::Phase::dense;
};

// Text continued from a prompt, the prompt included, temperature 0.8. Ends early at the tokenizer's end mark. The whole
// forward pass for each token: an infer::Engine would hold a second copy of the weights, in a training run's memory.
std::string sample_text(nn::Model& model, const data::Tokenizer& tokenizer, const SampleOptions& options,
                        torch::Device device);

}  // namespace gsa::train
