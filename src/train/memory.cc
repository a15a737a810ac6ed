#include "train/memory.h"

#include <algorithm>

#include "gsa/error.h"
#include "model/cost.h"

namespace gsa::train {
namespace {

nn::MemoryNeed need_of(const TrainConfig& config, const nn::ModelConfig& model, std::int64_t rows,
                       bool checkpoint_activations) {
  return nn::training_memory(model, {.tokens = rows * config.data.length,
                                     .length = config.data.length,
                                     .dtype = config.precision == "bf16" ? DType::bf16 : DType::f32,
                                     .several_batches = config.batch.tokens > rows * config.data.length,
                                     .checkpoint_activations = checkpoint_activations});
}

std::string shown_bytes(double bytes) { return format_bytes(static_cast<std::int64_t>(bytes)); }

}  // namespace

void check_memory(const TrainConfig& config, const nn::ModelConfig& model, const MemoryRoom& room) {
  const std::int64_t rows = std::min(config.batch.rows, config.batch.tokens / config.data.length);
  const auto fits = [&](std::int64_t some, bool checkpointed) {
    return need_of(config, model, some, checkpointed).total() <= static_cast<double>(room.bytes);
  };
  if (fits(rows, config.checkpoint_activations)) return;
  // The most rows that fit, by halves of what is left to try; 0: not even one.
  const auto max_rows = [&](bool checkpointed) {
    std::int64_t low = 0, high = rows;
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (fits(middle, checkpointed) ? low : high) = middle;
    }
    return low;
  };
  const nn::MemoryNeed need = need_of(config, model, rows, config.checkpoint_activations);
  const std::int64_t plain = max_rows(config.checkpoint_activations), saving = max_rows(true);
  std::string advice;
  if (plain > 0) {
    advice = concat("batch.rows=", plain, " would fit, and changes nothing else");
  } else if (fits(rows, true)) {
    advice = "checkpoint_activations=true would fit";
  } else if (saving > 0) {
    advice = concat("checkpoint_activations=true with batch.rows=", saving, " would fit");
  } else if (need.state < static_cast<double>(room.bytes)) {
    advice = "not even one row fits: a shorter data.length or a smaller model would";
  } else {
    advice = "the weights alone do not fit: a smaller model would";
  }
  throw Error(concat("training needs about ", shown_bytes(need.total()), " of memory (",
                     shown_bytes(need.state), " for weights, gradients and the optimiser, ",
                     shown_bytes(need.activations), " for ", rows, " rows of ", config.data.length,
                     " tokens at a time), and ", room.bound, " has ", format_bytes(room.bytes), " left; ",
                     advice));
}

}  // namespace gsa::train
