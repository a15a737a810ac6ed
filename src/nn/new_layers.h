// Layers of new models: their weights drawn, or, where a folder's are about to be read, left without values.
#pragma once

#include <cstdint>

#include "nn/torch.h"

namespace gsa::nn {

// While one lives, layers that this thread makes have weights of this type and no values: no time and no
// memory goes into numbers that are overwritten.
class WithoutValues {
 public:
  explicit WithoutValues(at::ScalarType type);
  ~WithoutValues();
  WithoutValues(const WithoutValues&) = delete;
  WithoutValues& operator=(const WithoutValues&) = delete;
};

// Weights normal with this deviation, biases 0.
torch::nn::Linear new_linear(std::int64_t from, std::int64_t to, bool bias, double std);
torch::nn::Embedding new_embedding(std::int64_t count, std::int64_t size, double std);

}  // namespace gsa::nn
