#include "serve/core/metrics_book.h"

#include <algorithm>
#include <cmath>

namespace gsa::serve {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t whole_seconds(Clock::time_point since) {
  return std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - since).count();
}

}  // namespace

MetricsBook::Second& MetricsBook::now() {
  const std::int64_t second = whole_seconds(start_);
  Second& slot = seconds_[static_cast<std::size_t>(second) % seconds_.size()];
  if (slot.second != second) slot = {.second = second};
  return slot;
}

void MetricsBook::state(const State& state) {
  const std::lock_guard lock(mutex_);
  counts_.last_taken_in = state.last_taken_in;
  counts_.waiting = state.waiting;
  counts_.reading = state.reading;
  counts_.writing = state.writing;
  counts_.pages_total = state.pages_total;
  counts_.pages_in_use = state.pages_total - state.pages_free;
  counts_.pages_cached = state.pages_cached;
  counts_.pages_held = state.pages_held;
}

void MetricsBook::taken_up(std::int64_t prompt) {
  const std::lock_guard lock(mutex_);
  counts_.prompt_tokens += prompt;
}

void MetricsBook::looked_up(std::int64_t found, std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  counts_.prefix_hit_tokens += found;
  counts_.prefix_query_tokens += tokens;
}

void MetricsBook::prefilled(std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  counts_.prefilled_tokens += tokens;
  now().prompt += tokens;
}

void MetricsBook::stepped(std::int64_t texts) {
  const std::lock_guard lock(mutex_);
  ++counts_.decode_steps;
  counts_.batch.observe(static_cast<double>(texts));
}

void MetricsBook::drawn(bool first, double seconds) {
  const std::lock_guard lock(mutex_);
  ++counts_.generated_tokens;
  ++now().generated;
  (first ? counts_.first_token_seconds : counts_.token_seconds).observe(seconds);
}

void MetricsBook::finished(bool stop, double seconds) {
  const std::lock_guard lock(mutex_);
  ++(stop ? counts_.finished_stop : counts_.finished_length);
  counts_.request_seconds.observe(seconds);
}

void MetricsBook::cancelled() {
  const std::lock_guard lock(mutex_);
  ++counts_.cancelled;
}

void MetricsBook::failed() {
  const std::lock_guard lock(mutex_);
  ++counts_.failed;
}

void MetricsBook::refused(std::int64_t texts) {
  const std::lock_guard lock(mutex_);
  counts_.refused += texts;
}

void MetricsBook::preempted() {
  const std::lock_guard lock(mutex_);
  ++counts_.preemptions;
}

void MetricsBook::evicted(std::int64_t pages) {
  const std::lock_guard lock(mutex_);
  counts_.evicted_pages += pages;
}

MetricsSnapshot MetricsBook::snapshot() const {
  const std::lock_guard lock(mutex_);
  MetricsSnapshot result = counts_;
  // The second that runs is not over: the whole ones before it count.
  const std::int64_t second = whole_seconds(start_);
  std::int64_t prompt = 0, generated = 0;
  for (const Second& slot : seconds_) {
    if (slot.second < 0 || slot.second >= second || slot.second < second - kSeconds) continue;
    prompt += slot.prompt;
    generated += slot.generated;
  }
  const double span = static_cast<double>(std::clamp<std::int64_t>(second, 1, kSeconds));
  result.prompt_tokens_per_second = static_cast<double>(prompt) / span;
  result.generated_tokens_per_second = static_cast<double>(generated) / span;
  return result;
}

std::int64_t MetricsBook::seconds_until_room() const {
  const std::lock_guard lock(mutex_);
  const Histogram& seconds = counts_.request_seconds;
  if (seconds.count() == 0) return 1;
  const double mean = seconds.sum() / static_cast<double>(seconds.count());
  const double batch = std::max<double>(static_cast<double>(counts_.writing), 1);
  return std::clamp<std::int64_t>(std::llround(std::ceil(mean / batch)), 1, 60);
}

}  // namespace gsa::serve
