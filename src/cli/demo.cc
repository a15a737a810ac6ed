// gsa demo: trains a tiny gsa model and its standard twin in minutes, and shows them side by side.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <string>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/file.h"
#include "core/json.h"
#include "demo/report.h"
#include "demo/run.h"
#include "gsa/error.h"
#include "torch/threads.h"

namespace gsa::cli {
namespace {

constexpr const char* kDemoLesson = R"(
Makes up stories (a small grammar; the same for the same --seed), trains a tiny standard model on them, then a tiny gsa
model through its phases dense, warm-up and sparse on the same text for the same steps, and measures both: validation
loss, attention on the first token, gates, how many keys are read and how much attention they hold, and whether a word
can be recalled that the text gave once, up to 500 tokens ago. What comes out is what was measured: the twin may win.

The output folder gets report.html (one page, no network needed), results.json, the stories (data/) and both models
(standard/latest, gsa/latest), which the other commands take. A second run in the same folder starts afresh. Ctrl-C ends
with status 75.

Examples
  gsa demo                               the same steps for everyone: some minutes on two idle cores
  gsa demo --minutes 15 --output long    as many steps as fit into the time, on this machine as it is now
  gsa demo --steps 600 --seed 7          a first look
  gsa generate gsa-demo/gsa/latest --prompt 'Story: Nora drank tea. Soon Nora drank'
)";

// How the user can call this very program from where they are.
std::string program_path() {
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) return "gsa";
  const std::string near = std::filesystem::proximate(self, failed).string();
  return failed || near.starts_with("../..") ? self.string() : near;
}

void print_demo(const demo::Results& r) {
  const demo::ModelResults &s = r.standard, &g = r.gsa;
  const demo::Settings& settings = r.settings;
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return percent(sum / static_cast<double>(values.size()));
  };
  Table table({"", "standard", "gsa"});
  table.line();
  table.row({"validation loss, nats a token", fixed(s.validation_loss, 3), fixed(g.validation_loss, 3)});
  table.row({"recall of a needle, all depths", percent(s.mean_recall()), percent(g.mean_recall())});
  table.row({concat("recall from beyond ", settings.k_base, " tokens"),
             percent(s.recall_beyond(static_cast<double>(settings.k_base))),
             percent(g.recall_beyond(static_cast<double>(settings.k_base)))});
  table.row({"  by guessing", percent(r.chance), percent(r.chance)});
  table.line();
  table.row({"keys that a query reads, mean", fixed(settings.mean_visible, 1), fixed(g.mean_k(), 1)});
  table.row({"attention mass kept", percent(1), percent(g.mean_kept())});
  table.row({"attention on the first token", percent(s.first_token_mean), percent(g.first_token_mean)});
  table.row({"value gate G2, mean", "", mean(g.value_gate)});
  table.row({"output gate G1, mean", "", mean(g.output_gate)});
  table.line();
  table.row({"parameters", grouped(s.parameters), grouped(g.parameters)});
  table.row({"training", duration(s.seconds), duration(g.seconds)});
  std::cout << '\n';
  table.print(std::cout);
  std::cout << '\n';
  for (const demo::ModelResults* model : {&s, &g}) {
    const demo::Sample& sample = model->samples.front();
    // Quoted as JSON: what a model writes may hold anything, control characters of terminals included.
    std::cout << "  " << model->system << " writes: "
              << OrderedJson(sample.prompt + sample.text)
                     .dump(-1, ' ', false, OrderedJson::error_handler_t::replace)
              << '\n';
  }
}

int run_demo(const demo::Options& options) {
  watch_interrupts();
  std::signal(SIGPIPE, SIG_IGN);  // `| head` ends what is shown, not the training
  constexpr std::int64_t kParts = 1000;
  Progress bar("gsa demo", kParts);
  demo::Events events;
  events.say = [&](const std::string& text) { bar.line(text); };
  events.stop = [] { return interrupted(); };
  events.progress = [&](const demo::Progress& p) {
    bar.update(p.total > 0 ? kParts * p.done / p.total : 0,
               p.detail.empty() ? p.what : concat(p.what, "  ", p.detail));
  };
  demo::Results results;
  try {
    results = demo::run(options, events);
  } catch (const demo::Stopped&) {
    bar.line(concat("interrupted; ", options.output.string(),
                    " holds what was done so far, and the next demo there starts afresh"));
    return kInterrupted;
  }
  const std::filesystem::path page = options.output / "report.html";
  write_file(page, demo::html_report(results, program_path()));
  bar.line(
      concat("done in ", duration(results.seconds), ", ", grouped(results.settings.steps()), " steps each"));
  print_demo(results);
  std::cout << "\n  the report, with plots: " << std::filesystem::absolute(page).lexically_normal().string()
            << "\n";
  return 0;
}

}  // namespace

void add_demo(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("demo", "train a tiny gsa model and its dense twin, and compare them");
  command->footer(kDemoLesson);
  auto options = std::make_shared<demo::Options>();
  auto* steps = command->add_option("--steps", options->steps, "of each model")
                    ->check(whole_in(6, std::uint64_t(1) << 32))
                    ->capture_default_str();
  command->add_option("--minutes", options->minutes, "for everything, instead of --steps: as many as fit")
      ->check(number_in(0.5, 1e4))
      ->excludes(steps);
  command->add_option("--questions", options->questions, "with a needle, at each of eight depths")
      ->check(CLI::Range(std::int64_t(1), std::int64_t(10'000)))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the stories and of both models")
      ->check(whole_in(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "of the CPU; default: one a core, which is the most")
      ->check(whole_in(1, binding::kMaxThreads));
  command->add_option("-o,--output", options->output, "the folder of the report and the models")
      ->capture_default_str();
  command->callback([&run, options] { run = [options] { return run_demo(*options); }; });
}

}  // namespace gsa::cli
