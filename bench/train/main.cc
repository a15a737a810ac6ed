// gsa_bench_train: how fast a training step is, whole: forward, loss, backward, gradient norm, AdamW. See
// --help and docs/benchmarks/README.md.
#include <torch/torch.h>

#include <c10/core/CachingDeviceAllocator.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "../json_file.h"
#include "../machine.h"
#include "../progress.h"
#include "../timing.h"
#include "core/json.h"
#include "gsa/error.h"
#include "nn/cost.h"
#include "nn/model.h"
#include "train/adamw.h"
#include "train/trainer.h"

namespace gsa::bench {
namespace {

using at::Tensor;

struct Case {
  std::string preset, system;
  std::int64_t length = 0, sequences = 0;  // of a step
  bool deterministic = true;
  std::string name() const {
    return concat(preset, " ", system, " ", sequences, "x", length / 1024, "K",
                  deterministic ? "" : ", free order");
  }
};

std::vector<Case> cases_on(const torch::Device& device) {
  if (device.is_cpu()) {
    return {{"small", "standard", 1024, 4},
            {"small", "gsa", 1024, 4},
            {"small", "standard", 4096, 1},
            {"small", "gsa", 4096, 1}};
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
  cases.push_back({"paper-1.7b", "gsa", 32768, 1});
  return cases;
}

struct Options {
  std::string device = "auto", json = "build/bench-train.json";
  std::vector<std::string> parts;
  double peak_tflops = 0;
  int steps = 0;
  bool list = false;
};

// A model, its optimiser, and random tokens: a step of the trainer without its data, guards and logs.
class Steps {
 public:
  Steps(const Case& what, const torch::Device& device) : device_(device), sequences_(what.sequences) {
    torch::manual_seed(1);
    config_ = nn::ModelConfig::preset(what.preset);
    nn::apply(config_, nn::system_by_name(what.system));
    sparse_ = config_.attention.sparse;
    length_ = what.length;
    config_.max_positions = length_;
    deterministic_ = what.deterministic;
    model_ = nn::Model(config_);
    model_->to(device);
    model_->lay_out_weights();
    optimizer_.emplace(model_->parameter_groups(), train::AdamWOptions{}, /*own_masters=*/device.is_cuda());
    if (device.is_cuda()) {
      model_->to(torch::kBFloat16);
      model_->lay_out_weights();
    }
    model_->set_learning(nn::ParameterKind::indexer, sparse_);
    const std::int64_t count = length_ * sequences_;
    tokens_ = torch::randint(0, config_.vocab_size, {count + 1}, torch::kInt64).to(device);
    starts_ = torch::arange(0, count + 1, length_, torch::kInt64);
  }

  // Waits for the device at the end, as the trainer does when it looks at the norms.
  void operator()() {
    const std::int64_t count = tokens_.size(0) - 1;
    const nn::ModelLoss loss =
        model_->loss(tokens_.narrow(0, 0, count), tokens_.narrow(0, 1, count),
                     {.cu_seqlens = starts_, .want_kl = sparse_, .deterministic = deterministic_});
    Tensor objective = loss.sum / static_cast<double>(count);
    if (sparse_) objective = objective + nn::total(loss.kl);
    objective.backward();
    optimizer_->gather_gradients();
    const Tensor norms = optimizer_->gradient_norms().to(torch::kCPU);
    const auto factor = [&](int i) { return std::min(1.0, 1.0 / norms[i].item<double>()); };
    optimizer_->step(1e-4, {factor(0), sparse_ ? factor(1) : 1.0});
    optimizer_->zero_gradients();
    loss_ = loss.sum.item<double>() / static_cast<double>(count);
  }

  double operations() const {
    const nn::CostOptions options{
        .length = length_, .dtype = DType::bf16, .phase = sparse_ ? nn::Phase::sparse : nn::Phase::dense};
    return nn::estimate_cost(config_, options).training.total() * static_cast<double>(sequences_);
  }
  double tokens() const { return static_cast<double>(length_ * sequences_); }
  double loss() const { return loss_; }
  std::int64_t parameters() const { return nn::count_model(config_).total(); }

 private:
  torch::Device device_;
  nn::ModelConfig config_;
  nn::Model model_{nullptr};
  std::optional<train::AdamW> optimizer_;
  Tensor tokens_, starts_;
  std::int64_t length_ = 0, sequences_ = 0;
  bool sparse_ = false, deterministic_ = true;
  double loss_ = 0;
};

std::string row(const std::string& name, const std::string& tokens, const std::string& step,
                const std::string& tflops, const std::string& share, const std::string& memory,
                const std::string& runs) {
  char line[160];
  std::snprintf(line, sizeof line, "  %-36s %10s %10s %9s %7s %10s %6s", name.c_str(), tokens.c_str(),
                step.c_str(), tflops.c_str(), share.c_str(), memory.c_str(), runs.c_str());
  return line;
}

std::string decimal(double value, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

OrderedJson run_case(const Case& what, const torch::Device& device, const Options& options, double peak,
                     Progress& progress) {
  if (device.is_cuda()) {  // memory is counted by case
    c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device.type());
    allocator->emptyCache();
    allocator->resetPeakStats(device.index());
  }
  Steps step(what, device);
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
  const double memory = static_cast<double>(train::memory_in_use(device));
  progress.say(row(what.name(), decimal(rate, 0), decimal(seconds * 1e3, 1) + " ms",
                   decimal(speed * 1e-12, 2), peak > 0 ? decimal(speed / peak, 2) : "",
                   decimal(memory * 1e-9, 1) + " GB", std::to_string(samples.seconds.size())));
  return {{"case", what.name()},
          {"preset", what.preset},
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
          {"loss", step.loss()}};
}

void run(const Options& options) {
  const torch::Device device = train::device_by_name(options.device);
  std::vector<Case> cases = cases_on(device);
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
  if (device.is_cpu()) {
    const Machine machine = measure_machine(progress);
    if (peak == 0) peak = machine.gemm_fp32;
    json["cpu"] = machine.cpu;
    json["threads"] = machine.threads;
    progress.say(concat(machine.cpu, ", ", machine.threads, " threads, torch ", machine.torch_version,
                        "; at::mm in fp32 ", decimal(machine.gemm_fp32 * 1e-9, 0), " GFLOPS"));
  }
  json["peak_flops"] = peak;
  progress.say(concat("\nA training step, ", device.is_cuda() ? "bf16 with fp32 masters" : "fp32",
                      ": forward, loss (and the indexer's), backward, gradient norm, AdamW"));
  progress.say(row("model, sequences x length", "tokens/s", "step", "TFLOPS", "share", "memory", "runs"));
  for (const Case& what : cases) {
    progress.start(what.name());
    json["results"].push_back(run_case(what, device, options, peak, progress));
    write_json_file(options.json, json);
  }
}

}  // namespace
}  // namespace gsa::bench

int main(int argc, char** argv) {
  gsa::bench::Options options;
  CLI::App app("Speed of a whole training step.", "gsa_bench_train");
  app.footer(
      "\nThe data are random tokens, laid out as the trainer lays out rows of one document each. Times are "
      "medians of"
      "\nwhole steps after a warm-up; a step ends when the host has read the gradient norms and the loss. "
      "TFLOPS count"
      "\nwhat the model needs (docs/model.md), nothing twice; share is that over --peak-tflops, on a CPU "
      "over the speed"
      "\nof torch's matrix product in this run. Memory: on a GPU the most that tensors took so far (cases "
      "that follow"
      "\nlarger ones show the larger figure), on a CPU what the process holds.\n");
  app.add_option("--device", options.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
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
  CLI11_PARSE(app, argc, argv);
  try {
    gsa::bench::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gsa_bench_train: %s\n", error.what());
    return 1;
  }
  return 0;
}
