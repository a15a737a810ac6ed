#include "demo/run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "core/file.h"
#include "core/machine.h"
#include "core/number_text.h"
#include "data/stories.h"
#include "demo/material.h"
#include "demo/pace.h"
#include "eval/evaluate.h"
#include "eval/recall.h"
#include "infer/generate.h"
#include "model/cost.h"
#include "nn/torch.h"
#include "torch/threads.h"
#include "train/trainer.h"

namespace gsa::demo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatchTokens = 1024;
constexpr double kLearningRate = 3e-3;
constexpr double kKlShare = 0.5;  // a step of 1,024 tokens has some 16 tiles of queries to draw from
constexpr std::int64_t kValidationStories = 48;
constexpr std::int64_t kTrialSteps = 4;
constexpr double kSlower = 1.1;  // steps in the middle of a run, over the quickest of a trial
constexpr int kShownQuestions = 4;
constexpr std::int64_t kSampleTokens = 60;
constexpr double kSampleTemperature = 0.8;
constexpr const char* kPrompts[] = {"Story: Ada drank tea and fed goats. Later Ada", "Story: Otto"};
constexpr const char* kMark = "demo.json";  // what a folder of ours has in it

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string time_text(double seconds) {
  return seconds < 90 ? concat(std::lround(seconds), " seconds")
                      : concat(std::lround(seconds / 60), " minutes");
}

void prepare_folder(const std::filesystem::path& folder, const Events& events) try {
  namespace fs = std::filesystem;
  if (fs::exists(folder)) {
    if (!fs::is_directory(folder)) bad_file(folder.string(), "a folder for the demo", "a file");
    if (!fs::is_empty(folder)) {
      if (!fs::exists(folder / kMark)) {
        bad_file(folder.string(), "an empty folder, or that of an earlier demo (--output names another)",
                 "something else in it");
      }
      events.say(concat("replacing the demo in ", folder.string()));
      for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().filename() != kMark) fs::remove_all(entry.path());
      }
    }
  }
  fs::create_directories(folder);
  write_file(folder / kMark, "{\"made_by\": \"gsa demo\"}\n");
} catch (const std::filesystem::filesystem_error& error) {
  bad_file(folder.string(), "a folder that can be made and written (--output names another)",
           error.code().message());
}

class Demo {
 public:
  Demo(const Options& options, const Events& events) : options_(options), events_(events) {}

  Results run() {
    if (const std::string note = binding::use_threads(options_.threads); !note.empty()) {
      events_.say("note: " + note);
    }
    prepare_folder(options_.output, events_);
    progress("making up stories", "a tokenizer for them");
    tokenizer_ = make_tokenizer(options_.seed);
    write_stories(validation(), *tokenizer_, options_.seed + 1, kValidationStories);
    progress("making up stories", "how fast is this machine?");
    measure_pace();
    phases_ =
        phases_of(options_.minutes ? steps_within(seconds_for_steps() / kSlower, pace_) : options_.steps);
    events_.say(concat(phases_.steps(), " steps for each model, about ", time_text(expected_seconds()),
                       " on this machine as it is now"));
    write_stories(train_data(), *tokenizer_, options_.seed + 2, phases_.steps() * kBatchTokens / kLength);
    needles_ = make_needles(*tokenizer_, options_.seed + 3, options_.questions);
    describe();
    train("standard", results_.standard);
    train("gsa", results_.gsa);
    results_.seconds = seconds_since(start_);
    write_file(options_.output / "results.json", results_.to_json());
    return std::move(results_);
  }

 private:
  std::filesystem::path validation() const { return options_.output / "data" / "validation"; }
  std::filesystem::path train_data() const { return options_.output / "data" / "train"; }

  train::TrainConfig train_config(const std::string& system, const Phases& phases,
                                  const std::filesystem::path& data,
                                  const std::filesystem::path& folder) const {
    train::TrainConfig config;
    config.model.preset = "tiny";
    config.model.system = system;
    config.data.train = data.string();
    config.data.length = kLength;
    config.data.seed = static_cast<std::int64_t>(options_.seed);
    const bool sparse = system == "gsa";
    config.phases.dense = sparse ? phases.dense : phases.steps();
    config.phases.warmup = sparse ? phases.warmup : 0;
    config.phases.sparse = sparse ? phases.sparse : 0;
    config.batch.tokens = kBatchTokens;
    config.batch.rows = kBatchTokens / kLength;
    config.kl_share = kKlShare;
    config.optimizer.lr = kLearningRate;
    config.optimizer.schedule = "wsd";
    config.optimizer.decay_steps = phases.steps() / 5;
    config.output.folder = folder.string();
    config.output.save_every = 0;
    config.output.tensorboard = false;
    config.device = "cpu";
    config.seed = static_cast<std::int64_t>(options_.seed);
    config.threads = options_.threads;
    return config;
  }

