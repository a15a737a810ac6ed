// Tensors of a folder's files, which check_tensors (model/weight_checks.h) has looked at.
#pragma once

#include "model/config.h"
#include "model/weight_files.h"
#include "nn/torch.h"

namespace gsa::nn {

// As it is in the file, on the CPU.
at::Tensor read_tensor(const WeightSource& source);

// Divides a weight by gate_init, for a new gate beside it: doubled where gates start at one half. Refuses what is
// not finite then; source: for messages.
void fold_gate(const AttentionConfig& config, const WeightSource& source, at::Tensor& tensor);

}  // namespace gsa::nn
