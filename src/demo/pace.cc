#include "demo/pace.h"

#include <algorithm>
#include <cmath>

namespace gsa::demo {

Spans spans_of(std::int64_t steps) {
  const auto share = [&](double part) {
    return std::max<std::int64_t>(1, std::llround(part * static_cast<double>(steps)));
  };
  Spans spans;
  spans.dense = share(0.55);
  spans.warmup = share(0.12);
  spans.sparse = std::max<std::int64_t>(1, steps - spans.dense - spans.warmup);
  return spans;
}

double Pace::seconds(const Spans& spans, std::int64_t standard_done, std::int64_t gsa_done) const {
  const auto left = [&](std::int64_t begin, std::int64_t count) {
    return static_cast<double>(std::clamp<std::int64_t>(begin + count - gsa_done, 0, count));
  };
  return static_cast<double>(std::max<std::int64_t>(0, spans.steps() - standard_done)) * standard +
         left(0, spans.dense) * dense + left(spans.dense, spans.warmup) * warmup +
         left(spans.dense + spans.warmup, spans.sparse) * sparse;
}

std::int64_t steps_within(double seconds, const Pace& pace) {
  constexpr std::int64_t kMany = 1000;
  const double each = pace.seconds(spans_of(kMany)) / static_cast<double>(kMany);
  return std::max<std::int64_t>(20, static_cast<std::int64_t>(seconds / each) / 10 * 10);
}

}  // namespace gsa::demo
