#include "infer/core/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/philox.h"
#include "gsa/error.h"
#include "infer/core/weights.h"

namespace gsa::infer {
namespace {

constexpr char kOp[] = "sample";

void check_number(const char* field, double value, bool fits, const char* expected) {
  if (!std::isfinite(value) || !fits) bad_argument(kOp, field, expected, concat(value));
}

// Beside the most likely token's, which is 1.
double weight_of(double logit, double highest, double temperature) {
  return exp_of_negative((logit - highest) / temperature);
}

// Calls take(depth) with depths below the highest logit until it has found enough: first with small ones, as few tokens
// are likely and a vocabulary is large; at last with one that holds everything.
template <class Take>
void deepen(double first, const Take& take) {
  double depth = first;
  for (int i = 0; i < 5; ++i, depth *= 2) {
    if (take(depth)) return;
  }
  take(std::numeric_limits<double>::infinity());
}

double log_of_sum(std::span<const float> logits) {
  const double highest = logits[first_highest(logits)];
  return highest +
         std::log(sum_of(logits.size(), [&](std::size_t i) { return exp_of_negative(logits[i] - highest); }));
}

std::vector<TokenLogprob> most_likely_of(std::span<const float> logits, double log_sum, std::int64_t count) {
  const std::size_t kept = std::min(static_cast<std::size_t>(count), logits.size());
  std::vector<TokenLogprob> top;
  if (kept == 0) return top;
  const double highest = logits[first_highest(logits)];
  deepen(4, [&](double depth) {
    top.clear();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] >= highest - depth) top.push_back({static_cast<std::int32_t>(i), logits[i]});
    }
    return top.size() >= kept;
  });
  const auto end = top.begin() + static_cast<std::ptrdiff_t>(kept);
  std::partial_sort(top.begin(), end, top.end(), [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id;
  });
  top.erase(end, top.end());
  for (TokenLogprob& token : top) token.logprob -= log_sum;
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

// What a draw needs beside the sampler: a megabyte and more for a large vocabulary. Each thread that draws keeps one,
// so that texts, of which a server has hundreds, need not.
struct Sampler::Scratch {
  static Scratch& of_this_thread() {
    thread_local Scratch own;
    return own;
  }

  std::vector<double> logits;         // of the tokens that may be drawn, with the penalty
  std::vector<Candidate> candidates;  // that are left of them
};

void Sampler::penalise(std::span<const float> logits, Scratch& scratch) const {
  scratch.logits.assign(logits.begin(), logits.begin() + drawable_);
  if (options_.repetition_penalty == 1) return;
  for (const std::int32_t id : seen_ids_) {
    double& logit = scratch.logits[static_cast<std::size_t>(id)];
    logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
  }
}

double Sampler::weight(double logit) const { return weight_of(logit, highest_, options_.temperature); }

// The tokens whose logits are at least so high, by id.
void Sampler::gather(double lowest, Scratch& scratch) {
  scratch.candidates.clear();
  for (std::size_t i = 0; i < scratch.logits.size(); ++i) {
    if (scratch.logits[i] >= lowest)
      scratch.candidates.push_back({scratch.logits[i], static_cast<std::int32_t>(i)});
  }
}

void Sampler::keep_top_k(Scratch& scratch) const {
  const auto k = static_cast<std::size_t>(options_.top_k);
  deepen(4, [&](double depth) {
    gather(highest_ - depth, scratch);
    return scratch.candidates.size() >= k;
  });
  const auto end = scratch.candidates.begin() + static_cast<std::ptrdiff_t>(k);
  std::nth_element(scratch.candidates.begin(), end, scratch.candidates.end(), more_likely);
  scratch.candidates.erase(end, scratch.candidates.end());
}

