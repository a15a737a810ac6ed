#include "timing.h"

#include <algorithm>
#include <cmath>

#include "core/median.h"

namespace gsa::bench {

double Samples::median() const { return gsa::median(seconds); }

double Samples::fastest() const { return *std::min_element(seconds.begin(), seconds.end()); }

int sample_count(double seconds) {
  if (seconds >= 20) return 1;
  if (seconds >= 2) return 2;
  return static_cast<int>(std::clamp(std::ceil(1 / seconds), 3.0, 15.0));
}

void repeat(const std::function<double()>& sample) {
  const int count = sample_count(sample());
  for (int i = 1; i < count; ++i) sample();
}

Samples measure(const std::function<void()>& body, const std::function<void()>& prepare) {
  Samples samples;
  repeat([&] {
    if (prepare) prepare();
    const Stopwatch watch;
    body();
    samples.seconds.push_back(watch.seconds());
    return samples.seconds.back();
  });
  return samples;
}

}  // namespace gsa::bench
