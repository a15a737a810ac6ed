// Schemas of the operators. They are implemented once, in select.cc, attend.cc, attend_lse.cc,
// sparse_attend.cc, gate.cc, indexer_kl.cc and decode.cc (quantize_index_keys.cc, pack_mask.cc: torch's own
// operators), on top of a Backend (backend.h) for the CPU or a CUDA device; shapes are in meta.cc, gradients
// in autograd.cc.
//
// Shapes. B sequences, L queries and S keys each (L <= S), heads = n_h, key/value heads = n_kv (n_kv divides
// n_h), head size d (1 .. 256); indexer heads H_I (1 .. 128), indexer head size d_I (1 .. 256).
// Floating-point tensors of a call share one type: float32, bfloat16, float16 or float64 on the CPU, bfloat16
// or float16 on a CUDA device (gate: float32 too). Real below is float32, and float64 where the inputs are
// float64. Tensors may be strided; results are contiguous. All lie on one device, but for the layout below
// and, if one likes, mean_variance. Autocast changes nothing, here or in the operators of other files: types
// are those of the arguments, which have to agree.
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
//   accumulation    how the backward pass adds up dk and dv: 'ordered' (the same bits every time) or 'atomic'
//               (on a CUDA device faster, and not reproducible; on the CPU the same as 'ordered')
//   most_selected   no query selected more keys than this: saves memory where it is known
//   query_tiles     int64 or int32 [n], on the CPU: a sample of the queries, as ascending numbers of tiles.
//               None: every query. The tiles of all sequences are numbered in order; those of a sequence are
//               cut where positions are multiples of 64
//
// Layout. Without cu_seqlens, as above. With cu_seqlens_q and cu_seqlens_k (int64 or int32 [sequences + 1],
// on the CPU), sequences are packed end to end and [B, L], [B, S] become one dimension [T] each. q_position
// (int64 or int32 [sequences], on the CPU) is the position of each sequence's first query; None: the last
// query stands at the last key. A packed mask (or score matrix) is as wide as its longest sequence, or as
// max_keys, which torch.compile needs to know the shape.
#include <torch/library.h>

#include <string>

#include "gsa/error.h"

