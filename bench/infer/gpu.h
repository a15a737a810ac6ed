// The whole paper's 1.7B on a GPU: prefill of a long prompt, and decoding behind it for some sequences.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "../progress.h"
#include "nn/torch.h"

namespace gsa::bench {

struct GpuOptions {
  std::int64_t length = 131072;
  std::vector<std::int64_t> batches = {1, 8};
  std::int64_t index_every = 1;  // every so many layers of gsa have an indexer
};

// Prints tables as it goes and returns everything as JSON.
nlohmann::ordered_json run_gpu(const GpuOptions& options, Progress& progress);

}  // namespace gsa::bench
