// How many tokens a pass of prefill has. No torch header.
#pragma once

#include <cstdint>

#include "model/model_config.h"

namespace gsa::infer {

struct PassFacts {
  std::int64_t chunk = 0;    // tokens that the engine reads at once, over all sequences
  std::int64_t longest = 0;  // of the sequences, behind the call
  bool selects = false;      // the model does not run dense
  bool gpu = false;
};

// The chunk, but where layers share a selection: what a layer has selected in a pass then stays until the layers that
// share it are done, on the CPU as positions and on a GPU as a mask, and takes 256 MiB at most. On a GPU there is
// always room for 16,384 queries, which gsa::sparse_attend wants as well.
std::int64_t tokens_of_a_pass(const nn::ModelConfig& config, const PassFacts& facts);

}  // namespace gsa::infer
