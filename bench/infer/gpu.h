// The whole paper's 1.7B on a GPU: prefill of prompts, and decoding behind them for some sequences.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "../progress.h"
#include "nn/torch.h"

namespace gsa::bench {

struct GpuOptions {
  std::vector<std::int64_t> lengths = {131072};
  std::vector<std::int64_t> batches = {1, 8};  // sequences decoded together; none: prefill alone
  std::int64_t run = 16;  // of a prompt in which every token comes so many times in a row
  // Longer prompts are not read by the standard model: its time follows from that of the longest one that is.
  std::int64_t dense_limit = 262144;
  std::vector<std::int64_t> index_every = {1};  // every so many layers of gsa have an indexer: a table each
};

// Prints tables as it goes and returns everything as JSON.
nlohmann::ordered_json run_gpu(const GpuOptions& options, Progress& progress);

}  // namespace gsa::bench
