
#include "cli/engine_options.h"

#include <iostream>

#include "cli/checks.h"
#include "core/usage_error.h"
#include "nn/device.h"
#include "nn/torch.h"
#include "torch/threads.h"

namespace gsa::cli {

void add_engine_options(CLI::App& command, EngineChoices& choices, const char* group) {
  command.add_option("--device", choices.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--dtype", choices.dtype, "bfloat16, float16, float32; auto: as stored, on a GPU bfloat16")
      ->check(CLI::IsMember({"auto", "bfloat16", "float16", "float32"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--phase", choices.phase, "dense: attend to everything, whatever the model selects")
      ->group(group);
  command.add_option("--index-bits", choices.index_bits, "8: indexer keys in 8 bits; default: as the cache")
      ->group(group);
  command.add_option("--chunk", choices.chunk, "tokens of a prompt that are read at a time")
      ->check(positive_whole())
      ->group(group);
  command
      .add_option("--cache-limit", choices.cache_mib,
                  "MiB that the cache may take; default: 90 % of what is free")
      ->check(whole_in(1, kMaxCacheMib))
      ->group(group);
  command.add_option("--threads", choices.threads, "CPU threads; default: one a core, which is the most")
      ->check(whole_in(1, binding::kMaxThreads))
      ->group(group);
}

infer::EngineOptions engine_options(const EngineChoices& options, const nn::ModelConfig& config,
                                    at::ScalarType stored) {
  infer::EngineOptions engine;
  engine.device = nn::device_by_name(options.device);
  if (options.device == "auto" && engine.device.is_cpu() && torch::cuda::is_available()) {
    std::cerr << "note: there is a GPU, but this build has no CUDA operators: running on the CPU\n";
  }
  const bool half = stored == at::kBFloat16 || stored == at::kHalf;
  engine.dtype = options.dtype == "bfloat16"      ? at::kBFloat16
                 : options.dtype == "float16"     ? at::kHalf
                 : options.dtype == "float32"     ? at::kFloat
                 : engine.device.is_cpu() || half ? stored
                                                  : at::kBFloat16;
  if (!options.phase.empty())
    engine.phase = checking_option("--phase", [&] { return nn::phase_by_name(options.phase); });
  if (options.index_bits) {
    if (*options.index_bits != 8)
      throw UsageError(concat("--index-bits: expected 8, got ", *options.index_bits));
    if (!config.attention.sparse)
      throw UsageError("--index-bits: expected a model with an indexer, got a dense one");
    engine.index_int8 = true;
  }
  engine.chunk = options.chunk;
  if (options.cache_mib) engine.cache_bytes = *options.cache_mib << 20;
  return engine;
}

}  // namespace gsa::cli
