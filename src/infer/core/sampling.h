// From logits to a token. No torch: spans of float.
//
//   Sampler sampler({.temperature = 0.8, .top_p = 0.95, .seed = 7}, tokenizer.vocab_size());
//   sampler.remember(prompt);
//   const SampledToken token = sampler.sample(logits);
//
// What happens to the logits, in this order (that of transformers; vLLM differs by applying min-p before
// top-k, llama.cpp by applying the temperature last):
//
//   1. repetition penalty   of every token that the prompt or the text so far has: a positive logit is divided
//                           by it, a negative one multiplied
//   2. temperature          logits are divided by it; 0 takes the highest logit, and the filters below have
//                           nothing to say
//   3. top-k                the k most likely tokens stay
//   4. top-p                of these, the fewest most likely ones whose probabilities add up to at least p
//   5. min-p                of these, those at least min_p times as likely as the most likely one
//   6. a draw               from what is left, renormalised
//
// Where logits are equal, the token of the lower id counts as the more likely, in every step. Probabilities
// are computed in float64.
//
// The draw of a step is a function of (seed, stream, step) alone: batch neighbours, threads and earlier draws
// change nothing. It goes to the first token, by id, at which the cumulated probability of the tokens left
// exceeds a uniform number.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace gsa::infer {

struct SamplingOptions {
  double temperature = 1;         // 0: greedy
  std::int64_t top_k = 0;         // 0: all
  double top_p = 1;               // in (0, 1]; 1: all
  double min_p = 0;               // in [0, 1]; 0: all
  double repetition_penalty = 1;  // above 0; 1: none
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // several samples of one prompt under one seed: a stream for each
  // Absent: no log-probabilities. n: that of the token drawn and those of the n most likely ones. They cost a
  // pass over the vocabulary.
  std::optional<std::int64_t> logprobs = std::nullopt;

  // Throws gsa::Error naming the field, what was expected and what came.
  void validate() const;
};

struct TokenLogprob {
  std::int32_t id = 0;
  double logprob = 0;
};

// Log-probabilities are the model's own: of the logits as they came, before penalty, temperature and filters.
struct SampledToken {
  std::int32_t id = 0;
  std::optional<double> logprob;  // absent unless wanted
  std::vector<TokenLogprob> top;  // most likely first
};

// A token that is given, not drawn, as logits see it: its log-probability and those of the `top` most likely ones.
SampledToken with_logprobs(std::int32_t id, std::span<const float> logits, std::int64_t top);

// The tokens of one sequence, step after step.
class Sampler {
 public:
  // drawable: tokens from this id on are never drawn, because the tokenizer has no text for them. They count
  // in log-probabilities.
  Sampler(const SamplingOptions& options, std::int64_t drawable);

  // Tokens that the repetition penalty shall know: the prompt's. Drawn ones are remembered by themselves.
  void remember(std::span<const std::int32_t> ids);

  // logits: at least `drawable` numbers, all finite.
  SampledToken sample(std::span<const float> logits);

  std::uint64_t step() const { return step_; }  // how many were drawn

 private:
  struct Candidate {
    double logit;
    std::int32_t id;
  };
  struct Scratch;

  static bool more_likely(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }

  void check(std::span<const float> logits) const;
  std::int32_t next(std::span<const float> logits);
  void penalise(std::span<const float> logits, Scratch& scratch) const;
  double weight(double logit) const;
  static void gather(double lowest, Scratch& scratch);
  void keep_top_k(Scratch& scratch) const;
  void keep_top_p(bool all, Scratch& scratch) const;
  std::int32_t draw(Scratch& scratch) const;
  std::int32_t draw_of_all(Scratch& scratch) const;

  SamplingOptions options_;
  std::int64_t drawable_;
  std::uint64_t step_ = 0;
  std::vector<bool> seen_;
  std::vector<std::int32_t> seen_ids_;  // each once
  double highest_ = 0;
};

}  // namespace gsa::infer
