// Works through a plan in a folder. What has a result is done; everything else is done in order. Nothing else is
// remembered, so that a run may be cut off at any moment and goes on with the same call.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "paper/results.h"

namespace gsa::paper {

// Whether what later steps read of a step is there and whole: the data, a model that has learned to its last step.
bool has_output(const Step& step, const std::filesystem::path& folder);

struct RunOptions {
  // Does one step, leaving what values() reads; false: it was stopped, and goes on when it is called again. Throws
  // where it fails.
  std::function<bool(const Step& step)> perform;
  std::function<Values(const Step& step, const std::filesystem::path& folder)> values = values_of;
  std::function<bool(const Step& step, const std::filesystem::path& folder)> available = has_output;
  std::function<void(const Step& step)> begin = [](const Step&) {};
  std::function<void(const Step& step)> end = [](const Step&) {};
  // Evaluations and RULER that run side by side; trainings and times run alone. perform() is then called on several
  // threads, all others on one at a time.
  int jobs = 1;
};

enum class Ended { all_done, stopped };

struct RunReport {
  Ended ended = Ended::all_done;
  std::size_t before = 0, now = 0;  // steps that had been done, and that were done by this call
};

// A step with a result is done.
bool is_done(const Step& step, const std::filesystem::path& folder);

// Where a step needs a model or data that are gone (a folder that was put away without its weights), they are made
// again; the result that they had stays. What was begun with the model that is gone is begun anew.
RunReport run_plan(const std::vector<Step>& plan, const std::filesystem::path& folder,
                   const RunOptions& options);

// Throws gsa::Error for a result that another command than the plan's has given: figures of two plans (of two versions
// of this program) must not stand in one table.
void check_results(const std::vector<Step>& plan, const std::filesystem::path& folder);

// What all results of a folder depend on.
struct Identity {
  Scale scale;
  OrderedJson data;    // Source::identity()
  std::string device;  // "cpu" or "cuda"
};
// Makes the folder one of this identity, or throws gsa::Error where it holds something else. One of another identity
// that has come to nothing, no figure and no model, is taken over.
void claim_folder(const std::filesystem::path& folder, const Identity& identity);
// That of the folder's identity; empty where it has none.
std::string device_of_folder(const std::filesystem::path& folder);

}  // namespace gsa::paper
