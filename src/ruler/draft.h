// Prompts of the tasks, in the words of the public definition. A draft is a sample before its length is
// settled: what is asked has been drawn, how much stands around it follows with build().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ruler/material.h"
#include "ruler/random.h"
#include "ruler/task.h"

namespace gsa::ruler {

struct Prompt {
  std::string text;  // with the beginning of the answer, which the model goes on from
  std::vector<std::string> answers;
};

struct Draft {
  std::int64_t min_units;  // of haystack: lines, words, entries or documents
  // The same prompt for the same number of units.
  std::function<Prompt(std::int64_t units)> build;
};

Draft needle_draft(const Task& task, const Essays* essays, const Random& random);

// example_lines: lines of noise in the worked example that stands before the question. layout: where its
// assignments stand, the same for all samples.
Draft variable_tracking_draft(std::int64_t example_lines, const Random& layout, const Random& random);
// The worked example alone, to measure it: its answers are apart from its text.
Prompt variable_tracking_example(std::int64_t lines, const Random& layout, const Random& random);
constexpr std::int64_t kMinNoiseLines = 5;  // one for each assignment

// Below 4,096 tokens words are repeated less often: the definition's own rule.
Draft common_words_draft(std::int64_t length, const Random& random);
Draft frequent_words_draft(std::int64_t length, const Random& random);
Draft question_draft(const QuestionSet& set, const Question& question, const Random& random);

}  // namespace gsa::ruler
