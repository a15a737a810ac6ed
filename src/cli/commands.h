// The subcommands of the program. Each declares its options on the app; parsing one sets `run`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace gsa::cli {

// Does the work and returns the exit status. Throws gsa::Error for a mistake of the user's.
using Run = std::function<int()>;

void add_convert(CLI::App& app, Run& run);
void add_demo(CLI::App& app, Run& run);
void add_eval(CLI::App& app, Run& run);
void add_generate(CLI::App& app, Run& run);
void add_inspect(CLI::App& app, Run& run);
void add_inspect_text(CLI::App& app, Run& run);
void add_paper(CLI::App& app, Run& run);
void add_ruler(CLI::App& app, Run& run);
void add_serve(CLI::App& app, Run& run);
void add_tokenize(CLI::App& app, Run& run);
void add_train(CLI::App& app, Run& run);

}  // namespace gsa::cli
