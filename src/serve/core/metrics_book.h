// Where the scheduler writes down what it does, for metrics(). Any thread. No torch header.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "serve/core/metrics.h"

namespace gsa::serve {

class MetricsBook {
 public:
  struct State {
    std::uint64_t last_taken_in = 0;  // of the texts, whose numbers are in the order of arrival
    std::int64_t waiting = 0, reading = 0, writing = 0;
    std::int64_t pages_total = 0, pages_free = 0, pages_held = 0, pages_cached = 0;
  };
  void state(const State& state);

  void taken_up(std::int64_t prompt);
  void looked_up(std::int64_t found, std::int64_t tokens);
  void prefilled(std::int64_t tokens);
  void stepped(std::int64_t texts);
  void drawn(bool first, double seconds);  // a token, since the request or since the token before
  void finished(bool stop, double seconds);
  void cancelled();
  void failed();
  void refused(std::int64_t texts);
  void preempted();
  void evicted(std::int64_t pages);

  MetricsSnapshot snapshot() const;
  // When a text of the queue will probably have ended: for Retry-After, 1 .. 60.
  std::int64_t seconds_until_room() const;

 private:
  // Tokens by the second, of the last ones.
  struct Second {
    std::int64_t second = -1, prompt = 0, generated = 0;
  };
  static constexpr std::int64_t kSeconds = 10;

  Second& now();  // under the lock

  mutable std::mutex mutex_;
  MetricsSnapshot counts_;
  std::array<Second, kSeconds + 1> seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace gsa::serve
