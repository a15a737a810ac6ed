// Argument checks of indexer_kl. The work is in cpu/indexer_kl.cc.
#include "kernels/indexer_kl/indexer_kl.h"

#include "kernels/indexer_kl/indexer_kl_checks.h"
#include "kernels/indexer_kl/indexer_kl_cpu.h"

namespace gsa {

void indexer_kl(const IndexerKlArgs& args, const Parallel& parallel) {
  if (kl::check_forward("indexer_kl", args)) indexer_kl_cpu(args, parallel);
}

void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Parallel& parallel) {
  if (kl::check_backward("indexer_kl_backward", args)) indexer_kl_backward_cpu(args, parallel);
}

}  // namespace gsa
