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

namespace gsa {

enum class ScoreForm { sigmoid, relu };
enum class BudgetMode { inverse, proportional, fixed };

struct Budget {
  BudgetMode mode = BudgetMode::inverse;
  std::int64_t base = 2048;
  std::int64_t min = 256;
  std::int64_t max = 4096;
  double mean_variance = -1;  // the running mean of Var_t; negative: not known yet, then k_t = base
  // The same number in device memory; where given, CUDA kernels read it instead when they run.
  const double* device_mean_variance = nullptr;
};

// What defines the scores; shared by every function here and by indexer_kl.
struct Indexer {
  std::int64_t heads = 0;      // 1 .. 128
  std::int64_t head_size = 0;  // 1 .. 256
  ConstRows q;                 // [queries, heads, head_size]
  ConstRows k;                 // [keys, head_size]; head_stride is not used. Or in pages, see below
  ConstRows w;                 // [queries, heads]: head_stride is the step between heads
  const void* bias = nullptr;  // [heads], or null for zeros
  double scale = 1;
  ScoreForm form = ScoreForm::sigmoid;

  // On the CPU, select, select_mask and index_scores read keys that lie in pages: page_size > 0 says so. The
  // scores are the same bits as those of the same keys end to end.
  PageTable pages = {};
  // Keys of 8 bits: k is int8 and the key is k * k_scale, in Real. k_scale is [keys], or in pages [pages,
  // page_size] with a page every k_scale_stride. Null: keys of the operator's type.
  const float* k_scale = nullptr;
  std::int64_t k_scale_stride = 0;
};

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
