// Samples of a task at a length: drawn by seed, made as long as the tokenizer lets them be.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "ruler/draft.h"

namespace gsa::ruler {

// Tokens of a text as the model reads it, the mark before it included.
using CountTokens = std::function<std::int64_t(const std::string& text)>;

struct Sample {
  std::int64_t index = 0;
  std::string prompt;
  std::vector<std::string> answers;
  std::int64_t tokens = 0;  // of the prompt; with Task::new_tokens at most the length
};

// Sample i is a function of task, length, seed, i, tokenizer and material alone: how many samples there are and
// which were made before changes nothing.
class SampleMaker {
 public:
  // The task's material must be there (missing_material() says nothing). Throws gsa::Error where `count` does.
  SampleMaker(const Task& task, std::int64_t length, std::uint64_t seed, const Material& material,
              CountTokens count);

  // Why there is no sample at this length; empty where there are.
  const std::string& refusal() const { return refusal_; }

  // How many samples there are, of as many as wanted: questions may run out.
  std::int64_t available(std::int64_t wanted);
  // index: below what is available. None where nothing that was drawn for it fits, which happens at lengths that are
  // about a task's shortest.
  std::optional<Sample> make(std::int64_t index);
  // first .. first + count - 1, on several threads; `count` of the constructor must allow that.
  std::vector<std::optional<Sample>> make(std::int64_t first, std::int64_t count, const Parallel& parallel);

 private:
  struct Fit {
    std::optional<Sample> sample;
    std::int64_t units = 0;   // that it took
    std::int64_t needed = 0;  // tokens of the shortest form, where that did not fit
  };
  Fit fit(const Draft& draft) const;
  Fit made(std::int64_t index) const;
  void note_needed(std::int64_t tokens);
  Draft draft(std::uint64_t number) const;
  const QuestionSet& question_set() const;

  const Task& task_;
  std::int64_t length_;
  Random random_;
  const Material& material_;
  CountTokens count_;
  std::string refusal_;
  std::int64_t example_lines_ = 0;      // of variable tracking
  std::int64_t first_guess_ = 0;        // units that the first sample took
  std::vector<std::size_t> questions_;  // those that fit, as far as they were looked at
  std::size_t looked_at_ = 0;
  std::int64_t needed_ = 0;  // tokens of the shortest draft that did not fit
};

// "needs --essays or --haystack" and the like; empty where everything is there.
std::string missing_material(const Task& task, const Material& material);

}  // namespace gsa::ruler
