// What the schemas of several operators share, and what their arguments mean.
//
// Shapes. B sequences, L queries and S keys each (L <= S), heads = n_h, key/value heads = n_kv (n_kv divides
// n_h), head size d (1 .. 256); indexer heads H_I (1 .. 128), indexer head size d_I (1 .. 256).
// Floating-point tensors of a call share one type: float32, bfloat16, float16 or float64 on the CPU, bfloat16
// or float16 on a CUDA device (float32 too for gate and the operators that know no keys: rms_norm, rotary,
// swiglu, cross_entropy_, adamw_, append). Real below is float32, and float64 where the inputs are float64.
// Tensors may be strided; results are contiguous. All lie on one device, but for the layout below and, if one
// likes, mean_variance. Autocast changes nothing: types are those of the arguments, which have to agree.
//
//   q           [B, L, n_h, d]      k, v       [B, S, n_kv, d]
//   index_q     [B, L, H_I, d_I]    index_k    [B, S, d_I]       (q, k of select, select_mask, index_scores)
//   index_w     [B, L, H_I]         index_bias [H_I], or None for zeros
//   mask        int32 [B, L, ceil(S / 32)]: bit s % 32 of word s / 32 says that the query selects position s;
//               pack_mask makes one of a bool mask. A bit beyond the query's position is an error on the CPU
//               and passed over on a CUDA device, where looking would mean waiting
//   k_t         int32 [B, L]: how many positions a query selects
//   variance    Real [B, L]: of the query's scores
//   threshold   Real [B, L], tie_cut int32 [B, L]: position s is selected iff its score is above the
//               threshold, or equal to it with s <= tie_cut
//   lse         Real [B, L, n_h]: log-sum-exp of a query's attention logits
//   scale       factor of q.k, 1/sqrt(d) for None; of the indexer's q.k it is a plain number
//   form        'sigmoid' or 'relu', budget 'inverse', 'proportional' or 'fixed'
//   k_base, k_min, k_max   k_t = min(clamp(floor(k_base r), k_min, k_max), visible): a k_base outside the
//               bounds is clamped like any other value
//   mean_variance   float64 or float32, one element: the running mean of variance, from which the inverse and
//               proportional budgets take r (fixed: r = 1); None or negative: not known, r = 1. On a CUDA
//               device kernels read it when they run: nothing waits, and a CUDA graph replays with the value
//               of then
//   accumulation    how the backward pass accumulates dk and dv: 'ordered' (deterministic) or 'atomic'
//               (on a CUDA device faster and non-deterministic; on the CPU the same as 'ordered')
//   max_selected    no query selected more keys than this: saves memory where it is known
//   query_tiles     int64 or int32 [n], on the CPU: a sample of the queries, as ascending numbers of tiles.
//               None: every query. The tiles of all sequences are numbered in order; those of a sequence are
//               cut where positions are multiples of 64
//
// Layout. Without cu_seqlens, as above. With cu_seqlens_q and cu_seqlens_k (int64 or int32 [sequences + 1],
// on the CPU), sequences are packed and [B, L], [B, S] become one dimension [T] each. q_position
// (int64 or int32 [sequences], on the CPU) is the position of each sequence's first query; None: the last
// query stands at the last key. A packed mask (or score matrix) is as wide as its longest sequence, or as
// max_keys, which torch.compile needs to know the shape.
#pragma once

#include <torch/library.h>

#include "gsa/error.h"

namespace gsa::binding::schema {

inline constexpr char kIndexer[] = "Tensor q, Tensor k, Tensor w, Tensor? bias";
inline constexpr char kIndexTensors[] = "Tensor index_q, Tensor index_k, Tensor index_w, Tensor? index_bias";
inline constexpr char kBudget[] =
    "str budget=\"inverse\", int k_base=2048, int k_min=256, int k_max=4096, Tensor? mean_variance=None";
inline constexpr char kScores[] = "float scale=1, str form=\"sigmoid\"";
inline constexpr char kIndexScores[] = "float index_scale=1, str form=\"sigmoid\"";
inline constexpr char kLayout[] =
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? q_position=None";
inline constexpr char kAccumulation[] = "str accumulation=\"ordered\"";
inline constexpr char kTiles[] = "Tensor? query_tiles=None";
inline constexpr char kWidth[] = "SymInt? max_keys=None";

// Registers the schema that the parts are when joined.
template <typename... Parts>
void define(torch::Library& library, const Parts&... parts) {
  library.def(concat(parts...).c_str());
}

}  // namespace gsa::binding::schema
