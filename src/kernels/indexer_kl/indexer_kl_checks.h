// Argument checks of indexer_kl, the same on every device.
#pragma once

#include "gsa/error.h"
#include "kernels/attention/query_tiles.h"
#include "kernels/common/checks.h"
#include "kernels/indexer_kl/indexer_kl.h"
#include "kernels/scores/checks.h"

namespace gsa::kl {

// Returns whether there is anything to do.
inline bool check_inputs(const char* op, const IndexerKlInputs& in) {
  check::attend_shape(op, in.shape);
  check::sequences(op, in.sequences);
  check::mask(op, in.mask, in.sequences);
  check::indexer(op, in.indexer, in.sequences);
  check::query_tiles(op, in.tiles, in.sequences);
  if (in.tiles.number != nullptr && in.mask.words != nullptr) {
    bad_argument(op, "tiles", "every query beside a mask: a sample's support is every visible key",
                 concat(in.tiles.count, " tiles"));
  }
  if (in.sequences.total_queries() == 0) return false;
  check::not_null(op, "q", in.q.data);
  check::not_null(op, "k", in.k.data);
  check::not_null(op, "lse", in.lse);
  return true;
}

inline bool check_forward(const char* op, const IndexerKlArgs& args) {
  if (!check_inputs(op, args.in)) return false;
  check::not_null(op, "loss", args.loss);
  check::not_null(op, "index_lse", args.index_lse);
  return true;
}

inline bool check_backward(const char* op, const IndexerKlBackwardArgs& args) {
  if (!check_inputs(op, args.in)) return false;
  check::not_null(op, "index_lse", args.index_lse);
  check::not_null(op, "weight", args.weight);
  check::not_null(op, "dq", args.dq.data);
  check::not_null(op, "dw", args.dw.data);
  check::not_null(op, "dk", args.dk);
  if (args.in.indexer.bias != nullptr) check::not_null(op, "dbias", args.dbias);
  return true;
}

}  // namespace gsa::kl
