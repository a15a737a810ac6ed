#include "train/batch.h"

#include "nn/cross_entropy.h"
#include "nn/to_device.h"

namespace gsa::train {

Batch make_batch(std::span<const data::Row> rows, torch::Device device) {
  std::vector<std::int64_t> tokens, targets;
  Batch batch;
  for (const data::Row& row : rows) {
    const std::int64_t begin = static_cast<std::int64_t>(tokens.size());
    for (const std::int64_t at : row.sequences) batch.borders.push_back(begin + at);
    tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
    targets.insert(targets.end(), row.targets.begin(), row.targets.end());
    for (const std::int64_t target : row.targets) batch.predictions += target != nn::kIgnoredTarget ? 1 : 0;
  }
  batch.borders.push_back(static_cast<std::int64_t>(tokens.size()));
  const auto tensor = [](std::vector<std::int64_t>& values) {
    return torch::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, torch::kInt64).clone();
  };
  batch.tokens = nn::to_device(tensor(tokens), device);
  batch.targets = nn::to_device(tensor(targets), device);
  batch.cu_seqlens = tensor(batch.borders);
  return batch;
}

}  // namespace gsa::train
