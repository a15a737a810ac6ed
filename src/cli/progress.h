// How far long work has come: one line that is drawn again on a terminal, a plain line now and then
// elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gsa::cli {

std::string duration(double seconds);  // 42 s, 3 min 07 s, 2 h 05 min

class Progress {
 public:
  // total: of the amounts told to update(); 0: unknown, no share and no time left. To standard error.
  Progress(std::string title, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // detail: shown behind the bar. Draws at most ten times a second.
  void update(std::int64_t done, const std::string& detail);
  // A line that stays, on standard output.
  void line(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  std::string title_;
  std::int64_t total_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

}  // namespace gsa::cli
