// The command line.
#pragma once

#include <string>
#include <vector>

#include "cases.h"

namespace gsa::bench {

struct Options {
  std::vector<Case> cases;  // to run, in order
  bool list = false;        // print their names instead
  int threads = 0;          // 0: as many as torch takes by itself
  std::string json = "build/bench.json";
};

// Where the process should end at once (--help, a bad argument), says so on the right stream and returns
// false; exit_code then holds what to end with.
bool parse_options(int argc, const char* const* argv, Options& options, int& exit_code);

}  // namespace gsa::bench
