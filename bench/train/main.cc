// gsa_bench_train: how fast a training step is, whole: forward, loss, backward, gradient norm, AdamW. See
// --help and docs/benchmarks/README.md.

#include <c10/core/CachingDeviceAllocator.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "../json_file.h"
#include "../machine.h"
#include "../program.h"
#include "../progress.h"
#include "../timing.h"
#include "core/json.h"
#include "core/number_text.h"
#include "core/usage_error.h"
#include "gsa/error.h"
#include "nn/device.h"
#include "nn/model_io.h"
#include "nn/torch.h"
#include "steps.h"
#include "train/trainer.h"

namespace gsa::bench {
namespace {

constexpr const char* kLesson = R"(
Without --model: presets with random weights on random tokens. With --model and --data: the folder's model as it is (rates
are 0, so that it stays so) on the text's first windows, beside a standard and a gated-only model of its sizes with random
weights, whose time does not depend on them. '/ standard' is tokens/s over the standard system's in this run.

union/k: how many keys 16 neighbouring queries select together over what one of them selects, mean over the layers and
range, by a forward pass after the timed steps (1,024 queries in the middle of the first sequence), and k, how many one of
them selects, mean over all queries and layers. Sparse attention reads these unions, so its time depends on both. Trained
models have a union/k of 2 to 6; random weights on independent tokens have more. Runs of equal tokens lower it
(--token-runs), from runs of 16 on little further: to 3.3 in tiny at 1K, to 2.3 in small at 4K, to 1.9 in paper-1.7b at 32K.
--overlap looks for a wanted one by forward passes before the timed steps: runs of 1, 2, 4, ... up to 4096, until union/k
is below it or falls no more, and takes the nearest; the column says which runs that are and what came out. An inverse
budget selects the more keys the more the variances of a model's queries differ: 1.3 to 1.4 times k_base in trained models,
1.8 times in paper-1.7b with random weights. --budget fixed is k_base. How scores are distributed in a trained model, random
weights do not show: claim no speed of sparse training from them alone.

Tokens are laid out as the trainer lays out rows of one document each. Times are medians of whole steps after a warm-up;
a step ends when the host has read the gradient norms and the loss. TFLOPS count what the model needs (docs/model.md),
nothing twice; share is that over --peak-tflops, on a CPU without it over the speed of torch's matrix product in this run.
Memory: on a GPU the most that tensors took in the case, on a CPU what the process holds.
)";

// Presets with random weights, on random tokens.
std::vector<Case> preset_shapes(const torch::Device& device) {
  if (device.is_cpu()) {
    return {{"tiny", "standard", 1024, 4}, {"tiny", "gsa", 1024, 4},       {"small", "standard", 1024, 4},
            {"small", "gsa", 1024, 4},     {"small", "standard", 4096, 1}, {"small", "gsa", 4096, 1}};
  }
  std::vector<Case> cases;
  for (const bool deterministic : {true, false}) {
    for (const std::string& system : nn::system_names())
      cases.push_back({"small", system, 4096, 16, deterministic});
  }
  for (const bool deterministic : {true, false}) {
    cases.push_back({"paper-1.7b", "standard", 4096, 4, deterministic});
    cases.push_back({"paper-1.7b", "standard", 32768, 1, deterministic});
  }
  for (const bool deterministic : {true, false})
    cases.push_back({"paper-1.7b", "gsa", 32768, 1, deterministic});
  return cases;
}

// Dense attention takes the same time on any tokens.
bool selects(const std::string& system) {
  nn::ModelConfig config;
  nn::apply(config, nn::system_by_name(system));
  return config.attention.sparse;
}

struct Options {
  std::string device = "auto", json = "build/bench-train.json";
  std::string model, data, phase, budget;
  std::int64_t length = 0, sequences = 0, token_runs = 1;
  double kl_share = 1.0 / 64, overlap = 0;
  std::vector<std::string> parts;
  double peak_tflops = 0;
  int steps = 0;
  bool list = false;
};

