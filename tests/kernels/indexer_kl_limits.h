// How much a chunk of the CUDA backend's indexer_kl may take.
#pragma once

#include "kernels/indexer_kl/indexer_kl_cuda.h"

namespace gsa::testing {

// Null: what the operator takes by itself.
void limit_kl(const cuda::kl::ListLimits* limits);

}  // namespace gsa::testing
