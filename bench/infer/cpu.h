// One layer of the paper's 1.7B on the CPU: decoding and prefill, attention by itself and the whole layer.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "../progress.h"
#include "nn/torch.h"

namespace gsa::bench {

constexpr std::int64_t kChunk = 1024;  // of prefill, the engine's own on a CPU

struct CpuOptions {
  std::vector<std::int64_t> lengths;
  std::vector<at::ScalarType> types;
  std::int64_t index_every = 1;  // so many layers share a selection; times are those of a layer, their mean
};

// Prints tables as it goes and returns everything as JSON.
nlohmann::ordered_json run_cpu(const CpuOptions& options, Progress& progress);

// Where chunks of prefill are timed: every quarter of each length, and the first and last of it. What lies
// between is interpolated, because a chunk's time is close to linear in what comes before it.
std::vector<std::int64_t> chunk_starts(const std::vector<std::int64_t>& lengths);

// The time of all chunks of a prompt of `length`, from (start, seconds) of some of them, by start.
double sum_of_chunks(const std::vector<std::pair<std::int64_t, double>>& timed, std::int64_t length);

}  // namespace gsa::bench
