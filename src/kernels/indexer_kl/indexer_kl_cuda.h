// indexer_kl on CUDA devices: bfloat16 and float16. Pointers of the arguments are device memory, the tables
// of Sequences host memory.
#pragma once

#include "core/cuda_context.h"
#include "kernels/indexer_kl/indexer_kl.h"
#include "kernels/indexer_kl/indexer_kl_plan.h"

namespace gsa::cuda {

void indexer_kl(const IndexerKlArgs& args, const Context& context);
void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Context& context);

void indexer_kl_in_chunks(const IndexerKlArgs& args, const kl::ListLimits& limits, const Context& context);
void indexer_kl_backward_in_chunks(const IndexerKlBackwardArgs& args, const kl::ListLimits& limits,
                                   const Context& context);

}  // namespace gsa::cuda
