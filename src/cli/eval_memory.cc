#include "cli/eval_memory.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cli/text.h"
#include "core/memory.h"
#include "gsa/error.h"
#include "model/cost.h"
#include "model/weight_files.h"
#include "torch/device_memory.h"

namespace gsa::cli {
namespace {

// Of the matrices in a folder, as far as their size goes.
DType stored_dtype(const std::string& folder) {
  const nn::WeightFiles files(folder);
  for (const auto& [name, source] : files.tensors()) {
    if (source.tensor->shape.size() != 2) continue;
    const StoredType type = source.tensor->type;
    return type == StoredType::bf16 || type == StoredType::f16 ? DType::bf16 : DType::f32;
  }
  return DType::f32;
}

}  // namespace

void check_eval_memory(const EvaluatedModel& model, const eval::Documents& documents,
                       const eval::EvaluateOptions& options, std::string advice) {
  const auto room = binding::device_memory_room(model.device);
  if (!room) return;
  const DType dtype = model.dtype ? *model.dtype : stored_dtype(model.folder);
  // A window is no longer than its document; windows are read together as batch_tokens has room for them.
  std::int64_t longest = 1, all = 0;
  for (std::int64_t i = 0; i < documents.count(); ++i) {
    longest = std::max(longest, documents.size(i));
    all += documents.size(i);
  }
  const std::int64_t length = std::min(options.windows.length, longest);
  const std::int64_t tokens =
      std::max(length, std::min(options.windows.batch_tokens, 2 * all) / length * length);
  const nn::Phase phase = options.phase.value_or(nn::Phase::sparse);
  nn::MemoryNeed need = nn::forward_memory(model.config, tokens, length, dtype, phase);
  if (options.agreement) {
    need.activations +=
        eval::agreement_bytes(model.config.layers, tokens, length, {.queries = options.agreement_queries});
  }
  const double left = static_cast<double>(room->bytes) - need.state;
  if (need.activations <= left) return;
  const auto fitting = static_cast<std::int64_t>(left / (need.activations / static_cast<double>(tokens)));
  if (advice.empty()) {
    advice = "the weights alone do not fit: --dtype bfloat16 halves those of 32 bits";
    if (fitting >= length) {
      advice = concat("--batch-tokens ", fitting, " would fit");
    } else if (fitting > 0) {
      advice = concat("--length ", fitting, " --batch-tokens ", fitting, " would fit");
    }
  }
  throw Error(concat("evaluation needs about ", format_bytes(static_cast<std::int64_t>(need.total())),
                     " of memory (", format_bytes(static_cast<std::int64_t>(need.state)),
                     " for the weights, ", format_bytes(static_cast<std::int64_t>(need.activations)), " for ",
                     grouped(tokens), " tokens at a time), and ", room->bound, " has ",
                     format_bytes(room->bytes), " left; ", advice));
}

}  // namespace gsa::cli
