// How a benchmark with command-line options begins and ends.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "core/usage_error.h"

namespace gsa::bench {

// Reads the options into what `app` was given, calls run() and returns the program's status: 2 where the options are
// wrong, 1 for any other error, which stderr tells.
template <typename Run>
int run_program(CLI::App& app, int argc, char** argv, const Run& run) {
  const auto failed = [&](int status, const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return status;
  };
  try {
    app.parse(argc, argv);
    run();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const UsageError& error) {
    return failed(2, error);
  } catch (const std::exception& error) {
    return failed(1, error);
  }
  return 0;
}

}  // namespace gsa::bench
