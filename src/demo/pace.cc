#include "demo/pace.h"

#include <algorithm>
#include <cmath>

namespace gsa::demo {

Phases phases_of(std::int64_t steps) {
  const auto share = [&](double part) {
    return std::max<std::int64_t>(1, std::llround(part * static_cast<double>(steps)));
  };
  Phases phases;
  phases.dense = share(0.55);
  phases.warmup = share(0.12);
  phases.sparse = std::max<std::int64_t>(1, steps - phases.dense - phases.warmup);
  return phases;
}

double Pace::seconds(const Phases& phases, std::int64_t standard_done, std::int64_t gsa_done) const {
  const auto left = [&](std::int64_t begin, std::int64_t count) {
    return static_cast<double>(std::clamp<std::int64_t>(begin + count - gsa_done, 0, count));
  };
  return static_cast<double>(std::max<std::int64_t>(0, phases.steps() - standard_done)) * standard +
         left(0, phases.dense) * dense + left(phases.dense, phases.warmup) * warmup +
         left(phases.dense + phases.warmup, phases.sparse) * sparse;
}

std::int64_t steps_within(double seconds, const Pace& pace) {
  constexpr std::int64_t kMany = 1000;
  const double each = pace.seconds(phases_of(kMany)) / static_cast<double>(kMany);
  return std::max<std::int64_t>(20, static_cast<std::int64_t>(seconds / each) / 10 * 10);
}

}  // namespace gsa::demo
