// Rows of a packer as tensors: all rows of a micro-batch, packed, with the borders of their documents.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/packer.h"
#include "nn/torch.h"

namespace gsa::train {

struct Batch {
  at::Tensor tokens, targets;         // int64 [T] on the device
  at::Tensor cu_seqlens;              // int64 [sequences + 1] on the CPU
  std::vector<std::int64_t> borders;  // the same numbers
  std::int64_t predictions = 0;       // targets that count
};

Batch make_batch(std::span<const data::Row> rows, torch::Device device);

}  // namespace gsa::train
