#include "inputs.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace gsa::bench {

namespace {

using at::Tensor;

constexpr std::uint64_t kSeed = 20260;

// x [steps, width], independent and normal, becomes a stationary random walk along the steps.
void walk(const Tensor& x) {
  const std::int64_t steps = x.size(0), width = x.size(1);
  const float keep = static_cast<float>(kRho), fresh = static_cast<float>(std::sqrt(1 - kRho * kRho));
  float* row = x.mutable_data_ptr<float>();
  for (std::int64_t t = 1; t < steps; ++t) {
    const float* before = row;
    row += width;
    for (std::int64_t i = 0; i < width; ++i) row[i] = keep * before[i] + fresh * row[i];
  }
}

}  // namespace

Inputs make_inputs(std::int64_t queries, std::int64_t keys, at::ScalarType type, Pattern pattern) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(kSeed);
  const auto normal = [&generator](at::IntArrayRef shape) { return at::randn(shape, generator, at::kFloat); };

  const Tensor index_q = normal({queries, kIndexerHeads * kIndexerHeadSize});
  const Tensor index_w = normal({queries, kIndexerHeads});
  if (pattern == Pattern::overlap) {
    walk(index_q);
    walk(index_w);
  }
  Inputs inputs;
  inputs.indexer = {.q = index_q.view({1, queries, kIndexerHeads, kIndexerHeadSize}).to(type),
                    .k = normal({1, keys, kIndexerHeadSize}).to(type),
                    .w = at::sigmoid(index_w).unsqueeze(0).to(type),
                    .bias = normal({kIndexerHeads}).to(type),
                    .scale = 1 / std::sqrt(static_cast<double>(kIndexerHeadSize))};
  inputs.budget = {
      .mode = "fixed", .base = kSelected, .min = kSelected, .max = kSelected, .mean_variance = {}};
  inputs.q = normal({1, queries, kHeads, kHeadSize}).to(type);
  inputs.k = normal({1, keys, kKvHeads, kHeadSize}).to(type);
  inputs.v = normal({1, keys, kKvHeads, kHeadSize}).to(type);
  return inputs;
}

Inputs first_tokens(const Inputs& inputs, std::int64_t tokens) {
  const auto start = [tokens](const Tensor& x) { return x.narrow(1, 0, std::min(tokens, x.size(1))); };
  Inputs part = inputs;
  part.q = start(inputs.q);
  part.k = start(inputs.k);
  part.v = start(inputs.v);
  part.indexer.q = start(inputs.indexer.q);
  part.indexer.k = start(inputs.indexer.k);
  part.indexer.w = start(inputs.indexer.w);
  return part;
}

double union_over_k(const Inputs& inputs) {
  constexpr std::int64_t kWindows = 32;
  const at::NoGradGuard no_grad;
  const std::int64_t half = inputs.queries() / 2;
  double sum = 0;
  for (std::int64_t window = 0; window < kWindows; ++window) {
    const std::int64_t end = inputs.queries() - half * window / kWindows, start = end - kUnionQueries;
    ops::IndexerInputs indexer = inputs.indexer;
    indexer.q = indexer.q.narrow(1, start, kUnionQueries);
    indexer.w = indexer.w.narrow(1, start, kUnionQueries);
    indexer.k = indexer.k.narrow(1, 0, end);
    const ops::Selection selection = ops::select(indexer, inputs.budget);

    const std::int64_t words = selection.mask.size(2);
    const std::int32_t* bits = selection.mask.const_data_ptr<std::int32_t>();
    std::int64_t together = 0;
    for (std::int64_t word = 0; word < words; ++word) {
      std::uint32_t any = 0;
      for (std::int64_t i = 0; i < kUnionQueries; ++i)
        any |= static_cast<std::uint32_t>(bits[i * words + word]);
      together += std::popcount(any);
    }
    sum += static_cast<double>(together) / selection.k_t.mean(at::kDouble).item<double>();
  }
  return sum / kWindows;
}

}  // namespace gsa::bench
