// Whether a run fits into memory, before it begins.
#pragma once

#include "core/memory.h"
#include "model/model_config.h"
#include "train/config.h"

namespace gsa::train {

// Refuses a run that needs more than there is room for, with the numbers and with what would fit. The
// configuration's precision is settled (fp32 or bf16).
void check_memory(const TrainConfig& config, const nn::ModelConfig& model, const MemoryRoom& room);

}  // namespace gsa::train
