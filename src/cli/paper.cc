// gsa paper: trains the paper's systems side by side and writes its tables with our figures.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/file.h"
#include "core/folder_lock.h"
#include "nn/device.h"
#include "paper/child.h"
#include "paper/material.h"
#include "paper/page.h"
#include "paper/run.h"
#include "torch/threads.h"

namespace gsa::cli {
namespace {

namespace fs = std::filesystem;

struct PaperOptions {
  std::string output = "gsa-paper", scale = "smoke", data, device = "auto", essays, squad, hotpotqa;
  std::int64_t seeds = 1, threads = 0, jobs = 0;
  std::vector<std::string> systems, tables;
};

constexpr const char* kPaperLesson = R"(
Trains standard, sparse-only, gated-only and gsa models side by side, on the same rows for as many tokens from the same
seeds; measures perplexity, RULER by length and why its scores differ, attention sinks, stability at higher learning
rates, throughput, and what gate positions, k, the indexer's form and the budget count for; and writes the paper's
tables in the paper's order, ours beside the paper's: index.html and README.md in the output folder. Each table has a
sentence that is worked out from the figures: it holds, it does not hold, or it cannot be told at this scale.

  smoke    minutes on two cores; shows that everything runs, and teaches the models next to nothing
  small    for one large GPU: about 12 minutes a seed for the main tables
  medium   for who has days

The output folder is all that a run is: what is done there is not done again. A run that was cut off anywhere (Ctrl-C,
kill -9, a power cut) goes on with the same command; more --seeds, --systems and --tables may be asked for later. The
main tables come first, seed by seed, each seed with the times of its models behind it; then what RULER's differences
come from, and the ablations. results/ has the figures of every step, logs/ what its command printed, runs/ the models.
Ctrl-C ends with status 75.

Text is made by rule unless --data names some: stories, code-like lines, and tasks of RULER's kind with other words and
keys than RULER's. Each row of training has the begin mark in front.

Examples
  gsa paper                                              everything, in small
  gsa paper --scale small --seeds 2 --tables main --output evidence
  gsa paper --scale small --seeds 2 --output evidence    the ablations, later
  gsa paper --scale small --tables ruler --output evidence    why RULER's scores differ, of one seed
  gsa paper --scale small --data kernel-source.txt --output on-code
)";

// ---- one step

// What was printed last, for messages.
std::string last_line_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string line, last;
  while (std::getline(stream, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

// The step that a training has come to, from the end of its metrics.
std::int64_t training_step(const fs::path& metrics) {
  std::ifstream file(metrics, std::ios::binary | std::ios::ate);
  if (!file) return 0;
  constexpr std::streamoff kTail = 16'384;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  constexpr std::string_view kKey = "\"step\":";
  const std::size_t place = text.rfind(kKey);
  return place == std::string::npos ? 0 : std::strtoll(text.c_str() + place + kKey.size(), nullptr, 10);
}

bool has_checkpoint(const fs::path& run) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", none)) {
    if (entry.path().filename().string().starts_with("step-")) return true;
  }
  return false;
}

void append_arguments(std::vector<std::string>& to, const std::vector<std::string>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

class PaperWork {
 public:
  // device: "cpu" or "cuda".
  PaperWork(const PaperOptions& options, const paper::Scale& scale, const paper::Source& source,
            std::string device, std::vector<paper::Step> plan)
      : o_(options),
        scale_(scale),
        source_(source),
        device_(std::move(device)),
        jobs_(static_cast<int>(options.jobs > 0    ? options.jobs
                               : device_ == "cuda" ? scale.jobs
                                                   : 1)),
        plan_(std::move(plan)),
        folder_(fs::absolute(options.output)) {
    paper::check_results(all_steps(), folder_);
    for (const paper::Step& step : plan_) {
      if (!paper::is_done(step, folder_)) total_ += step.cost;
    }
  }

  int run() {
    paper::RunOptions options{.perform = [&](const paper::Step& step) { return perform(step); }};
    options.jobs = jobs_;
    options.values = [&](const paper::Step& step, const fs::path& folder) {
      paper::Values values = values_of(step, folder);
      if (diverged_.contains(step.name)) values["diverged"] = 1;
      return values;
    };
    options.begin = [&](const paper::Step& step) { show(step, 0, ""); };
    options.end = [&](const paper::Step& step) {
      ended(step);
      write_pages();
    };
    paper::RunReport report;
    try {
      report = paper::run_plan(plan_, folder_, options);
    } catch (...) {
      bar_.reset();
      throw;
    }
    bar_.reset();
    write_pages();
    if (report.ended == paper::Ended::stopped) {
      std::cout << concat("interrupted with ", report.before + report.now, " of ", plan_.size(),
                          " steps done; the same command goes on\n");
      return kInterrupted;
    }
    print(report);
    return 0;
  }

 private:
  // Called by every step that is running, each on its thread.
  void show(const paper::Step& step, double share, const std::string& detail) {
    constexpr double kParts = 1e6;
    const std::lock_guard lock(showing_);
    running_[step.name] = share * step.cost;
    double done = done_;
    for (const auto& [name, cost] : running_) done += cost;
    std::string what = running_.begin()->first;
    if (running_.size() > 1) {
      what += concat(" and ", running_.size() - 1, " more");
    } else if (!detail.empty()) {
      what += "  " + detail;
    }
    if (!bar_) bar_.emplace("gsa paper", static_cast<std::int64_t>(kParts));
    bar_->update(static_cast<std::int64_t>(kParts * done / std::max(total_, 1.0)), what);
  }

  void ended(const paper::Step& step) {
    const std::lock_guard lock(showing_);
    done_ += step.cost;
  }

  bool perform(const paper::Step& step) {
    if (interrupted()) return false;
    const bool done = step.kind == paper::Kind::data ? make_data(step) : run_command(step);
    const std::lock_guard lock(showing_);
    running_.erase(step.name);
    return done;
  }

  bool make_data(const paper::Step& step) {
    const ThreadParallel parallel(static_cast<int>(threads()));
    paper::MaterialEvents events;
    events.stop = interrupted;
    events.progress = [&](double share, const std::string& what) {
      show(step, share, concat(what, " ", percent(share)));
    };
    return paper::make_material(folder_, scale_, source_, parallel, events);
  }

  std::int64_t threads() const {
    return o_.threads > 0 ? o_.threads : std::max(1u, std::thread::hardware_concurrency());
  }

  bool run_command(const paper::Step& step) {
    const fs::path log = folder_ / "logs" / (step.name + ".log"), output = folder_ / step.output;
    paper::ChildOptions child;
    child.program = fs::read_symlink("/proc/self/exe");
    child.arguments = step.arguments;
    child.folder = folder_;
    child.log = log;
    child.stop = interrupted;
    if (step.kind == paper::Kind::training) {
      append_arguments(child.arguments, {"--set", "device=" + device_});
      if (o_.threads > 0) append_arguments(child.arguments, {"--set", concat("threads=", o_.threads)});
      if (has_checkpoint(output)) child.arguments.push_back("--resume");
      child.append = true;
      child.watch = [&] {
        const std::int64_t at = training_step(output / "metrics.jsonl");
        show(step, static_cast<double>(at) / static_cast<double>(step.steps),
             concat("step ", at, "/", step.steps));
      };
    } else {
      append_arguments(child.arguments, {"--device", device_});
      const std::int64_t share =
          step.kind == paper::Kind::speed ? threads() : std::max<std::int64_t>(1, threads() / jobs_);
      if (o_.threads > 0 || jobs_ > 1) append_arguments(child.arguments, {"--threads", concat(share)});
      fs::create_directories(output.parent_path());
      child.watch = [&] { show(step, 0, ""); };
    }
    const int status = paper::run_child(child);
    if (status == 0) return true;
    if (status == kInterrupted) return false;
    if (interrupted()) return false;
    const std::string last = last_line_of(log);
    if (status == 1 && step.may_diverge && last.find("is not finite") != std::string::npos) {
      diverged_.insert(step.name);  // a training, so no other step runs
      return true;
    }
    throw Error(concat("step '", step.name, "': expected its command to succeed, got status ", status, ": ",
                       last, " (all that it printed: ", log.string(),
                       "); the same command goes on from there"));
  }

  // Only what has changed: a second run leaves everything as it is.
  static void write_changed(const fs::path& path, const std::string& text) {
    std::error_code none;
    if (fs::exists(path, none) && read_file(path, std::int64_t(1) << 30) == text) return;
    fs::create_directories(path.parent_path());
    AtomicFile file(path);
    file.write(text);
    file.commit();
  }

  std::int64_t seeds() const { return std::max(o_.seeds, paper::seeds_in(folder_)); }
  // Of all that the folder has, also what this call was not asked for.
  std::vector<paper::Step> all_steps() const { return paper::make_plan({.scale = scale_, .seeds = seeds()}); }

  void write_pages() {
    const std::vector<paper::Step> all = all_steps();
    const paper::Results results = paper::read_results(all, folder_);
    paper::PageOptions page{.tables = {.scale = scale_, .seeds = seeds()},
                            .data = source_.in_words() + paper::text_repeated(results),
                            .options = source_.options(),
                            .machine = machines_in(all, folder_),
                            .dates = dates_in(all, folder_)};
    for (int text = 0; text < 2; ++text) page.tables.texts[text] = source_.text_name(text);
    page.done = results.size();
    page.steps = all.size();
    tables_ = make_tables(page.tables, results);
    write_changed(folder_ / "index.html", paper::html_page(page, tables_));
    write_changed(folder_ / "README.md", paper::markdown_page(page, tables_));
    for (const auto& [name, svg] : paper::chart_files(tables_)) write_changed(folder_ / name, svg);
  }

  void print(const paper::RunReport& report) const {
    if (report.now == 0) {
      std::cout << concat("nothing to do: all ", plan_.size(), " steps had been done\n\n");
    } else {
      std::cout << concat(report.now, " steps done",
                          report.before > 0 ? concat(", ", report.before, " had been before") : "", "\n\n");
    }
    for (const paper::Table& table : tables_) {
      std::cout << table.title << "\n  " << table.verdict.sentence << "\n";
      for (const auto& goal : table.goals)
        std::cout << "  " << goal.name << ": " << goal.verdict.sentence << "\n";
    }
    std::cout << "\npage     " << (folder_ / "index.html").lexically_normal().string() << "\n";
  }

  const PaperOptions& o_;
  const paper::Scale& scale_;
  const paper::Source& source_;
  std::string device_;
  int jobs_;
  std::vector<paper::Step> plan_;
  fs::path folder_;
  std::mutex showing_;  // holds for what stands up to the bar
  double total_ = 0, done_ = 0;
  std::map<std::string, double> running_;  // cost of what is done of a step
  std::optional<Progress> bar_;
  std::set<std::string> diverged_;
  std::vector<paper::Table> tables_;
};

// Pages of a folder whose steps are done are written without the GPU that made it.
std::string device_of(const PaperOptions& options, const std::vector<paper::Step>& plan) {
  check_choice("--device", options.device, {"auto", "cpu", "cuda"});
  const bool done = std::ranges::all_of(
      plan, [&](const paper::Step& step) { return paper::is_done(step, options.output); });
  if (done && options.device != "auto") return options.device;
  if (done) return paper::device_of_folder(options.output);
  return nn::device_by_name(options.device).is_cpu() ? "cpu" : "cuda";
}

int make_paper(const PaperOptions& options) {
  const paper::RulerFiles files{options.essays, options.squad, options.hotpotqa};
  const paper::Scale scale =
      checking_option("--scale", [&] { return with_files(paper::scale_by_name(options.scale), files); });
  std::vector<paper::Step> plan = checking_option("", [&] {
    return paper::make_plan(
        {.scale = scale, .seeds = options.seeds, .systems = options.systems, .groups = options.tables});
  });
  const std::string device = device_of(options, plan);
  watch_interrupts();
  std::signal(SIGPIPE, SIG_IGN);  // `| head` ends what is shown, not the work
  const paper::Source source(options.data, files);
  const FolderLock lock(options.output, "one that gsa paper works in");
  paper::claim_folder(options.output, {.scale = scale, .data = source.identity(), .device = device});
  return PaperWork(options, scale, source, device, std::move(plan)).run();
}

}  // namespace

void add_paper(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("paper", "the paper's tables, by models that are trained here");
  command->footer(kPaperLesson);
  auto options = std::make_shared<PaperOptions>();
  command
      ->add_option("-o,--output", options->output,
                   "the folder of everything; one that is there is gone on with")
      ->capture_default_str();
  command->add_option("--scale", options->scale, "smoke, small or medium")->capture_default_str();
  command->add_option("--seeds", options->seeds, "of main, speed and ruler; ablations have one")
      ->check(whole_in(1, 1000))
      ->capture_default_str();
  command
      ->add_option("--systems", options->systems,
                   "standard, sparse-only, gated-only, gsa; several between commas. Default: all")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option(
          "--tables", options->tables,
          "main (perplexity, RULER, sinks), speed, ruler (why RULER's scores differ), k, indexer, stability, "
          "gates; several between commas. Default: all, in this order")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--data", options->data,
                      "a text file or a dataset's folder to learn from, beside rows made by rule");
  command->add_option("--essays", options->essays,
                      "what RULER hides needles in, as gsa ruler takes it; default: text made by rule");
  command->add_option("--squad", options->squad, "SQuAD's dev-v2.0.json: RULER's qa_1 is asked too");
  command->add_option("--hotpotqa", options->hotpotqa,
                      "HotpotQA's hotpot_dev_distractor_v1.json: RULER's qa_2 is asked too");
  command->add_option("--device", options->device, "auto, cpu or cuda")->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads; default: one a core, which is the most")
      ->check(whole_in(1, binding::kMaxThreads));
  command
      ->add_option(
          "--jobs", options->jobs,
          "evaluations and RULER runs side by side, which share the threads; default: 1 on a CPU, on a GPU 4 "
          "(medium: 1). Trainings and times are taken alone")
      ->check(whole_in(1, 64));
  command->callback([&run, options] { run = [options] { return make_paper(*options); }; });
}

}  // namespace gsa::cli
