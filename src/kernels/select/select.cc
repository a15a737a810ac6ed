// select on the CPU: the budget. The work is in cpu/select.cc.
#include "kernels/select/select.h"

#include <algorithm>
#include <cmath>

#include "gsa/error.h"
#include "kernels/common/plans.h"
#include "kernels/select/select_checks.h"
#include "kernels/select/select_cpu.h"

namespace gsa {
namespace {

template <class Args>
void print_index_plan(const char* op, const Args& args) {
  if (!prints_plans()) return;
  print_cpu_plan(op, concat("indexer ", args.indexer.heads, " heads of ", args.indexer.head_size, ", ",
                            name_of(args.dtype), ", ", describe(args.sequences)));
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
  if (!check_select(args, true)) return;
  print_index_plan("select", args);
  select_cpu(args, parallel);
}

void select_mask(const SelectMaskArgs& args, const Parallel& parallel) {
  if (!check_select_mask(args, true)) return;
  print_index_plan("select_mask", args);
  select_mask_cpu(args, parallel);
}

void index_scores(const IndexScoresArgs& args, const Parallel& parallel) {
  if (!check_index_scores(args, true)) return;
  print_index_plan("index_scores", args);
  index_scores_cpu(args, parallel);
}

}  // namespace gsa