  double& pace_of(bool gsa, nn::Phase phase) {
    if (!gsa) return pace_.standard;
    return phase == nn::Phase::dense ? pace_.dense : phase == nn::Phase::warmup ? pace_.warmup : pace_.sparse;
  }

  // A few steps of each kind, thrown away.
  void measure_pace() {
    const std::filesystem::path folder = options_.output / "pace";
    for (const std::string system : {"standard", "gsa"}) {
      const bool gsa = system == "gsa";
      const Phases phases{kTrialSteps, gsa ? kTrialSteps : 0, gsa ? kTrialSteps : 0};
      train::TrainEvents watch;
      watch.step = [&](const train::StepReport& report) {
        Pace::take(pace_of(gsa, report.phase), report.seconds);
      };
      train::Trainer trainer(train_config(system, phases, validation(), folder / system), false, watch);
      if (!trainer.run(events_.stop)) throw Stopped();
    }
    std::filesystem::remove_all(folder);
  }

  // Of one model. Forward passes cost about a third of training steps; statistics of a selection pass twice.
  double evaluation_seconds() const {
    const auto stories = static_cast<double>(kValidationStories * 2 + 8 * options_.questions);
    return stories * kLength / kBatchTokens * 0.5 * pace_.sparse + 3;
  }

  double seconds_for_steps() const {
    return 60 * *options_.minutes - seconds_since(start_) - 2 * evaluation_seconds();
  }

  // Until the end, of what is left.
  double expected_seconds() const {
    return pace_.seconds(phases_, standard_done_, gsa_done_) * kSlower +
           evaluation_seconds() * (2 - evaluated_);
  }

  void describe() {
    Settings& s = results_.settings;
    s.seed = options_.seed;
    s.threads = torch::get_num_threads();
    s.processor = processor_name();
    s.vocabulary = tokenizer_->vocab_size();
    s.train_tokens = phases_.steps() * kBatchTokens;
    s.validation_tokens = kValidationStories * kLength;
    s.length = kLength;
    s.batch_tokens = kBatchTokens;
    s.dense = phases_.dense;
    s.warmup = phases_.warmup;
    s.sparse = phases_.sparse;
    s.learning_rate = kLearningRate;
    s.mean_visible = static_cast<double>(kLength + 1) / 2;
    results_.chance = 1.0 / data::Stories::kChoices;
    // One each of some depths.
    for (int i = 0; i < kShownQuestions; ++i) {
      const std::size_t depth = static_cast<std::size_t>(i) * needles_.depths.size() / kShownQuestions;
      shown_.push_back(depth * static_cast<std::size_t>(needles_.each));
      results_.questions.push_back(needles_.asked[shown_.back()]);
    }
  }

  void train(const std::string& system, ModelResults& out) {
    train::TrainConfig config = train_config(system, phases_, train_data(), options_.output / system);
    config.data.validation = validation().string();
    config.output.validate_every = std::max<std::int64_t>(1, phases_.steps() / 10);
    config.output.validation_tokens = 8 * kLength;
    train::TrainEvents watch;
    watch.step = [&](const train::StepReport& report) { take(report, out); };
    watch.validation = [&](std::int64_t step, double loss) {
      out.validation.step.push_back(static_cast<double>(step));
      out.validation.value.push_back(loss);
    };
    const auto begin = Clock::now();
    train::Trainer trainer(config, false, watch);
    out.system = system;
    out.folder = (options_.output / system / "latest").string();
    describe_model(trainer.model()->config(), out);
    write_file(options_.output / system / "config.toml", train::to_toml(trainer.config()));
    if (!trainer.run(events_.stop)) throw Stopped();
    out.seconds = seconds_since(begin);
    out.tokens_per_second = static_cast<double>(results_.settings.train_tokens) / out.seconds;
    measure(trainer, out);
    events_.say(concat(system, ": validation loss ", fixed(out.validation_loss, 3), ", recall ",
                       std::lround(100 * out.mean_recall()), " %"));
  }

  void describe_model(const nn::ModelConfig& model, ModelResults& out) {
    out.parameters = nn::count_model(model).total();
    Settings& s = results_.settings;
    s.layers = model.layers;
    s.d_model = model.attention.d_model;
    s.heads = model.attention.heads;
    s.kv_heads = model.attention.kv_heads;
    s.k_base = model.attention.budget.base;
    s.k_min = model.attention.budget.min;
    s.k_max = model.attention.budget.max;
  }

