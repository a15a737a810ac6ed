// Spikes: a number far above its recent past.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace gsa::train {

class SpikeGuard {
 public:
  SpikeGuard(std::int64_t window, double sigmas) : window_(window), sigmas_(sigmas) {}

  // Beyond this a value is a spike: the mean of the last `window` values plus `sigmas` deviations. Infinite
  // before there are that many.
  double bar() const;

  // Takes a value into the past; a spike only at the height of the bar. So one spike hardly moves the bar for
  // the next, while a lasting change is let through after some tens of steps instead of never.
  void take(double value);

  // What comes next is another quantity (another phase of training).
  void forget() { history_.clear(); }

  std::vector<double> history() const { return {history_.begin(), history_.end()}; }
  void restore(const std::vector<double>& history) { history_.assign(history.begin(), history.end()); }

 private:
  std::int64_t window_;
  double sigmas_;
  std::deque<double> history_;
};

}  // namespace gsa::train
