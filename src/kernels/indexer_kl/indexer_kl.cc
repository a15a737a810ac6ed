// Argument checks of indexer_kl. The work is in indexer_kl_cpu.cc.
#include "kernels/indexer_kl/indexer_kl.h"

#include "kernels/common/checks.h"
#include "kernels/indexer_kl/indexer_kl_cpu.h"

namespace gsa {
namespace {

// Returns whether there is anything to do.
bool check_inputs(const char* op, const IndexerKlInputs& in) {
  check::attend_shape(op, in.shape);
  check::sequences(op, in.sequences);
  check::mask(op, in.mask, in.sequences);
  check::indexer(op, in.indexer, in.sequences);
  if (in.sequences.total_queries() == 0) return false;
  check::not_null(op, "q", in.q.data);
  check::not_null(op, "k", in.k.data);
  check::not_null(op, "lse", in.lse);
  return true;
}

}  // namespace

void indexer_kl(const IndexerKlArgs& args, const Parallel& parallel) {
  constexpr const char* kOp = "indexer_kl";
  if (!check_inputs(kOp, args.in)) return;
  check::not_null(kOp, "loss", args.loss);
  check::not_null(kOp, "index_lse", args.index_lse);
  indexer_kl_cpu(args, parallel);
}

void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Parallel& parallel) {
  constexpr const char* kOp = "indexer_kl_backward";
  if (!check_inputs(kOp, args.in)) return;
  check::not_null(kOp, "index_lse", args.index_lse);
  check::not_null(kOp, "weight", args.weight);
  check::not_null(kOp, "dq", args.dq.data);
  check::not_null(kOp, "dw", args.dw.data);
  check::not_null(kOp, "dk", args.dk);
  if (args.in.indexer.bias != nullptr) check::not_null(kOp, "dbias", args.dbias);
  indexer_kl_backward_cpu(args, parallel);
}

}  // namespace gsa