std::vector<Case> preset_cases(const torch::Device& device, const Options& options) {
  std::vector<Case> cases = preset_shapes(device);
  for (Case& what : cases) {
    what.kl_share = options.kl_share;
    if (!selects(what.system)) continue;
    what.token_runs = options.token_runs;
    what.overlap = options.overlap;
    if (!options.budget.empty()) what.budget = nn::budget_mode_by_name(options.budget);
  }
  return cases;
}

// The folder's model with its weights beside dense twins of its sizes, whose time does not depend on theirs.
std::vector<Case> trained_cases(const Options& options) {
  const nn::ModelConfig config = nn::load_config(options.model);
  if (!config.attention.sparse) bad_argument("gsa_bench_train", "--model", "a model with an indexer", "none");
  const nn::Phase phase = options.phase.empty()
                              ? nn::Phase::sparse
                              : checking_usage([&] { return nn::phase_by_name(options.phase); });
  std::filesystem::path folder = std::filesystem::absolute(options.model).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  // A run's folder says more than its link `latest`.
  if (folder.filename() == "latest") folder = folder.parent_path();
  const std::int64_t length = options.length > 0 ? options.length : config.trained_length();
  const std::int64_t sequences =
      options.sequences > 0 ? options.sequences : std::max<std::int64_t>(1, 65536 / length);
  const Case base{.model = folder.filename(), .system = "", .length = length, .sequences = sequences};
  std::vector<Case> cases;
  for (const bool deterministic : {true, false}) {
    for (const char* system : {"standard", "gated-only", "trained"}) {
      Case what = base;
      what.system = system;
      what.deterministic = deterministic;
      what.kl_share = options.kl_share;
      if (what.system == "trained") what.phase = phase;
      cases.push_back(what);
      if (what.phase != nn::Phase::sparse) continue;
      what.kl_support = nn::KlSupport::selected;
      cases.push_back(what);
    }
  }
  return cases;
}

std::string row(const std::string& name, const std::string& tokens, const std::string& step,
                const std::string& tflops, const std::string& share, const std::string& memory,
                const std::string& runs, const std::string& ratio, const std::string& overlap) {
  char line[200];
  std::snprintf(line, sizeof line, "  %-40s %10s %10s %9s %7s %10s %6s %10s", name.c_str(), tokens.c_str(),
                step.c_str(), tflops.c_str(), share.c_str(), memory.c_str(), runs.c_str(), ratio.c_str());
  return overlap.empty() ? line : concat(line, "  ", overlap);
}

// What a case's layers have, and the runs of tokens that --overlap found.
std::string overlap_cell(const Overlap& overlap, const Case& what, std::int64_t token_runs) {
  return concat(fixed(overlap.mean(), 2), " (", fixed(overlap.min(), 2), " to ", fixed(overlap.max(), 2),
                "), k ", fixed(overlap.mean_k(), 0),
                what.overlap > 0 ? concat(", runs of ", token_runs) : "");
}

// The tokens a second that the standard system has in this run, with the sizes, shape and accumulation of
// `what`; 0 where it has not run.
double standard_rate(const OrderedJson& results, const Case& what) {
  for (const OrderedJson& result : results) {
    if (result.at("system") == "standard" && result.at("preset") == what.model &&
        result.at("sequences") == what.sequences && result.at("length") == what.length &&
        result.at("deterministic") == what.deterministic) {
      return result.at("tokens_a_second").get<double>();
    }
  }
  return 0;
}

