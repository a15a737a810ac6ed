// gsa_bench: how fast the attention stage is beside torch's dense attention. See --help and
// docs/benchmarks/README.md.
#include <cstdio>
#include <exception>

#include "options.h"
#include "progress.h"
#include "report.h"
#include "runner.h"

namespace gsa::bench {

namespace {

void run(const Options& options) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  Progress progress;
  const Machine machine = measure_machine(progress);
  std::vector<Result> results;
  write_json(options.json, machine, results);  // a path that cannot be written shows before the long part
  progress.say(heading(machine));

  Runner runner(progress);
  for (std::size_t i = 0; i < options.cases.size(); ++i) {
    const Case& what = options.cases[i];
    if (i == 0 || what.kind != options.cases[i - 1].kind) progress.say(table_head(what.kind));
    progress.start(what.name);
    results.push_back(runner.run(what));
    progress.say(table_row(results.back(), machine));
    write_json(options.json, machine, results);
  }
  progress.say("\n" + options.json);
}

}  // namespace

}  // namespace gsa::bench

int main(int argc, char** argv) {
  gsa::bench::Options options;
  int exit_code = 0;
  try {
    if (!gsa::bench::parse_options(argc, argv, options, exit_code)) return exit_code;
    if (options.list) {
      for (const gsa::bench::Case& what : options.cases) std::printf("%s\n", what.name.c_str());
      return 0;
    }
    gsa::bench::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gsa_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
