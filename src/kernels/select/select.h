// select: which keys a query attends to.
//
//   x[t,j,s]  = scale * (q[t,j] . k[s]) + bias[j]
//   I[t,s]    = sum_j w[t,j] * act(x[t,j,s])          act = sigmoid (GSA) or ReLU (DSA), s <= position of t
//   Var_t     = population variance of I[t, visible]
//   k_t       = min(clamp(floor(base * r), min, max), visible)
//               r = mean_variance / Var_t (inverse), Var_t / mean_variance (proportional), 1 (fixed)
//   S_t       = the k_t positions of highest I; equal scores: the lower position wins
//
// Scores live in a chunk of queries at a time; memory is linear in the length. A query's (threshold, tie_cut)
// is enough to rebuild its mask: s is selected iff I > threshold, or I == threshold and s <= tie_cut.
//
// NaN policy: a query whose scores are not all finite gets k_t = 0, an empty mask, NaN variance and NaN
// threshold; attend() turns an empty mask into NaN. Bits of a query depend on nothing but that query and the
// keys it sees: not on threads, chunking, batch neighbours or the future.
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "gsa/dtype.h"
#include "gsa/tensor_view.h"
#include "kernels/scores/scores.h"

namespace gsa {

// Real below is float, and double when dtype is f64.
struct SelectArgs {
  DType dtype = DType::f32;
  Indexer indexer;
  Budget budget;
  Sequences sequences;

  Mask mask;                        // words may be null: no mask wanted
  std::int32_t* k_t = nullptr;      // [queries], may be null
  void* variance = nullptr;         // Real [queries], may be null
  void* threshold = nullptr;        // Real [queries], may be null
  std::int32_t* tie_cut = nullptr;  // [queries], may be null
};

// Where a query selects all it sees, threshold is -infinity; where no tie is cut, tie_cut is its position.
void select(const SelectArgs& args, const Parallel& parallel);

struct SelectMaskArgs {
  DType dtype = DType::f32;
  Indexer indexer;
  Sequences sequences;
  const void* threshold = nullptr;        // Real [queries]
  const std::int32_t* tie_cut = nullptr;  // [queries]
  Mask mask;
};

// The mask that select() wrote, bit for bit, from what it left in threshold and tie_cut.
void select_mask(const SelectMaskArgs& args, const Parallel& parallel);

struct IndexScoresArgs {
  DType dtype = DType::f32;
  Indexer indexer;
  Sequences sequences;
  void* scores = nullptr;          // Real [queries, scores_stride]; positions not visible: -infinity
  std::int64_t scores_stride = 0;  // at least the longest sequence
};

// The scores themselves, the very bits that select() compares. Quadratic memory: for tests and for looking.
void index_scores(const IndexScoresArgs& args, const Parallel& parallel);

}  // namespace gsa
