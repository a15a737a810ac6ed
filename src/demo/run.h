// The demo: a tiny gsa model through its phases and its standard twin, trained on the same made-up stories
// for the same steps, then measured side by side. No torch header.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "demo/results.h"

namespace gsa::demo {

struct Options {
  // Of each model: what teaches both of them to look back. A fixed number, so that everyone gets the same.
  std::int64_t steps = 1500;
  std::optional<double> minutes = std::nullopt;  // of everything, instead of steps: as many as fit
  std::int64_t questions = 24;                   // with a needle, at each depth
  std::uint64_t seed = 1;
  std::int64_t threads = 0;  // 0: torch's choice
  std::filesystem::path output = "gsa-demo";
};

struct Progress {
  std::string what;                  // "gsa, warmup"
  std::int64_t done = 0, total = 0;  // of the whole demo, in tenths of seconds
  std::string detail;                // "step 120/600, loss 1.234"
};

struct Events {
  std::function<void(const std::string& line)> say = [](const std::string&) {};
  std::function<void(const Progress&)> progress = [](const Progress&) {};
  std::function<bool()> stop = [] { return false; };
};

// Thrown after events.stop said so.
class Stopped : public std::exception {
 public:
  const char* what() const noexcept override { return "stopped"; }
};

// Writes data/, standard/, gsa/ and results.json into options.output, which is made, or emptied first where
// an earlier demo filled it. A folder that holds anything else is refused.
Results run(const Options& options, const Events& events);

}  // namespace gsa::demo
