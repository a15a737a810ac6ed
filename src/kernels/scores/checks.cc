#include "kernels/scores/checks.h"

#include <cmath>
#include <limits>

#include "gsa/error.h"

namespace gsa::check {

void indexer(const char* op, const Indexer& indexer, const Sequences& s, bool in_pages) {
  in_range(op, "indexer.heads", indexer.heads, 1, kMaxIndexHeads);
  in_range(op, "indexer.head_size", indexer.head_size, 1, kMaxHeadSize);
  if (!std::isfinite(indexer.scale))
    bad_argument(op, "indexer.scale", "a finite number", concat(indexer.scale));
  if (indexer.k_scale != nullptr && !in_pages) {
    bad_argument(op, "indexer.k_scale", "keys of the operator's type", "keys of 8 bits");
  }
  if (s.total_queries() == 0) return;
  pages(op, indexer.pages, s, in_pages);
  not_null(op, "indexer.q", indexer.q.data);
  not_null(op, "indexer.k", indexer.k.data);
  not_null(op, "indexer.w", indexer.w.data);
}

void budget(const char* op, const Budget& budget) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  in_range(op, "budget.base", budget.base, 1, kLimit);
  in_range(op, "budget.min", budget.min, 1, kLimit);
  in_range(op, "budget.max", budget.max, 1, kLimit);
  if (budget.min > budget.max) {
    bad_argument(op, "budget.min", concat("at most budget.max = ", budget.max), concat(budget.min));
  }
  if (std::isnan(budget.mean_variance)) {
    bad_argument(op, "budget.mean_variance", "a number (negative: not known yet)", "NaN");
  }
}

}  // namespace gsa::check