// all: of every token; else of the candidates.
void Sampler::keep_top_p(bool all, Scratch& scratch) const {
  const auto of_candidates = [&](std::size_t i) { return weight(scratch.candidates[i].logit); };
  double wanted = 0;
  if (all) {
    wanted =
        options_.top_p * sum_of(scratch.logits.size(), [logits = scratch.logits.data(), highest = highest_,
                                                        temperature = options_.temperature](std::size_t i) {
          return weight_of(logits[i], highest, temperature);
        });
    deepen(4 * options_.temperature, [&](double depth) {
      gather(highest_ - depth, scratch);
      return sum_of(scratch.candidates.size(), of_candidates) > wanted * (1 + 1e-9);  // in any order
    });
  } else {
    wanted = options_.top_p * sum_of(scratch.candidates.size(), of_candidates);
  }
  // A heap gives up its most likely ones first; usually few are needed.
  const auto less_likely = [](const Candidate& a, const Candidate& b) { return more_likely(b, a); };
  std::make_heap(scratch.candidates.begin(), scratch.candidates.end(), less_likely);
  auto rest = scratch.candidates.end();
  for (double sum = 0; rest != scratch.candidates.begin() && sum < wanted;) {
    std::pop_heap(scratch.candidates.begin(), rest, less_likely);
    sum += weight((--rest)->logit);
  }
  scratch.candidates.erase(scratch.candidates.begin(), rest);
}

std::int32_t Sampler::draw(Scratch& scratch) const {
  const bool top_k = options_.top_k > 0 && options_.top_k < drawable_;
  if (!top_k && options_.top_p == 1 && options_.min_p == 0) return draw_of_all(scratch);
  if (top_k) keep_top_k(scratch);
  if (options_.top_p < 1) keep_top_p(!top_k, scratch);
  if (options_.min_p > 0) {
    // Somewhat deeper than the bound, whose logarithm is rounded.
    if (!top_k && options_.top_p == 1) {
      gather(highest_ + (std::log(options_.min_p) - 1e-6) * options_.temperature, scratch);
    }
    std::erase_if(scratch.candidates, [&](const Candidate& c) { return weight(c.logit) < options_.min_p; });
  }
  std::sort(scratch.candidates.begin(), scratch.candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0;
  for (Candidate& c : scratch.candidates) total += c.logit = weight(c.logit);
  const double target = philox_uniform(options_.seed, options_.stream, step_) * total;
  double sum = 0;
  std::int32_t drawn = 0;
  for (const Candidate& c : scratch.candidates) {
    if (c.logit == 0) continue;  // too unlikely for a number
    drawn = c.id;
    sum += c.logit;
    if (sum > target) break;
  }
  return drawn;
}

// Without filters: sums of blocks of tokens first, then the one block that the draw falls into.
std::int32_t Sampler::draw_of_all(Scratch& scratch) const {
  constexpr std::size_t kBlock = 512;
  const double highest = highest_, temperature = options_.temperature;
  for (double& logit : scratch.logits) logit = weight_of(logit, highest, temperature);
  const auto sum_from = [&](std::size_t begin) {
    return sum_of(std::min(kBlock, scratch.logits.size() - begin),
                  [&](std::size_t i) { return scratch.logits[begin + i]; });
  };
  double total = 0;
  for (std::size_t i = 0; i < scratch.logits.size(); i += kBlock) total += sum_from(i);
  const double target = philox_uniform(options_.seed, options_.stream, step_) * total;
  double sum = 0;
  std::size_t drawn = 0;
  for (std::size_t begin = 0; begin < scratch.logits.size(); begin += kBlock) {
    const double after = sum + sum_from(begin);
    const std::size_t end = std::min(begin + kBlock, scratch.logits.size());
    if (after > target || end == scratch.logits.size()) {
      for (std::size_t i = begin; i < end; ++i) {
        if (scratch.logits[i] == 0) continue;  // too unlikely for a number
        drawn = i;
        sum += scratch.logits[i];
        if (sum > target) return static_cast<std::int32_t>(drawn);
      }
    }
    sum = after;
  }
  return static_cast<std::int32_t>(drawn);
}

std::int32_t Sampler::next(std::span<const float> logits) {
  const bool greedy = options_.temperature == 0;
  if (greedy && options_.repetition_penalty == 1) {
    return static_cast<std::int32_t>(first_highest(logits.first(static_cast<std::size_t>(drawable_))));
  }
  Scratch& scratch = Scratch::of_this_thread();
  penalise(logits, scratch);
  const std::size_t most_likely = first_highest(std::span<const double>(scratch.logits));
  if (greedy) return static_cast<std::int32_t>(most_likely);
  highest_ = scratch.logits[most_likely];
  return draw(scratch);
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
