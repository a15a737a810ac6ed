// What the server has done and is doing, in numbers; as Prometheus reads it. No torch header.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gsa::serve {

// Counts of observations by upper bound, as Prometheus keeps them.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value);
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<std::int64_t>& counts() const { return counts_; }  // the last: above all bounds
  double sum() const { return sum_; }
  std::int64_t count() const { return count_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::int64_t> counts_;
  double sum_ = 0;
  std::int64_t count_ = 0;
};

struct MetricsSnapshot {
  // now
  std::int64_t waiting = 0, reading = 0, writing = 0;  // texts
  std::uint64_t last_taken_in = 0;                     // the number of the last one that is among them
  // Of the cache: in all; of running texts or the prefix cache; of running texts; of the prefix cache. A page that
  // several have counts once.
  std::int64_t pages_total = 0, pages_in_use = 0, pages_held = 0, pages_cached = 0;
  double prompt_tokens_per_second = 0, generated_tokens_per_second = 0;  // of the last ten seconds
  // since the start
  std::int64_t prompt_tokens = 0;     // of requests that were taken up
  std::int64_t prefilled_tokens = 0;  // that passes have read, again after pre-emption included
  std::int64_t generated_tokens = 0;
  std::int64_t prefix_hit_tokens = 0,
               prefix_query_tokens = 0;  // found in the prefix cache, of tokens looked up
  std::int64_t preemptions = 0, evicted_pages = 0;
  std::int64_t finished_stop = 0, finished_length = 0, cancelled = 0, failed = 0, refused = 0;  // texts
  std::int64_t decode_steps = 0;
  Histogram first_token_seconds{{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120}};
  Histogram token_seconds{{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}};
  Histogram request_seconds{{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}};
  Histogram batch{{1, 2, 4, 8, 16, 32, 64, 128, 256}};  // texts a decode step
};

// Prometheus text format 0.0.4; model: the label model_name of every sample.
std::string prometheus_text(const MetricsSnapshot& metrics, const std::string& model);

}  // namespace gsa::serve
