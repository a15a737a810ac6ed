// indexer_kl on CUDA devices: bfloat16 and float16. Pointers of the arguments are device memory, the tables
// of Sequences host memory.
#pragma once

#include <cstddef>

#include "core/cuda_context.h"
#include "kernels/indexer_kl/indexer_kl.h"

namespace gsa::cuda {

void indexer_kl(const IndexerKlArgs& args, const Context& context);
void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Context& context);

namespace kl {

// What a chunk of queries may take where there is a mask. How many chunks there are changes no bit of a
// result: tests go through many small ones.
struct ListLimits {
  std::size_t bytes = std::size_t(512) << 20;
  std::size_t word_bytes = std::size_t(48) << 20;  // of the words of the unions; backward
  int slots = 0;                                   // instead of bytes, unless 0
  int tiles = 0;                                   // at most, unless 0
};

}  // namespace kl

void indexer_kl_in_chunks(const IndexerKlArgs& args, const kl::ListLimits& limits, const Context& context);
void indexer_kl_backward_in_chunks(const IndexerKlBackwardArgs& args, const kl::ListLimits& limits,
                                   const Context& context);

}  // namespace gsa::cuda
