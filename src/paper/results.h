// What steps came to: a few named numbers each, taken from what their commands leave behind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "paper/plan.h"

namespace gsa::paper {

using Values = std::map<std::string, double>;
using Results = std::map<std::string, Values>;  // by the step's name

// metrics.jsonl of a training: loss (mean of the last tenth of the steps that have one), validation, steps, spikes,
// loss_spikes, watched (steps whose loss was looked at for spikes), seconds, tokens_per_second (median of the steps),
// and "loss at 120" for a curve.
Values training_values(std::string_view metrics);
// --json of gsa eval: parameters, on_gpu, perplexity, loss, and where measured first_token, even_share, largest,
// value_gate, output_gate (means over layers), kept, k_mean, kept_over_oracle, oracle_recall.
Values evaluation_values(const Json& json);
// ruler.json: "4096" for the mean at that length, "4096 tasks" for how many it is of, "4096 vt" for a task.
Values ruler_values(const Json& json);
// What gsa generate --json --stats prints: prefill and decode (tokens a second), prompt (tokens), cache (bytes a
// token).
Values speed_values(std::string_view printed);

// The curve in the values of a training, ascending: at most kMaxCurve points, each the mean of the steps since the one
// before it.
constexpr std::int64_t kMaxCurve = 200;
struct CurvePoint {
  std::int64_t step = 0;
  double loss = 0;
};
std::vector<CurvePoint> curve_of(const Values& values);

// From what a command left in the output folder. Of the data: text_rows (rows of training that are of the text) and
// text_rows_different; nothing where all is made by rule.
Values values_of(const Step& step, const std::filesystem::path& folder);

std::filesystem::path result_file(const Step& step, const std::filesystem::path& folder);
// Remembers the machine and the day too.
void write_result(const Step& step, const Values& values, const std::filesystem::path& folder);
// What the steps ran on, as they remember it: several machines where there were several. Empty where none is done.
std::string machines_in(const std::vector<Step>& plan, const std::filesystem::path& folder);
// The days on which they were done: "2026-11-16 to 2026-11-18". Empty where no result says it.
std::string dates_in(const std::vector<Step>& plan, const std::filesystem::path& folder);
// How many seeds have results in the folder: 1 .. n.
std::int64_t seeds_in(const std::filesystem::path& folder);
// Of the steps that have one.
Results read_results(const std::vector<Step>& plan, const std::filesystem::path& folder);

}  // namespace gsa::paper
