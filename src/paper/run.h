// Works through a plan in a folder. What has a result is done; everything else is done in order. Nothing else is
// remembered, so that a run may be cut off at any moment and goes on with the same call.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "paper/results.h"

namespace gsa::paper {

struct RunEvents {
  std::function<void(const Step& step)> begin = [](const Step&) {};
  std::function<void(const Step& step)> end = [](const Step&) {};
};

// Does one step, leaving what values_of() reads; false: it was stopped, and goes on when it is called again. Throws
// where it fails.
using Perform = std::function<bool(const Step& step)>;

enum class Ended { all_done, stopped };

struct RunReport {
  Ended ended = Ended::all_done;
  std::size_t before = 0, now = 0;  // steps that had been done, and that were done by this call
};

// values: of a step that was performed; a stub in tests.
RunReport run_plan(
    const std::vector<Step>& plan, const std::filesystem::path& folder, const Perform& perform,
    const RunEvents& events = {},
    const std::function<Values(const Step&, const std::filesystem::path&)>& values = values_of);

// Makes the folder one of this scale and data, or throws gsa::Error where it holds something else. data: what the
// results depend on besides the scale.
void claim_folder(const std::filesystem::path& folder, const Scale& scale, const OrderedJson& data);

}  // namespace gsa::paper
