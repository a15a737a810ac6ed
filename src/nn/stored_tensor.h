// Tensors of a folder's files, which check_tensors (model/weight_checks.h) has looked at.
#pragma once

#include "model/weight_files.h"
#include "nn/torch.h"

namespace gsa::nn {

// As it is in the file, on the CPU.
at::Tensor read_tensor(const WeightSource& source);

// In place, for a new gate of one half beside it. Refuses what is not finite then; source: for messages.
void double_weight(at::Tensor& tensor, const WeightSource& source);

}  // namespace gsa::nn
