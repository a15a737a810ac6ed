#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/philox.h"
#include "core/usage_error.h"
#include "model/cost.h"
#include "model/newest_model.h"
#include "nn/device.h"
#include "nn/evaluation_mode.h"
#include "nn/model_io.h"
#include "torch/device_memory.h"
#include "torch/threads.h"
#include "train/indexer_start.h"
#include "train/memory.h"
#include "train/model_sizes.h"
#include "train/sample.h"
#include "train/trainer_state.h"

namespace gsa::train {
namespace {

TrainConfig resolved(TrainConfig config) {
  config.resolve();
  return config;
}

std::vector<LayerStats> layer_stats(const std::vector<nn::AttentionStats>& stats) {
  std::vector<LayerStats> layers;
  for (const nn::AttentionStats& s : stats) {
    layers.push_back({s.k_mean, s.kept_mass, s.value_gate_mean, s.output_gate_mean});
  }
  return layers;
}

Schedule schedule_of(const TrainConfig& config) {
  return {.shape = schedule_shape_by_name(config.optimizer.schedule),
          .steps = config.steps(),
          .warmup_steps = config.optimizer.warmup_steps,
          .decay_steps = config.optimizer.decay_steps,
          .min_ratio = config.optimizer.min_lr_ratio};
}

AdamWOptions adamw_options(const TrainConfig& config) {
  return {.beta1 = config.optimizer.beta1,
          .beta2 = config.optimizer.beta2,
          .eps = config.optimizer.eps,
          .weight_decay = config.optimizer.weight_decay,
          .indexer_lr_multiplier = config.optimizer.indexer_lr_multiplier,
          .gate_lr_multiplier = config.optimizer.gate_lr_multiplier};
}

void check_room(const TrainConfig& config, const nn::ModelConfig& model, const torch::Device& device) {
  if (const auto room = binding::device_memory_room(device)) check_memory(config, model, *room);
}

double clip_factor(double norm, double bound) { return bound > 0 && norm > bound ? bound / norm : 1; }

}  // namespace

Trainer::Trainer(const TrainConfig& config, bool resume, TrainEvents events)
    : config_(resolved(config)),
      events_(std::move(events)),
      device_(nn::device_by_name(config_.device)),
      data_(config_.data.train),
      tokenizer_(data::load_tokenizer(config_.data.train)),
      packer_(data_, config_.data.length, static_cast<std::uint64_t>(config_.data.seed)),
      schedule_(schedule_of(config_)),
      guards_(kWatched, SpikeGuard(config_.guard.window, config_.guard.sigmas)),
      checkpoints_(config_.output.folder, config_.output.keep_last) {
  // Settled, so that a run that is resumed compares what it was trained in, not how that was asked for.
  config_.precision = nn::precision_on(config_.precision, device_);
  if (device_.is_cuda() && config_.precision == "fp32") {
    throw UsageError(
        "option 'precision': expected bf16 on a GPU, whose operators take 16-bit types, got fp32 (or set "
        "device=cpu)");
  }
  take_note(binding::use_threads(config_.threads));
  if (tokenizer_->fingerprint() != data_.tokenizer_fingerprint()) {
    bad_file(config_.data.train, "the tokenizer that the dataset was made with", "another one in the folder");
  }
  if (!config_.data.validation.empty()) {
    validation_.emplace(config_.data.validation);
    if (validation_->tokenizer_fingerprint() != data_.tokenizer_fingerprint()) {
      bad_file(config_.data.validation, "a dataset of the training data's tokenizer",
               "one of another tokenizer (gsa tokenize --tokenizer takes the training data's folder)");
    }
  }
  if (!resume && !checkpoints_.steps().empty()) {
    throw UsageError(concat("option 'output.folder': expected a folder without checkpoints, got ",
                            checkpoints_.folder(checkpoints_.steps().back()).string(),
                            " in it (--resume goes on from there)"));
  }
  torch::manual_seed(static_cast<std::uint64_t>(config_.seed));
  if (!resume) {
    build_model(nn::newest_model(config_.model.from), false);
    take_note(length_note(config_, model_->config().attention, device_.is_cuda()));
    take_note(sample_note(config_));
    return;
  }
  const auto newest = checkpoints_.newest();
  if (!newest) {
    throw UsageError(concat("--resume: expected a checkpoint in '", config_.output.folder, "', got none"));
  }
  build_model(checkpoints_.folder(*newest), true);
  restore(*newest);
  checkpoints_.link_latest(*newest);  // it may point to a damaged one that has been removed
}

void Trainer::build_model(const std::filesystem::path& from, bool resume) {
  const std::int64_t vocabulary = tokenizer_->vocab_size();
  std::optional<nn::ModelConfig> stored;  // of a folder that is not this run's own
  if (from.empty()) {
    nn::ModelConfig config = config_.model_config(vocabulary, std::nullopt);
    config.bos_id = tokenizer_->bos();
    config.eos_ids = {tokenizer_->eos()};
    check_room(config_, config, device_);
    model_ = nn::Model(config);
    choose_indexer_start(std::nullopt);
  } else {
    nn::LoadOptions options{.config = std::nullopt,
                            .missing = nn::MissingParts::refuse,
                            .dtype = DType::f32,
                            .device = torch::kCPU};
    if (!resume) {  // a checkpoint is already what the options made of the folder
      if (!config_.model.ignore_tokenizer) {
        data::check_same_tokenizer(from, config_.data.train, data_.tokenizer_fingerprint(),
                                   "model.ignore_tokenizer=true");
      }
      stored = nn::load_config(from);
      options.config = config_.model_config(vocabulary, stored);
      options.missing = nn::MissingParts::initialise_and_fold;
    }
    check_room(config_, options.config ? *options.config : nn::load_config(from), device_);
    nn::LoadedModel loaded = nn::load_model(from, options);
    model_ = loaded.model;
    initialised_ = std::move(loaded.initialised);
    if (stored) choose_indexer_start(stored);
  }
  model_->to(device_);
  model_->lay_out_weights();
  // Masters are made from the fp32 weights, before these are rounded.
  const bool half = config_.precision == "bf16";
  optimizer_ = std::make_unique<AdamW>(model_->parameter_groups(), adamw_options(config_), half);
  if (half) {
    model_->to(torch::kBFloat16);
    model_->lay_out_weights();
  }
  model_->train();
}

void Trainer::take_note(const std::string& note) {
  if (!note.empty()) notes_.push_back(note);
}

// Settled once: a run that is resumed no longer sees what its folder had.
void Trainer::choose_indexer_start(const std::optional<nn::ModelConfig>& stored) {
  const nn::ModelConfig& config = model_->config();
  if (!config.attention.sparse) return;
  const IndexerStart start = indexer_start(config_, stored);
  indexer_from_attention_ = start == IndexerStart::attention;
  if (!stored) return;
  if (const std::string note = conversion_note(config_, config, *stored); !note.empty()) {
    take_note(note);
  } else if (start != IndexerStart::kept) {
    renew_indexer(model_);
    notes_.push_back(concat("a new indexer takes the place of the one in ", config_.model.from,
                            ", as model.indexer_init says"));
  }
}

nn::Phase Trainer::phase_of(std::int64_t step) const {
  if (step < config_.phases.dense) return nn::Phase::dense;
  if (step < config_.phases.dense + config_.phases.warmup) return nn::Phase::warmup;
  return nn::Phase::sparse;
}

nn::Phase Trainer::phase_of_last_step() const {
  const nn::Phase phase = phase_of(std::max<std::int64_t>(step_ - 1, 0));
  return phase == nn::Phase::warmup ? nn::Phase::dense : phase;  // what attention does is the same
}

void Trainer::set_learning(nn::Phase phase) {
  model_->set_learning(nn::ParameterKind::base, phase != nn::Phase::warmup);
  model_->set_learning(nn::ParameterKind::gate, phase != nn::Phase::warmup);
  model_->set_learning(nn::ParameterKind::indexer, phase != nn::Phase::dense);
}

std::vector<Batch> Trainer::take_batches() {
  if (ready_.empty()) ready_ = read_batches();
  place_ = packer_.state();
  return std::exchange(ready_, {});
}

std::vector<Batch> Trainer::read_batches() {
  const std::int64_t rows = config_.batch.tokens / config_.data.length;
  std::vector<Batch> batches;
  for (std::int64_t first = 0; first < rows; first += config_.batch.rows) {
    std::vector<data::Row> part;
    for (std::int64_t r = first; r < std::min(rows, first + config_.batch.rows); ++r)
      part.push_back(packer_.next());
    batches.push_back(make_batch(part, device_));
  }
  return batches;
}

// number: of the micro-batch in its step.
nn::ModelForwardOptions Trainer::forward_options(const Batch& batch, std::size_t number,
                                                 const StepReport& report) const {
  nn::ModelForwardOptions options{.cu_seqlens = batch.cu_seqlens,
                                  .phase = report.phase,
                                  .want_kl = report.phase != nn::Phase::dense,
                                  .want_stats = report.logged && number == 0,
                                  .kl_support = nn::kl_support_by_name(config_.kl_support),
                                  .deterministic = config_.deterministic,
                                  .checkpoint_activations = config_.checkpoint_activations};
  if (report.phase == nn::Phase::warmup || options.kl_support == nn::KlSupport::all) {
    const std::uint64_t seed = philox_bits(static_cast<std::uint64_t>(config_.seed),
                                           static_cast<std::uint64_t>(report.step), number);
    options.kl_sample = nn::KlSample{.share = config_.kl_share, .seed = seed};
  }
  return options;
}

// Every loss is a mean over the whole step: each micro-batch adds its share.
Trainer::Sums Trainer::run_backward(const std::vector<Batch>& batches, StepReport& report) {
  const bool learns_language = report.phase != nn::Phase::warmup;
  std::int64_t predictions = 0;
  for (const Batch& batch : batches) predictions += batch.predictions;
  if (predictions == 0 && learns_language) {
    throw Error(concat("step ", report.step, ": expected documents of at least two tokens, got none"));
  }
  const auto options64 = torch::TensorOptions().dtype(torch::kFloat64).device(device_);
  Sums sums{torch::zeros({}, options64), torch::zeros({model_->config().indexers()}, options64), {}};
  for (const Batch& batch : batches) {
    const double share = static_cast<double>(batch.tokens.numel()) / static_cast<double>(report.tokens);
    const std::size_t number = static_cast<std::size_t>(&batch - batches.data());
    const nn::ModelForwardOptions options = forward_options(batch, number, report);
    at::Tensor objective;
    nn::ModelLoss result;
    if (learns_language) {
      result = model_->loss(batch.tokens, batch.targets, options);
      objective = result.sum / static_cast<double>(predictions);
      sums.loss += result.sum.detach().to(torch::kFloat64) / static_cast<double>(predictions);
    } else {
      nn::ModelResult hidden = model_->forward(batch.tokens, options);
      result.kl = std::move(hidden.kl);
      result.stats = std::move(hidden.stats);
    }
    if (!result.kl.empty()) {
      const at::Tensor kl = torch::stack(result.kl);
      sums.kl += kl.detach().to(torch::kFloat64) * share;
      const at::Tensor indexer = kl.sum() * (config_.kl_weight * share);
      objective = objective.defined() ? objective + indexer : indexer;
    }
    if (!result.kept.empty()) {
      const at::Tensor kept = torch::stack(result.kept).to(torch::kFloat64) * share;
      sums.kept = sums.kept.defined() ? sums.kept + kept : kept;
    }
    if (number == 0) report.layers = layer_stats(result.stats);
    objective.backward();
    optimizer_->gather_gradients();
  }
  return sums;
}

StepReport Trainer::one_step() {
  const auto start = std::chrono::steady_clock::now();
  StepReport report;
  report.step = step_ + 1;
  report.phase = phase_of(step_);
  report.lr = config_.optimizer.lr * schedule_.at(step_);
  report.logged = report.step % config_.output.log_every == 0 || report.step == config_.steps();
  report.tokens = config_.batch.tokens;
  if (step_ == 0 || phase_of(step_ - 1) != report.phase) {
    for (SpikeGuard& guard : guards_) guard.forget();
    operations_.clear();
  }
  if (indexer_from_attention_ && step_ == config_.phases.dense && report.phase != nn::Phase::dense) {
    events_.note(report.step, start_indexer_from_attention(model_->config(), *optimizer_));
  }
  set_learning(report.phase);
  const std::vector<Batch> batches = take_batches();
  const Sums sums = run_backward(batches, report);
  // A GPU is still at work on what was enqueued: the time to read what comes next.
  if (device_.is_cuda() && report.step < config_.steps()) ready_ = read_batches();

  // One wait for the device a step: all numbers come over together.
  std::vector<at::Tensor> parts = {sums.loss.view({1}), sums.kl, optimizer_->gradient_norms()};
  if (sums.kept.defined()) parts.push_back(sums.kept);
  const at::Tensor numbers = torch::cat(parts).to(torch::kCPU);
  const double* const value = numbers.const_data_ptr<double>();
  const nn::ModelConfig& model = model_->config();
  const std::int64_t indexers = model.indexers();
  if (report.phase != nn::Phase::warmup) report.loss = value[0];
  if (report.phase != nn::Phase::dense) {
    report.kl.assign(value + 1, value + 1 + indexers);
    for (std::int64_t n = 0; n < model.layers; ++n) {
      if (model.has_indexer(n)) report.kl_layers.push_back(n);
    }
  }
  report.model_norm = value[1 + indexers];
  report.indexer_norm = value[2 + indexers];
  if (sums.kept.defined()) report.kept.assign(value + 3 + indexers, value + 3 + indexers + model.layers);
  check_finite(report, batches);

  watch_spikes(report);
  if (!report.skipped) {
    optimizer_->step(report.lr, {clip_factor(report.model_norm, config_.optimizer.clip),
                                 clip_factor(report.indexer_norm, config_.optimizer.clip)});
  }
  optimizer_->zero_gradients();
  ++step_;
  report.epoch = static_cast<double>(place_.epoch) +
                 static_cast<double>(place_.index) / static_cast<double>(data_.documents());
  report.floating_point = operations(batches, report.phase);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

void Trainer::check_finite(const StepReport& report, const std::vector<Batch>& batches) const {
  const auto stop = [&](const std::string& culprit) {
    throw NotFinite(
        concat("step ", report.step, ": ", culprit,
               " is not finite; stopped before the optimiser step, the weights are those of step ", step_));
  };
  if (report.loss && !std::isfinite(*report.loss)) {
    const std::string block = first_not_finite_block(report, batches);
    stop(concat("the language model's loss", block.empty() ? "" : concat(" (first in ", block, ")")));
  }
  for (std::size_t i = 0; i < report.kl.size(); ++i) {
    if (!std::isfinite(report.kl[i])) stop(concat("the indexer's loss of layer ", report.kl_layers[i]));
  }
  if (std::isfinite(report.model_norm) && std::isfinite(report.indexer_norm)) return;
  const std::string parameter = optimizer_->not_finite();
  stop(parameter.empty() ? "the gradient's norm (too large for float32)"
                         : concat("the gradient of ", parameter));
}

// The step's batches once more, looking at the residual stream after every block.
std::string Trainer::first_not_finite_block(const StepReport& report,
                                            const std::vector<Batch>& batches) const {
  const torch::NoGradGuard no_grad;
  const nn::EvaluationMode evaluation(model_);
  std::string culprit;
  for (const Batch& batch : batches) {
    nn::Model model = model_;
    model->forward(batch.tokens, {.cu_seqlens = batch.cu_seqlens,
                                  .phase = report.phase,
                                  .observe = [&](std::int64_t index, const at::Tensor& residual) {
                                    if (!culprit.empty() || residual.isfinite().all().item<bool>()) return;
                                    culprit = index == 0 ? "the embedding" : concat("layer ", index - 1);
                                  }});
    if (!culprit.empty()) return culprit;
  }
  return "";
}

void Trainer::watch_spikes(StepReport& report) {
  static constexpr const char* kNames[kWatched] = {"loss", "KL", "gradient norm", "indexer's gradient norm"};
  std::optional<double> values[kWatched];
  values[language_loss] = report.loss;
  if (!report.kl.empty()) {
    double sum = 0;
    for (const double kl : report.kl) sum += kl;
    values[kl_sum] = sum;
    values[indexer_norm] = report.indexer_norm;
  }
  if (report.loss) values[model_norm] = report.model_norm;
  for (std::size_t i = 0; i < kWatched; ++i) {
    if (!values[i]) continue;
    const double bar = guards_[i].bar();
    if (*values[i] > bar && report.spike.empty()) {
      report.spike = concat(kNames[i], " ", *values[i], " above ", bar);
    }
    guards_[i].take(*values[i]);
  }
  if (!report.spike.empty()) ++spikes_;
  report.spikes = spikes_;
  report.skipped = !report.spike.empty() && config_.guard.skip_spikes;
}

double Trainer::operations(const std::vector<Batch>& batches, nn::Phase phase) {
  double sum = 0;
  for (const Batch& batch : batches) {
    for (std::size_t i = 0; i + 1 < batch.borders.size(); ++i) {
      const std::int64_t length = batch.borders[i + 1] - batch.borders[i];
      const auto [entry, is_new] = operations_.try_emplace(length, 0.0);
      if (is_new) {
        const nn::CostOptions options{.length = length,
                                      .dtype = DType::bf16,
                                      .phase = phase,
                                      .kl_support = nn::kl_support_by_name(config_.kl_support),
                                      .kl_share = config_.kl_share};
        entry->second = nn::estimate_cost(model_->config(), options).training.total();
      }
      sum += entry->second;
    }
  }
  return sum;
}

double Trainer::validation_loss() {
  if (!validation_) throw Error("option 'data.validation': expected a dataset, got none");
  const torch::NoGradGuard no_grad;
  const nn::EvaluationMode evaluation(model_);
  data::Packer packer(*validation_, config_.data.length, 0, data::Order::as_written);
  double sum = 0;
  std::int64_t predictions = 0, tokens = 0;
  const std::int64_t wanted = std::min(config_.output.validation_tokens, validation_->tokens());
  while (tokens < wanted) {
    std::vector<data::Row> rows;
    for (std::int64_t r = 0; r < config_.batch.rows && tokens < wanted; ++r) {
      rows.push_back(packer.next());
      tokens += config_.data.length;
    }
    const Batch batch = make_batch(rows, device_);
    const nn::ModelLoss result = model_->loss(
        batch.tokens, batch.targets, {.cu_seqlens = batch.cu_seqlens, .phase = phase_of_last_step()});
    sum += result.sum.to(torch::kFloat64).item<double>();
    predictions += batch.predictions;
  }
  if (predictions == 0) {
    bad_file(config_.data.validation, "documents of at least two tokens", "none in the first rows");
  }
  return sum / static_cast<double>(predictions);
}

void Trainer::sample() {
  const nn::EvaluationMode evaluation(model_);
  const std::uint64_t seed =
      static_cast<std::uint64_t>(config_.seed) * 1'000'003 + static_cast<std::uint64_t>(step_);
  const SampleOptions options{.prompt = config_.output.sample_prompt,
                              .tokens = config_.output.sample_tokens,
                              .seed = seed,
                              .phase = phase_of_last_step()};
  events_.sample(step_, sample_text(model_, *tokenizer_, options, device_));
}

OrderedJson Trainer::state() const {
  OrderedJson guards = OrderedJson::array();
  for (const SpikeGuard& guard : guards_) guards.push_back(guard.history());
  return {{"step", step_},
          {"config", to_toml(config_)},
          {"dataset_fingerprint", data_.fingerprint()},
          {"data", {{"epoch", place_.epoch}, {"index", place_.index}, {"offset", place_.offset}}},
          {"random", random_state()},
          {"indexer_from_attention", indexer_from_attention_},
          {"spikes", spikes_},
          {"guards", guards}};
}

void Trainer::save() {
  checkpoints_.save(
      step_,
      [this](const std::filesystem::path& folder) {
        nn::save_model(model_, folder);
        tokenizer_->save(folder);
      },
      optimizer_->state(), state());
  saved_ = step_;
  events_.saved(step_, checkpoints_.folder(step_));
}

void Trainer::restore(std::int64_t step) {
  const Json state = checkpoints_.state(step);
  take_note(check_same_run(config_, state.at("config").get<std::string>(), step));
  if (state.at("dataset_fingerprint").get<std::uint32_t>() != data_.fingerprint()) {
    bad_file(config_.data.train, "the dataset of the run that is resumed", "another one");
  }
  checkpoints_.read_optimizer(step, optimizer_->state());
  optimizer_->take_state();
  const Json& place = state.at("data");
  packer_.restore({place.at("epoch").get<std::int64_t>(), place.at("index").get<std::int64_t>(),
                   place.at("offset").get<std::int64_t>()});
  place_ = packer_.state();
  set_random_state(state.at("random").get<std::string>());
  for (std::size_t i = 0; i < kWatched; ++i) {
    guards_[i].restore(state.at("guards").at(i).get<std::vector<double>>());
  }
  spikes_ = state.at("spikes").get<std::int64_t>();
  indexer_from_attention_ = state.value("indexer_from_attention", false);  // older runs have no such start
  step_ = saved_ = state.at("step").get<std::int64_t>();
}

bool Trainer::run(const std::function<bool()>& stop) {
  const auto due = [this](std::int64_t every) { return every > 0 && step_ % every == 0; };
  while (step_ < config_.steps() && !stop()) {
    events_.step(one_step());
    const bool last = step_ == config_.steps();
    if (validation_ && (last || due(config_.output.validate_every)))
      events_.validation(step_, validation_loss());
    if (due(config_.output.sample_every)) sample();
    if (!last && due(config_.output.save_every)) save();
  }
  if (saved_ != step_) save();
  return step_ == config_.steps();
}

}  // namespace gsa::train
