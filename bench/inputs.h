// What the benchmark runs on: one sequence of a fixed shape, drawn from fixed seeds.
#pragma once

#include <cstdint>

#include "nn/torch.h"
#include "torch/ops.h"

namespace gsa::bench {

constexpr std::int64_t kHeads = 16;
constexpr std::int64_t kKvHeads = 4;
constexpr std::int64_t kHeadSize = 128;
constexpr std::int64_t kIndexerHeads = 4;
constexpr std::int64_t kIndexerHeadSize = 64;
constexpr std::int64_t kSelected = 2048;

// Step of the random walk of `overlap` inputs: 16 neighbouring queries select about 3 k different keys at 32K
// tokens and k = 2048, as in the middle layers of trained models.
constexpr double kRho = 0.955;
constexpr std::int64_t kUnionQueries = 16;

// overlap: the indexer's queries and the logits of its weights follow a stationary random walk along the
// sequence, x_t = rho x_{t-1} + sqrt(1 - rho^2) n_t, so that neighbours select much the same keys.
// random: they are drawn independently. Everything else is independent and normal in both.
enum class Pattern { overlap, random };

struct Inputs {
  at::Tensor q;     // [1, queries, kHeads, kHeadSize]
  at::Tensor k, v;  // [1, keys, kKvHeads, kHeadSize]
  ops::IndexerInputs indexer;
  ops::BudgetOptions budget;  // k fixed

  std::int64_t queries() const { return q.size(1); }
  std::int64_t keys() const { return k.size(1); }
};

// The last query sees the last key: queries == keys is a whole sequence, queries == 1 a step of decoding.
Inputs make_inputs(std::int64_t queries, std::int64_t keys, at::ScalarType type, Pattern pattern);

// The start of a whole sequence, for warming up.
Inputs first_tokens(const Inputs& inputs, std::int64_t tokens);

// How many different keys kUnionQueries neighbouring queries select together, over how many each selects; a
// mean over windows in the second half of a whole sequence.
double union_over_k(const Inputs& inputs);

}  // namespace gsa::bench
