// Wall-clock samples and their median.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

namespace gsa::bench {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

struct Samples {
  std::vector<double> seconds;

  double median() const;
  double fastest() const;
};

// How many samples a body that takes this long gets: 3 to 15 (about a second of work) below 2 s, 2 below 20
// s, then 1.
int sample_count(double seconds);

// Calls sample() once, and as often as sample_count() of its result says. sample() returns the seconds that
// count.
void repeat(const std::function<double()>& sample);

// Times body(). prepare(), where given, runs before each sample and does not count.
Samples measure(const std::function<void()>& body, const std::function<void()>& prepare = {});

}  // namespace gsa::bench
