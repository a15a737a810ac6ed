// indexer_kl: how far the indexer's opinion is from the attention it has to predict.
//
//   p[t,s]  = 1/heads * sum_h exp(scale * q[t,h].k[s,h/G] - lse[t,h])      the target, a constant
//   loss_t  = KL(p_t || softmax(I_t)) over the support of t
//   support = every visible key (warm-up, no mask), or S_t (sparse: lse is then that of attend over S_t, so
//             that p is normalised on S_t)
//   dI[t,s] = (softmax(I_t)[s] - p[t,s]) * weight_t
//
// I is the indexer's score as in select.h (a temperature belongs into w). No L x L matrix exists at any time:
// tiles of p and I are rebuilt from lse (forward) and from lse and index_lse (backward).
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "kernels/attention/attend_shape.h"
#include "kernels/scores/scores.h"

namespace gsa {

struct IndexerKlInputs {
  AttendShape shape;          // of the attention that is the target
  ConstRows q;                // [queries, heads, head_size]
  ConstRows k;                // [keys, kv_heads, head_size]
  const void* lse = nullptr;  // Real [queries, heads]
  Indexer indexer;            // of dtype shape.dtype
  ConstMask mask;             // words null: every visible key
  Sequences sequences;
  // The queries that the loss is taken of; every one, or a sample of them without a mask. The other queries
  // have loss, index_lse, dq and dw 0, and their lse is not read.
  QueryTiles tiles = {};
};

struct IndexerKlArgs {
  IndexerKlInputs in;
  void* loss = nullptr;       // Real [queries]
  void* index_lse = nullptr;  // Real [queries]: log sum exp of I_t over the support
};

void indexer_kl(const IndexerKlArgs& args, const Parallel& parallel);

struct IndexerKlBackwardArgs {
  IndexerKlInputs in;
  const void* index_lse = nullptr;  // what indexer_kl() wrote
  const void* weight = nullptr;     // Real [queries]: d(total) / d(loss_t)

  Rows dq;             // as indexer.q, overwritten
  Rows dw;             // as indexer.w, overwritten
  void* dk = nullptr;  // Real [keys, indexer head_size], contiguous, added to
  // A query with an empty support gives NaN to its dq and dw, and to dbias; no key takes part.
  void* dbias = nullptr;  // Real [indexer heads], added to; null when indexer.bias is null
};

void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
