// Tasks at lengths, asked of anything that goes on from a prompt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ruler/results.h"

namespace gsa::ruler {

struct RunOptions {
  std::vector<const Task*> tasks;
  std::vector<std::int64_t> lengths;
  std::int64_t samples = 100;
  std::uint64_t seed = 42;
  const Parallel& parallel = serial();  // makes the prompts that are asked; write_all_prompts() does without
};

// What is asked.
struct Subject {
  std::function<std::int64_t(std::int64_t length)> batch;  // samples of a length that it takes at once
  // A text for each sample, in their order; none at all where it was told to stop. progress: the share of the batch
  // that is done.
  std::function<std::vector<std::string>(const Task& task, std::span<const Sample> samples,
                                         const std::function<void(double share)>& progress)>
      answer;
};

// All may be empty.
struct RunEvents {
  // Tokens of samples that are done, and of all that this run has to do; what it is working on.
  std::function<void(double done, double total, const std::string& detail)> progress;
  std::function<void(const Cell& cell)> finished;  // a cell that this run has brought to its end
  std::function<bool()> stopped;                   // asked between samples
};

struct RunResult {
  std::vector<Cell> cells;    // tasks in their order, each at all lengths
  std::int64_t answered = 0;  // samples, in this run
  bool complete = true;       // false: stopped; what was answered is in the folder
};

// What the folder holds already is not asked again; every batch goes into it as soon as it is answered. open: makes
// the subject when the first prompt is there for it.
RunResult run(const RunOptions& options, const Material& material, const CountTokens& count,
              const std::function<Subject()>& open, const std::filesystem::path& folder,
              const RunEvents& events = {});

// The same prompts as files for others to answer. A cell whose file has them already is left alone; cells get no
// samples, and say why where there is no prompt. answered: prompts written.
RunResult write_all_prompts(const RunOptions& options, const Material& material, const CountTokens& count,
                            const std::filesystem::path& folder, const RunEvents& events = {});

}  // namespace gsa::ruler
