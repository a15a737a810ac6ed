// attend_lse: the log-sum-exp of dense causal attention, without its output, for a sample of the queries.
//
//   lse[t,h] = log sum_{s <= t} exp(scale * q[t,h].k[s,h/G])
//
// It is what indexer_kl needs to rebuild the attention of queries that attended to a selection only.
#pragma once

#include "core/parallel.h"
#include "gsa/tensor_view.h"
#include "kernels/attention/attend_shape.h"

namespace gsa {

struct AttendLseArgs {
  AttendShape shape;
  ConstRows q;  // [queries, heads, head_size]
  ConstRows k;  // [keys, kv_heads, head_size]
  Sequences sequences;
  QueryTiles tiles = {};

  void* lse = nullptr;  // Real [queries, heads]; 0 for queries outside the tiles
};

void attend_lse(const AttendLseArgs& args, const Parallel& parallel);

}  // namespace gsa