  void take(const train::StepReport& report, ModelResults& out) {
    const auto step = static_cast<double>(report.step);
    out.loss.step.push_back(step);
    out.loss.value.push_back(report.loss.value_or(std::numeric_limits<double>::quiet_NaN()));
    out.kl.resize(std::max(out.kl.size(), report.kl.size()));
    for (std::size_t i = 0; i < report.kl.size(); ++i) {
      out.kl[i].step.push_back(step);
      out.kl[i].value.push_back(report.kl[i]);
    }
    const bool gsa = out.system == "gsa";
    (gsa ? gsa_done_ : standard_done_) = report.step;
    Pace::follow(pace_of(gsa, report.phase), report.seconds);
    const double kl = std::accumulate(report.kl.begin(), report.kl.end(), 0.0) /
                      static_cast<double>(std::max<std::size_t>(1, report.kl.size()));
    progress(gsa ? concat("gsa, ", nn::name_of(report.phase)) : "standard",
             concat("step ", report.step, "/", phases_.steps(), "  ",
                    report.loss ? "loss " + fixed(*report.loss, 3) : "KL " + fixed(kl, 3)));
  }

  void measure(train::Trainer& trainer, ModelResults& out) {
    const nn::Model& model = trainer.model();
    const bool sparse = model->config().attention.sparse;
    const auto watch = [&](const char* what) {
      if (events_.stop()) throw Stopped();
      progress(out.system + ", " + what, "");
    };
    watch("measuring");
    const auto documents = eval::dataset_documents(validation());
    const eval::Report report =
        eval::evaluate(model, *documents,
                       {.sinks = true,
                        .selection = sparse,
                        .oracle = false,  // the report does not show it
                        .windows = {.length = kLength, .batch_tokens = 4 * kLength},
                        .progress = [&](std::int64_t, std::int64_t) { watch("measuring"); }});
    out.validation_loss = report.perplexity->loss();
    out.perplexity = report.perplexity->per_token();
    for (const eval::LayerSinks& layer : report.sinks->layers) {
      out.first_token.push_back(layer.first_token);
      if (layer.value_gate) out.value_gate.push_back(*layer.value_gate);
      if (layer.output_gate) out.output_gate.push_back(*layer.output_gate);
    }
    out.first_token_mean = report.sinks->first_token_mean();
    out.even_share = report.sinks->even_share;
    for (const eval::ResidualSize& size : report.sinks->residual)
      out.largest_activation.push_back(size.largest);
    if (report.selection) {
      for (const eval::LayerSelection& layer : report.selection->layers) {
        out.kept_mass.push_back(layer.kept_mass_mean());
        out.k_mean.push_back(layer.k_t.mean());
        out.k_counts.push_back(layer.k_t.counts());
      }
    }
    const std::vector<eval::Answer> answers = eval::ask(
        model, needles_.questions,
        {.batch_tokens = 4 * kLength, .progress = [&](std::int64_t) { watch("asking for needles"); }});
    out.recall = recall_by_depth(needles_, answers);
    for (const std::size_t i : shown_) {
      const std::vector<std::int32_t> said(answers[i].said.begin(), answers[i].said.end());
      out.replies.push_back({tokenizer_->decode(said), answers[i].probability, answers[i].right});
    }
    watch("writing");
    write_samples(model, out);
    evaluated_ += 1;
  }

  void write_samples(const nn::Model& model, ModelResults& out) {
    infer::Engine engine(model);
    std::vector<infer::Sequence> sequences;
    std::vector<std::vector<std::int64_t>> tokens;
    for (const char* prompt : kPrompts) {
      sequences.push_back(engine.start());
      tokens.push_back(infer::first_tokens(*tokenizer_, prompt));
    }
    std::vector<infer::Prompt> prompts;
    for (std::size_t i = 0; i < tokens.size(); ++i) prompts.push_back({&sequences[i], tokens[i]});
    const infer::GenerateResult result =
        infer::generate(engine, *tokenizer_, prompts,
                        {.sampling = {.temperature = kSampleTemperature, .seed = options_.seed},
                         .max_tokens = kSampleTokens});
    for (const infer::GeneratedText& text : result.texts) {
      out.samples.push_back({kPrompts[text.prompt], text.text});
    }
  }

  void progress(const std::string& what, const std::string& detail) {
    const double done = seconds_since(start_);
    // Before the pace is known nothing can be said.
    const double total = phases_.steps() == 0 ? 0 : done + expected_seconds();
    events_.progress(
        {.what = what, .done = std::llround(10 * done), .total = std::llround(10 * total), .detail = detail});
  }

  const Options& options_;
  const Events& events_;
  Clock::time_point start_ = Clock::now();
  std::unique_ptr<data::Tokenizer> tokenizer_;
  Pace pace_;
  Phases phases_;
  std::int64_t standard_done_ = 0, gsa_done_ = 0;
  double evaluated_ = 0;
  Needles needles_;
  std::vector<std::size_t> shown_;
  Results results_;
};

}  // namespace

Results run(const Options& options, const Events& events) { return Demo(options, events).run(); }

}  // namespace gsa::demo
