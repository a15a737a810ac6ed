#include "infer/core/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/philox.h"
#include "gsa/error.h"

namespace gsa::infer {
namespace {

constexpr char kOp[] = "sample";

void check_number(const char* field, double value, bool fits, const char* expected) {
  if (!std::isfinite(value) || !fits) bad_argument(kOp, field, expected, concat(value));
}

// Where the first of the highest ones stands.
std::size_t first_highest(std::span<const float> logits) {
  constexpr std::size_t kLanes = 16;  // that are compared at a time
  std::array<float, kLanes> highest;
  highest.fill(logits.front());
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      highest[lane] = highest[lane] < logits[i + lane] ? logits[i + lane] : highest[lane];
  }
  for (; i < logits.size(); ++i) highest[0] = std::max(highest[0], logits[i]);
  const float most = *std::max_element(highest.begin(), highest.end());
  return static_cast<std::size_t>(std::find(logits.begin(), logits.end(), most) - logits.begin());
}

double log_of_sum(std::span<const float> logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  return highest + std::log(sum);
}

std::vector<TokenLogprob> most_likely_of(std::span<const float> logits, double log_sum, std::int64_t count) {
  std::vector<std::int32_t> ids(logits.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  const auto kept = std::min<std::int64_t>(count, static_cast<std::int64_t>(ids.size()));
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::vector<TokenLogprob> top;
  for (std::int64_t i = 0; i < kept; ++i) {
    const std::int32_t id = ids[static_cast<std::size_t>(i)];
    top.push_back({id, logits[static_cast<std::size_t>(id)] - log_sum});
  }
  return top;
}

}  // namespace

void SamplingOptions::validate() const {
  check_number("temperature", temperature, temperature >= 0, "0 (greedy) or a positive number");
  if (top_k < 0) bad_argument(kOp, "top_k", "0 (all) or a number of tokens", concat(top_k));
  check_number("top_p", top_p, top_p > 0 && top_p <= 1, "a probability above 0, up to 1");
  check_number("min_p", min_p, min_p >= 0 && min_p <= 1, "a share from 0 to 1");
  check_number("repetition_penalty", repetition_penalty, repetition_penalty > 0, "a positive number");
  if (logprobs && *logprobs < 0) bad_argument(kOp, "logprobs", "0 or a number of tokens", concat(*logprobs));
}

Sampler::Sampler(const SamplingOptions& options, std::int64_t drawable)
    : options_(options), drawable_(drawable) {
  options_.validate();
  if (drawable_ < 1) bad_argument(kOp, "drawable", "at least one token to draw", concat(drawable_));
  seen_.resize(static_cast<std::size_t>(drawable_));
}

void Sampler::remember(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) {
    if (id < 0) bad_argument(kOp, "ids", "token ids, 0 or above", concat(id));
    // One that is never drawn needs no penalty.
    if (id >= drawable_ || seen_[static_cast<std::size_t>(id)]) continue;
    seen_[static_cast<std::size_t>(id)] = true;
    seen_ids_.push_back(id);
  }
}

void Sampler::check(std::span<const float> logits) const {
  if (static_cast<std::int64_t>(logits.size()) < drawable_) {
    bad_argument(kOp, "logits", concat("at least ", drawable_, " numbers"), concat(logits.size()));
  }
  // All bits of the exponent are set in infinities and NaNs, and integers are compared many at a time; which one it was
  // is looked for where it matters.
  constexpr std::uint32_t kExponent = 0x7F800000;
  bool finite = true;
  for (const float logit : logits) finite &= (std::bit_cast<std::uint32_t>(logit) & kExponent) != kExponent;
  if (finite) return;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) continue;
    bad_argument(kOp, "logits", "finite numbers (a model with damaged weights gives others)",
                 concat(logits[i], " for token ", i, " at step ", step_));
  }
}

void Sampler::penalise(std::span<const float> logits) {
  candidates_.resize(static_cast<std::size_t>(drawable_));
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    candidates_[i] = {logits[i], static_cast<std::int32_t>(i)};
  }
  if (options_.repetition_penalty == 1) return;
  for (const std::int32_t id : seen_ids_) {
    double& logit = candidates_[static_cast<std::size_t>(id)].logit;
    logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
  }
}

std::int32_t Sampler::most_likely() const {
  // max_element gives the first of equals, and candidates stand by id.
  return std::max_element(candidates_.begin(), candidates_.end(),
                          [](const Candidate& a, const Candidate& b) { return a.logit < b.logit; })
      ->id;
}

std::int32_t Sampler::draw() {
  const auto more_likely = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  const auto less_likely = [&](const Candidate& a, const Candidate& b) { return more_likely(b, a); };
  const double highest = std::min_element(candidates_.begin(), candidates_.end(), more_likely)->logit;
  const auto weight = [&](const Candidate& c) {
    return std::exp((c.logit - highest) / options_.temperature);
  };

  if (options_.top_k > 0 && options_.top_k < static_cast<std::int64_t>(candidates_.size())) {
    const auto end = candidates_.begin() + options_.top_k;
    std::nth_element(candidates_.begin(), end, candidates_.end(), more_likely);
    candidates_.erase(end, candidates_.end());
  }
  if (options_.top_p < 1) {
    double total = 0;
    for (const Candidate& c : candidates_) total += weight(c);
    // A heap gives up its most likely ones first; usually few are needed.
    std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
    auto rest = candidates_.end();
    for (double sum = 0; rest != candidates_.begin() && sum < options_.top_p * total;) {
      std::pop_heap(candidates_.begin(), rest, less_likely);
      sum += weight(*--rest);
    }
    candidates_.erase(candidates_.begin(), rest);
  }
  if (options_.min_p > 0) {
    std::erase_if(candidates_, [&](const Candidate& c) { return weight(c) < options_.min_p; });
  }

  if (!std::is_sorted(candidates_.begin(), candidates_.end(), by_id)) {
    std::sort(candidates_.begin(), candidates_.end(), by_id);
  }
  double total = 0;
  for (Candidate& c : candidates_) total += c.logit = weight(c);
  const double target = philox_uniform(options_.seed, options_.stream, step_) * total;
  double sum = 0;
  std::int32_t drawn = 0;
  for (const Candidate& c : candidates_) {
    if (c.logit == 0) continue;  // too unlikely for a number
    drawn = c.id;
    sum += c.logit;
    if (sum > target) break;
  }
  return drawn;
}

std::int32_t Sampler::next(std::span<const float> logits) {
  const bool greedy = options_.temperature == 0;
  if (greedy && options_.repetition_penalty == 1) {
    return static_cast<std::int32_t>(first_highest(logits.first(static_cast<std::size_t>(drawable_))));
  }
  penalise(logits);
  return greedy ? most_likely() : draw();
}

SampledToken Sampler::sample(std::span<const float> logits) {
  check(logits);
  const std::int32_t id = next(logits);
  remember({&id, 1});
  ++step_;
  if (options_.logprobs) return with_logprobs(id, logits, *options_.logprobs);
  return {.id = id, .logprob = {}, .top = {}};
}

SampledToken with_logprobs(std::int32_t id, std::span<const float> logits, std::int64_t top) {
  const double log_sum = log_of_sum(logits);
  return {.id = id,
          .logprob = logits[static_cast<std::size_t>(id)] - log_sum,
          .top = most_likely_of(logits, log_sum, top)};
}

}  // namespace gsa::infer
