// Scores of (query, key) pairs and the budget of keys that follows from them, as select, decode and
// indexer_kl take them. The formulas: kernels/select/select.h.
#pragma once

#include <cstdint>

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

// What defines the scores of select and of indexer_kl.
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
  // scores are the same bits as those of the same contiguous keys.
  PageTable pages = {};
  // Keys of 8 bits: k is int8 and the key is k * k_scale, in Real. k_scale is [keys], or in pages [pages,
  // page_size] with a page every k_scale_stride. Null: keys of the operator's type.
  const float* k_scale = nullptr;
  std::int64_t k_scale_stride = 0;
};

}  // namespace gsa
