// Options that choose how an engine runs a model, shared by subcommands that generate.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "infer/engine.h"
#include "model/model_config.h"

namespace gsa::cli {

constexpr std::uint64_t kMaxCacheMib = std::uint64_t{16} << 20;  // 16 TiB: of --cache-limit and its kind

struct EngineChoices {
  std::string device = "auto", dtype = "auto", phase;
  std::optional<int> index_bits;
  std::optional<std::int64_t> chunk, cache_mib;
  std::int64_t threads = 0;
};

void add_engine_options(CLI::App& command, EngineChoices& choices, const char* group);

// stored: the type of the model's weights.
infer::EngineOptions engine_options(const EngineChoices& choices, const nn::ModelConfig& config,
                                    at::ScalarType stored);

}  // namespace gsa::cli
