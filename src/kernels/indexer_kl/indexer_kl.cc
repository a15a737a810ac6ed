// Argument checks of indexer_kl. The work is in cpu/indexer_kl.cc.
#include "kernels/indexer_kl/indexer_kl.h"

#include "gsa/error.h"
#include "kernels/common/plans.h"
#include "kernels/indexer_kl/indexer_kl_checks.h"
#include "kernels/indexer_kl/indexer_kl_cpu.h"

namespace gsa {

void indexer_kl(const IndexerKlArgs& args, const Parallel& parallel) {
  if (!kl::check_forward("indexer_kl", args)) return;
  if (prints_plans()) {
    print_cpu_plan("indexer_kl", concat(describe(args.in.shape), ", ", describe(args.in.sequences)));
  }
  indexer_kl_cpu(args, parallel);
}

void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Parallel& parallel) {
  if (!kl::check_backward("indexer_kl_backward", args)) return;
  if (prints_plans()) {
    print_cpu_plan("indexer_kl_backward", concat(describe(args.in.shape), ", ", describe(args.in.sequences)));
  }
  indexer_kl_backward_cpu(args, parallel);
}

}  // namespace gsa