namespace gsa::binding {

namespace {

constexpr char kIndexer[] = "Tensor q, Tensor k, Tensor w, Tensor? bias";
constexpr char kIndexTensors[] = "Tensor index_q, Tensor index_k, Tensor index_w, Tensor? index_bias";
constexpr char kBudget[] =
    "str budget=\"inverse\", int k_base=2048, int k_min=256, int k_max=4096, Tensor? mean_variance=None";
constexpr char kScores[] = "float scale=1, str form=\"sigmoid\"";
constexpr char kIndexScores[] = "float index_scale=1, str form=\"sigmoid\"";
constexpr char kLayout[] = "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? q_position=None";
constexpr char kAccumulation[] = "str accumulation=\"ordered\"";
constexpr char kTiles[] = "Tensor? query_tiles=None";
constexpr char kWidth[] = "SymInt? max_keys=None";

}  // namespace

TORCH_LIBRARY(gsa, m) {
  const auto define = [&m](const std::string& schema) { m.def(schema.c_str()); };

  // Which keys a query attends to. No gradient.
  define(concat("select(", kIndexer, "=None, *, ", kScores, ", ", kBudget, ", ", kLayout, ", ", kWidth,
                ") -> (Tensor mask, Tensor k_t, Tensor variance, Tensor threshold, Tensor tie_cut)"));
  // The mask of select() again, bit for bit.
  define(concat("select_mask(", kIndexer, ", Tensor threshold, Tensor tie_cut, *, ", kScores, ", ", kLayout,
                ", ", kWidth, ") -> Tensor"));
  // The scores that select() compares: Real [B, L, S], -inf where a key is not visible. Quadratic: for
  // looking.
  define(
      concat("index_scores(", kIndexer, "=None, *, ", kScores, ", ", kLayout, ", ", kWidth, ") -> Tensor"));

  // Softmax attention over the mask, over all visible keys for None. Differentiable in q, k, v.
  define(concat("attend(Tensor q, Tensor k, Tensor v, Tensor? mask=None, *, float? scale=None, ",
                kAccumulation, ", ", kLayout, ") -> (Tensor out, Tensor lse)"));
  // dout as out; out and lse as attend() returned them.
  define(concat(
      "attend_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor out, Tensor lse,",
      " *, float? scale=None, ", kAccumulation, ", ", kLayout, ") -> (Tensor dq, Tensor dk, Tensor dv)"));

  // The lse of attend() over every visible key, without its output: Real [B, L, n_h]. Queries outside
  // query_tiles get 0. It is the target of indexer_kl, a constant: no gradient.
  define(
      concat("attend_lse(Tensor q, Tensor k, *, ", kTiles, ", float? scale=None, ", kLayout, ") -> Tensor"));

  // select and attend in chunks of queries: the whole mask never exists, so memory is linear in the length.
  // Differentiable in q, k, v. The backward pass rebuilds the masks of chunks from the thresholds; where
  // gradients are wanted and the mask of a batch takes no more memory than q, it is kept instead.
  define(
      concat("sparse_attend(Tensor q, Tensor k, Tensor v, ", kIndexTensors, "=None, *, float? scale=None, ",
             kIndexScores, ", ", kBudget, ", ", kAccumulation, ", ", kLayout,
             ") -> (Tensor out, Tensor lse, Tensor k_t, Tensor variance, Tensor threshold, Tensor tie_cut)"));
  // The same results, and the mask that select() would give, which the backward pass then reads: for who has
  // the memory, and more use for the mask.
  define(concat(
      "sparse_attend_with_mask(Tensor q, Tensor k, Tensor v, ", kIndexTensors,
      "=None, *, float? scale=None, ", kIndexScores, ", ", kBudget, ", ", kAccumulation, ", ", kLayout, ", ",
      kWidth, ") -> (Tensor out, Tensor lse, Tensor k_t, Tensor variance, Tensor threshold, Tensor tie_cut, ",
      "Tensor mask)"));
  // With a mask, the indexer's tensors and the thresholds are checked but not needed.
  define(concat("sparse_attend_backward(Tensor dout, Tensor q, Tensor k, Tensor v, ", kIndexTensors,
                ", Tensor out, Tensor lse, Tensor threshold, Tensor tie_cut, Tensor? mask=None, *, ",
                "float? scale=None, ", kIndexScores, ", int? most_selected=None, ", kAccumulation, ", ",
                kLayout, ") -> (Tensor dq, Tensor dk, Tensor dv)"));

  // The newest L queries (any number on the CPU, 1 .. 16 on a CUDA device) of each sequence against a paged
  // cache, all in one call: score, select, attend, gate. Position s of sequence n lies in row s % page_size
  // of page block_table[n, s / page_size]; query i of sequence n stands at position lengths[n] - L + i. All
  // tensors lie on one device: a captured CUDA graph replays with other lengths and pages. Without index_q
  // every visible key is attended to; without gate nothing is gated. A query at a negative position (an
  // unused sequence of length 0) gets NaN and k_t = 0. No gradient.
  //   q              [B, L, n_h, d]
  //   k, v           [pages, page_size, n_kv, d]; page_size is a power of two, 8 .. 1024
  //   block_table    int32 [B, blocks]
  //   lengths        int32 [B]: keys in the cache, those of the L queries included
  //   index_q        [B, L, H_I, d_I]
  //   index_k        [pages, page_size, d_I]; int8 where index_k_scale is given
  //   index_w        [B, L, H_I]; index_bias [H_I] or None
  //   gate           z of gate(): as q, or [B, L, n_h]
  //   max_length     no sequence is longer: sizes scratch memory and launches
  //   index_k_scale  float32 [pages, page_size]: the indexer's key is index_k * scale, in float32
  define(concat(
      "decode(Tensor q, Tensor k, Tensor v, Tensor block_table, Tensor lengths, Tensor? index_q=None, ",
      "Tensor? index_k=None, Tensor? index_w=None, Tensor? index_bias=None, Tensor? gate=None, *, ",
      "int max_length, float? scale=None, ", kIndexScores, ", ", kBudget,
      ", Tensor? index_k_scale=None) -> (Tensor out, Tensor lse, Tensor k_t)"));
  // The indexer's keys [..., d_I] in eight bits for decode: scale = absmax / 127 of each key, values = the
  // nearest integer of key / scale, ties to even. A key that is not finite gets scale NaN, so that decode
  // says NaN where the key itself would have.
  define("quantize_index_keys(Tensor keys) -> (Tensor values, Tensor scale)");

  // x * sigmoid(z). x [..., heads, d]; z as x, or [..., heads]: one gate a head. Differentiable in both.
  define("gate(Tensor x, Tensor z) -> Tensor");
  define("gate_backward(Tensor dy, Tensor x, Tensor z) -> (Tensor dx, Tensor dz)");

  // KL(attention averaged over heads || softmax of the indexer's scores) for each query: loss and index_lse
  // are Real [B, L]. The support is that of threshold and tie_cut (rebuilt chunk by chunk), or of mask, or
  // (none of them) every visible key; lse is that of the attention over the same support. With query_tiles,
  // which need every visible key for a support, queries outside them have loss and index_lse 0 and teach
  // nothing. Differentiable in index_q, index_k, index_w, index_bias; the attention is a constant.
  define(concat("indexer_kl(Tensor q, Tensor k, Tensor lse, ", kIndexTensors, "=None, Tensor? mask=None, ",
                "Tensor? threshold=None, Tensor? tie_cut=None, *, ", kTiles, ", float? scale=None, ",
                kIndexScores, ", ", kLayout, ") -> (Tensor loss, Tensor index_lse)"));
  // dloss Real [B, L]. dindex_bias is [0] where there is no index_bias.
  define(concat("indexer_kl_backward(Tensor dloss, Tensor q, Tensor k, Tensor lse, ", kIndexTensors,
                ", Tensor? mask, Tensor? threshold, Tensor? tie_cut, Tensor index_lse, *, ", kTiles,
                ", float? scale=None, ", kIndexScores, ", ", kLayout,
                ") -> (Tensor dindex_q, Tensor dindex_k, Tensor dindex_w, Tensor dindex_bias)"));
}

}  // namespace gsa::binding