OrderedJson run_case(const Case& what, const torch::Device& device, const Options& options, double peak,
                     const OrderedJson& before, Progress& progress) {
  if (device.is_cuda()) {  // memory is counted by case; the allocator has to be there
    torch::empty({1}, device);
    c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device.type());
    allocator->emptyCache();
    allocator->resetPeakStats(device.index());
  }
  if (what.overlap > 0) progress.step("looking for the overlap");
  Steps step(what, device, {.model = options.model, .data = options.data});
  const int warmup = device.is_cuda() ? 3 : 1;
  progress.step("warm-up");
  for (int i = 0; i < warmup; ++i) step();
  progress.step("timing");
  Samples samples;
  const auto sample = [&] {
    const Stopwatch watch;
    step();
    samples.seconds.push_back(watch.seconds());
    return samples.seconds.back();
  };
  if (options.steps > 0) {
    for (int i = 0; i < options.steps; ++i) sample();
  } else {
    repeat(sample);
  }
  const double seconds = samples.median(), rate = step.tokens() / seconds,
               speed = step.operations() / seconds;
  const double memory = static_cast<double>(nn::memory_in_use(device));
  const double standard = what.system == "standard" ? rate : standard_rate(before, what);
  progress.step("overlap");  // after the memory: its own does not count
  const std::optional<Overlap> overlap = step.overlap();
  progress.say(row(what.name(), fixed(rate, 0), fixed(seconds * 1e3, 1) + " ms", fixed(speed * 1e-12, 2),
                   peak > 0 ? fixed(speed / peak, 2) : "", fixed(memory * 1e-9, 1) + " GB",
                   std::to_string(samples.seconds.size()), standard > 0 ? fixed(rate / standard, 2) : "",
                   overlap ? overlap_cell(*overlap, what, step.token_runs()) : ""));
  const nn::AttentionConfig& attention = step.config().attention;
  OrderedJson result = {{"case", what.name()},
                        {"preset", what.model},
                        {"system", what.system},
                        {"sequences", what.sequences},
                        {"length", what.length},
                        {"deterministic", what.deterministic},
                        {"parameters", step.parameters()},
                        {"tokens_a_step", step.tokens()},
                        {"tokens_a_second", rate},
                        {"median_s", seconds},
                        {"samples_s", samples.seconds},
                        {"operations", step.operations()},
                        {"memory_bytes", memory},
                        {"loss", step.loss()},
                        {"sizes",
                         {{"layers", step.config().layers},
                          {"width", attention.d_model},
                          {"heads", attention.heads},
                          {"kv_heads", attention.kv_heads},
                          {"head_size", attention.head_size},
                          {"intermediate", step.config().intermediate},
                          {"vocabulary", step.config().vocab_size},
                          {"tied", step.config().tie_embeddings}}}};
  if (what.phase) result["phase"] = nn::name_of(*what.phase);
  if (attention.sparse) {
    result["kl_support"] = nn::name_of(what.kl_support);
    result["kl_share"] = what.kl_share;
  }
  if (overlap) {
    result["union_over_k"] = {{"mean", overlap->mean()},
                              {"min", overlap->min()},
                              {"max", overlap->max()},
                              {"by_layer", overlap->by_layer}};
    result["mean_k"] = {{"mean", overlap->mean_k()}, {"by_layer", overlap->k_by_layer}};
    if (what.system != "trained") result["token_runs"] = step.token_runs();
    if (what.overlap > 0) {
      OrderedJson tried = OrderedJson::array();
      for (const auto& [runs, mean] : step.overlap_tried()) {
        tried.push_back({{"token_runs", runs}, {"union_over_k", mean}});
      }
      result["overlap"] = {{"wanted", what.overlap}, {"tried", tried}};
    }
  }
  if (standard > 0) result["over_standard"] = rate / standard;
  return result;
}

