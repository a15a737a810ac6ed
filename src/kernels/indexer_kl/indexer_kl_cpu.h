// The CPU backend of indexer_kl; arguments are checked by the caller.
#pragma once

#include "kernels/indexer_kl/indexer_kl.h"

namespace gsa {

void indexer_kl_cpu(const IndexerKlArgs& args, const Parallel& parallel);
void indexer_kl_backward_cpu(const IndexerKlBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
