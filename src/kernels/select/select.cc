// Argument checks of select, and the budget. The work is in cpu/select.cc.
#include "kernels/select/select.h"

#include <algorithm>
#include <cmath>

#include "gsa/error.h"
#include "kernels/common/checks.h"
#include "kernels/select/select_cpu.h"

namespace gsa {
namespace {

void check_common(const char* op, const Indexer& indexer, const Sequences& sequences) {
  check::sequences(op, sequences);
  check::indexer(op, indexer, sequences, true);
}

}  // namespace

std::int64_t budget_for(const Budget& budget, double variance, std::int64_t visible) {
  double wanted = static_cast<double>(budget.base);
  if (budget.mode != BudgetMode::fixed && budget.mean_variance >= 0) {
    const bool inverse = budget.mode == BudgetMode::inverse;
    if (variance == 0) {
      // No opinion at all: keep the most (inverse) or, to the letter of the paper's equation, the least.
      wanted = static_cast<double>(inverse ? budget.max : budget.min);
    } else {
      const double ratio = inverse ? budget.mean_variance / variance : variance / budget.mean_variance;
      wanted = std::floor(static_cast<double>(budget.base) * ratio);
    }
  }
  const double bounded = std::clamp(wanted, static_cast<double>(budget.min), static_cast<double>(budget.max));
  return std::min(static_cast<std::int64_t>(bounded), visible);
}

void select(const SelectArgs& args, const Parallel& parallel) {
  constexpr const char* kOp = "select";
  check_common(kOp, args.indexer, args.sequences);
  check::budget(kOp, args.budget);
  check::mask(kOp, args.mask, args.sequences);
  if (args.sequences.total_queries() > 0) select_cpu(args, parallel);
}

void select_mask(const SelectMaskArgs& args, const Parallel& parallel) {
  constexpr const char* kOp = "select_mask";
  check_common(kOp, args.indexer, args.sequences);
  check::mask(kOp, args.mask, args.sequences);
  if (args.sequences.total_queries() == 0) return;
  check::not_null(kOp, "mask", args.mask.words);
  check::not_null(kOp, "threshold", args.threshold);
  check::not_null(kOp, "tie_cut", args.tie_cut);
  select_mask_cpu(args, parallel);
}

void index_scores(const IndexScoresArgs& args, const Parallel& parallel) {
  constexpr const char* kOp = "index_scores";
  check_common(kOp, args.indexer, args.sequences);
  if (args.sequences.total_queries() == 0) return;
  check::not_null(kOp, "scores", args.scores);
  for (std::int64_t n = 0; n < args.sequences.count; ++n) {
    if (args.scores_stride < args.sequences.keys(n)) {
      bad_argument(kOp, "scores_stride",
                   concat("at least the keys of sequence ", n, " = ", args.sequences.keys(n)),
                   concat(args.scores_stride));
    }
  }
  index_scores_cpu(args, parallel);
}

}  // namespace gsa