void run(const Options& options) {
  const torch::Device device = nn::device_by_name(options.device);
  const bool trained = !options.model.empty();
  std::vector<Case> cases = trained ? trained_cases(options) : preset_cases(device, options);
  std::erase_if(cases, [&](const Case& what) {
    if (options.parts.empty()) return false;
    for (const std::string& part : options.parts) {
      if (what.name().find(part) != std::string::npos) return false;
    }
    return true;
  });
  if (cases.empty()) throw Error("--case: expected a part of a name that --list prints, got none that fits");
  if (options.list) {
    for (const Case& what : cases) std::printf("%s\n", what.name().c_str());
    return;
  }
  write_json_file(options.json, OrderedJson::object());
  Progress progress;
  double peak = options.peak_tflops * 1e12;
  OrderedJson json = {{"device", device.str()}, {"results", OrderedJson::array()}};
  if (trained) json["trained"] = {{"model", options.model}, {"data", options.data}};
  if (device.is_cpu() && peak == 0) {
    const Machine machine = measure_machine(progress);
    peak = machine.gemm_fp32;
    json["cpu"] = machine.cpu;
    json["threads"] = machine.threads;
    progress.say(concat(machine.cpu, ", ", machine.threads, " threads, torch ", machine.torch_version,
                        "; at::mm in fp32 ", fixed(machine.gemm_fp32 * 1e-9, 0), " GFLOPS"));
  }
  json["peak_flops"] = peak;
  progress.say(concat("\nA training step, ", device.is_cuda() ? "bf16 with fp32 masters" : "fp32",
                      ": forward, loss (and the indexer's), backward, gradient norm, AdamW; ",
                      trained ? concat("text of ", options.data) : "random tokens"));
  progress.say(row("model, sequences x length", "tokens/s", "step", "TFLOPS", "share", "memory", "runs",
                   "/ standard", "union/k"));
  for (const Case& what : cases) {
    progress.start(what.name());
    json["results"].push_back(run_case(what, device, options, peak, json["results"], progress));
    write_json_file(options.json, json);
  }
}

}  // namespace
}  // namespace gsa::bench

int main(int argc, char** argv) {
  gsa::bench::Options options;
  CLI::App app("Speed of a whole training step.", "gsa_bench_train");
  app.footer(gsa::bench::kLesson);
  app.add_option("--device", options.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  auto* const model = app.add_option("--model", options.model, "A trained model's folder, with an indexer");
  auto* const data = app.add_option("--data", options.data, "A dataset of its tokenizer (gsa tokenize)");
  model->needs(data);
  data->needs(model);
  app.add_option("--phase", options.phase, "Of the trained model's step: dense, warmup or sparse (default)")
      ->needs(model);
  app.add_option("--length", options.length, "Tokens of a sequence (default: the trained length)")
      ->needs(model)
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--sequences", options.sequences, "Of a step (default: as many as make 65,536 tokens)")
      ->needs(model)
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--kl-share", options.kl_share,
                 "Share of the queries that the indexer's loss over all keys is taken of, 1/n; sparse steps "
                 "of a trained model are timed with the loss over the selected keys too")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  auto* const runs =
      app.add_option("--token-runs", options.token_runs,
                     "Presets: random tokens in runs of so many equal ones, so that neighbours "
                     "select much the same keys (default 1)")
          ->excludes(model)
          ->check(CLI::Range(std::int64_t{1}, gsa::bench::kMaxTokenRuns));
  app.add_option("--overlap", options.overlap,
                 "Presets: the runs whose union/k comes nearest to this (trained models: 2 to 6)")
      ->excludes(model)
      ->excludes(runs)
      ->check(CLI::Range(1.0, 16.0));
  app.add_option("--budget", options.budget, "Presets: inverse, proportional or fixed, not the preset's own")
      ->excludes(model)
      ->check(CLI::IsMember({"inverse", "proportional", "fixed"}));
  app.add_option("--case", options.parts, "Only cases whose name contains NAME (repeat for more)")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app.add_option("--steps", options.steps,
                 "Steps that are timed (default: 3 to 15, fewer where they take long)")
      ->check(CLI::Range(1, 100000));
  app.add_option("--peak-tflops", options.peak_tflops,
                 "What the device could do, for the share (H200, bf16: 989)")
      ->check(CLI::Range(0.0, 1e9));
  app.add_option("--json", options.json, "File for the results")->capture_default_str();
  app.add_flag("--list", options.list, "Print the names of the cases and end");
  return gsa::bench::run_program(app, argc, argv, [&] { gsa::bench::run(options); });
}
