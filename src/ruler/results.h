// What a run has given so far, in a folder that it can go on from: a file of JSON lines for each task and length,
// and run.json, which says of which model, seed and material they are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "ruler/samples.h"

namespace gsa::ruler {

// A sample that has been answered.
struct Answered {
  std::int64_t index = 0, tokens = 0;
  std::vector<std::string> answers;
  std::string prediction;
  double score = 0;  // 0 .. 1
};

// A task at a length.
struct Cell {
  const Task* task = nullptr;
  std::int64_t length = 0;
  std::vector<Answered> samples;  // by index
  // Why it has no score; empty where it has one.
  std::string skipped;

  double score() const;        // 0 .. 100; NaN where it was skipped
  std::int64_t empty() const;  // predictions without any text
};

// "niah_single_1-4096": the name of a cell's file.
std::string name_of(const Task& task, std::int64_t length);

void write_text(const std::filesystem::path& path, const std::string& text);  // atomically

// Samples 0 .. count - 1 of a cell's file, or as many of the first ones as it has. No file: none.
std::vector<Answered> read_samples(const std::filesystem::path& folder, const Task& task, std::int64_t length,
                                   std::int64_t count);
void write_samples(const std::filesystem::path& folder, const Cell& cell);

// Adds to a run's cells what others have answered in its folder, each with all samples that it has, and brings them
// into the order of reports: by task, then by length.
void add_answered(std::vector<Cell>& cells, const std::filesystem::path& folder);

// Prompts for others to answer, and their answers: prompts/ and predictions/ beside run.json. How many prompts a cell's
// file has; it is written as a whole, or not at all where `make` stops.
std::int64_t count_prompts(const std::filesystem::path& folder, const Task& task, std::int64_t length);
bool write_prompts(const std::filesystem::path& folder, const Task& task, std::int64_t length,
                   std::int64_t count, const std::function<std::optional<Sample>(std::int64_t index)>& make);
// Every cell of prompts/, scored by predictions/. One whose predictions are not all there is
// skipped, and so is a task that has none.
std::vector<Cell> score_predictions(const std::filesystem::path& folder);

// Remembers what a run is of. A folder of another run is refused: each key that both have must have the same
// value; new ones are added. "model" is a name and may be another. option: the user's, for messages.
void check_run(const std::filesystem::path& folder, const OrderedJson& run, const char* option);
OrderedJson read_run(const std::filesystem::path& folder);

}  // namespace gsa::ruler
