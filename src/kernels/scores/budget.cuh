// How many keys a query selects, on the device: budget_for() of select.cc, operation for operation, in fp64.
#pragma once

#include <cstdint>

#include "kernels/scores/scores.h"

namespace gsa::cuda {

__device__ __forceinline__ int budget_for(const Budget& budget, double variance, int visible) {
  const double mean_variance =
      budget.device_mean_variance != nullptr ? *budget.device_mean_variance : budget.mean_variance;
  double wanted = static_cast<double>(budget.base);
  if (budget.mode != BudgetMode::fixed && mean_variance >= 0) {
    const bool inverse = budget.mode == BudgetMode::inverse;
    if (variance == 0) {
      wanted = static_cast<double>(inverse ? budget.max : budget.min);
    } else {
      const double ratio = inverse ? mean_variance / variance : variance / mean_variance;
      wanted = floor(__dmul_rn(static_cast<double>(budget.base), ratio));
    }
  }
  const double bounded = fmin(fmax(wanted, static_cast<double>(budget.min)), static_cast<double>(budget.max));
  return static_cast<int>(fmin(bounded, static_cast<double>(visible)));
}

}  // namespace gsa::cuda
