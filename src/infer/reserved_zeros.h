// A tensor that may grow without moving: address space for all that it may ever hold, memory for what has been touched.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "nn/torch.h"

namespace gsa::infer {

// Zeros on the CPU. Absent where the system grants no such space, or limits it (`ulimit -v`), so that others need it.
std::optional<at::Tensor> reserved_zeros(const std::vector<std::int64_t>& sizes, at::ScalarType dtype);

}  // namespace gsa::infer
