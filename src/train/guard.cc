#include "train/guard.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gsa::train {

double SpikeGuard::bar() const {
  const std::size_t count = history_.size();
  if (static_cast<std::int64_t>(count) < window_) return std::numeric_limits<double>::infinity();
  double mean = 0, square = 0;
  for (const double x : history_) mean += x / static_cast<double>(count);
  for (const double x : history_) square += (x - mean) * (x - mean) / static_cast<double>(count);
  // Values that are all equal have a mean that rounding may put below them: that is no spike.
  const double rounding = 1e-9 * std::abs(mean);
  return mean + sigmas_ * std::sqrt(square) + rounding;
}

void SpikeGuard::take(double value) {
  history_.push_back(std::min(value, bar()));
  if (static_cast<std::int64_t>(history_.size()) > window_) history_.pop_front();
}

}  // namespace gsa::train
