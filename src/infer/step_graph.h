// Decode steps on a GPU as CUDA graphs: one for each size of batch and bound of length, both rounded up.
// Tokens, positions, slots, lengths and page tables lie in device memory that is filled before each replay.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>

#include "infer/cuda_graph.h"
#include "infer/network.h"
#include "nn/torch.h"

namespace gsa::infer {

struct StepRow {
  const Sequence* sequence = nullptr;  // with a page for one token more
  std::int64_t token = 0;
};

class StepGraphs {
 public:
  StepGraphs(const Network& network, Cache& cache, std::optional<at::Tensor> key_sum);
  ~StepGraphs();

  // Logits [rows, vocab_size], valid until the next call.
  at::Tensor run(std::span<const StepRow> rows, bool sparse);

 private:
  struct Graph;
  Graph& graph_for(std::int64_t rows, std::int64_t longest, bool sparse);

  const Network& network_;
  Cache& cache_;
  std::optional<at::Tensor> key_sum_;
  std::int64_t generation_ = 0;  // of the cache that the graphs were captured with
  std::map<std::tuple<std::int64_t, std::int64_t, bool>, std::unique_ptr<Graph>> graphs_;
};

// Up to the next power of two.
std::int64_t rounded_batch(std::int64_t rows);
// Up to the next quarter of a power of two, from 1024 on.
std::int64_t rounded_length(std::int64_t length);

}  // namespace gsa::infer
