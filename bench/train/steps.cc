#include "steps.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "../trained/overlap.h"
#include "../trained/text_window.h"
#include "gsa/error.h"
#include "model/cost.h"
#include "nn/evaluation_mode.h"
#include "nn/model_io.h"

namespace gsa::bench {

using at::Tensor;

std::string Case::name() const {
  const std::string size = length % 1024 == 0 ? concat(length / 1024, "K") : std::to_string(length);
  const bool over_selected = phase == nn::Phase::sparse && kl_support == nn::KlSupport::selected;
  const std::string neighbours = overlap > 0      ? concat(", overlap ", overlap)
                                 : token_runs > 1 ? concat(", runs of ", token_runs)
                                                  : "";
  return concat(model, " ", system, phase ? concat(" ", nn::name_of(*phase)) : "",
                over_selected ? " KL-selected" : "", " ", sequences, "x", size, neighbours,
                budget ? concat(", ", nn::name_of(*budget), " budget") : "",
                deterministic ? "" : ", non-deterministic");
}

namespace {

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

double Overlap::mean() const { return mean_of(by_layer); }
double Overlap::mean_k() const { return mean_of(k_by_layer); }
double Overlap::min() const { return *std::min_element(by_layer.begin(), by_layer.end()); }
double Overlap::max() const { return *std::max_element(by_layer.begin(), by_layer.end()); }

void Steps::make_model(const Case& what, const torch::Device& device, const Trained& trained) {
  config_ = trained.given() ? nn::load_config(trained.model) : nn::ModelConfig::preset(what.model);
  const bool weights = what.system == "trained";
  if (!weights) nn::apply(config_, nn::system_by_name(what.system));
  if (what.budget) config_.attention.budget.mode = *what.budget;
  config_.max_positions = std::max(length_, weights ? config_.max_positions : 0);
  if (weights) {
    model_ = nn::load_model(trained.model, {.config = config_, .dtype = DType::f32}).model;
  } else {
    model_ = nn::Model(config_);
  }
  model_->to(device);
  model_->lay_out_weights();
  optimizer_.emplace(model_->parameter_groups(), train::AdamWOptions{}, /*own_masters=*/device.is_cuda());
  if (device.is_cuda()) {
    model_->to(torch::kBFloat16);
    model_->lay_out_weights();
  }
  phase_ = what.phase.value_or(config_.attention.sparse ? nn::Phase::sparse : nn::Phase::dense);
  model_->set_learning(nn::ParameterKind::base, phase_ != nn::Phase::warmup);
  model_->set_learning(nn::ParameterKind::gate, phase_ != nn::Phase::warmup);
  model_->set_learning(nn::ParameterKind::indexer, phase_ != nn::Phase::dense);
  model_->train();
}

Steps::Steps(const Case& what, const torch::Device& device, const Trained& trained)
    : length_(what.length),
      sequences_(what.sequences),
      deterministic_(what.deterministic),
      kl_support_(what.kl_support),
      kl_share_(what.kl_share) {
  torch::manual_seed(1);
  make_model(what, device, trained);
  // Trained weights stay what they are: a step of size 0 costs the same.
  rate_ = trained.given() ? 0 : 1e-4;
  const std::int64_t count = length_ * sequences_;
  starts_ = torch::arange(0, count + 1, length_, torch::kInt64);
  if (trained.given()) {
    std::vector<std::int64_t> ids = read_text({.data = trained.data,
                                               .model = trained.model,
                                               .vocab_size = config_.vocab_size,
                                               .offset = 0,
                                               .count = count + 1});
    tokens_ = torch::from_blob(ids.data(), {count + 1}, torch::kInt64).to(device, torch::kInt64, false, true);
  } else if (what.overlap > 0) {
    draw_tokens_with_overlap(what.overlap, device);
  } else {
    draw_tokens(what.token_runs, device);
  }
}

void Steps::draw_tokens(std::int64_t runs, const torch::Device& device) {
  const std::int64_t count = length_ * sequences_;
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  tokens_ = torch::randint(0, config_.vocab_size, {count / runs + 2}, generator, torch::kInt64)
                .repeat_interleave(runs)
                .narrow(0, 0, count + 1)
                .to(device);
  token_runs_ = runs;
}

void Steps::draw_tokens_with_overlap(double wanted, const torch::Device& device) {
  for (std::int64_t runs = 1; runs <= std::min(kMaxTokenRuns, length_); runs *= 2) {
    draw_tokens(runs, device);
    const double found = overlap().value().mean();  // presets that select are long enough to tell
    // Runs longer than the 16 queries of a tile hardly make neighbours agree more.
    const bool lowest = !overlap_tried_.empty() && found >= overlap_tried_.back().second;
    overlap_tried_.emplace_back(runs, found);
    if (found < wanted || lowest) break;
  }
  const auto distance = [wanted](const auto& tried) { return std::abs(tried.second - wanted); };
  draw_tokens(std::ranges::min_element(overlap_tried_, {}, distance)->first, device);
}

std::optional<Overlap> Steps::overlap() {
  if (phase_ != nn::Phase::sparse) return std::nullopt;
  const torch::NoGradGuard no_grad;
  const nn::EvaluationMode evaluation(model_);
  Overlap overlap;
  nn::ModelForwardOptions options{.cu_seqlens = starts_.narrow(0, 0, 2), .phase = phase_};
  options.observe_attention = [&](std::int64_t, const nn::AttentionView& view) {
    const std::optional<double> layer = union_over_k(view);
    if (!layer) return;
    overlap.by_layer.push_back(*layer);
    overlap.k_by_layer.push_back(view.k_t.to(torch::kFloat64).mean().item<double>());
  };
  model_->forward(tokens_.narrow(0, 0, length_), options);
  if (overlap.by_layer.empty()) return std::nullopt;
  return overlap;
}

void Steps::operator()() {
  const std::int64_t count = tokens_.size(0) - 1;
  const bool kl = phase_ != nn::Phase::dense;
  nn::ModelForwardOptions options{.cu_seqlens = starts_,
                                  .phase = phase_,
                                  .want_kl = kl,
                                  .kl_support = kl_support_,
                                  .deterministic = deterministic_};
  if (phase_ == nn::Phase::warmup || (kl && kl_support_ == nn::KlSupport::all)) {
    options.kl_sample = nn::KlSample{.share = kl_share_, .seed = ++step_};
  }
  const Tensor tokens = tokens_.narrow(0, 0, count);
  Tensor objective, shown;
  if (phase_ == nn::Phase::warmup) {
    objective = shown = nn::total(model_->forward(tokens, options).kl);
  } else {
    const nn::ModelLoss loss = model_->loss(tokens, tokens_.narrow(0, 1, count), options);
    objective = shown = loss.sum / static_cast<double>(count);
    if (kl) objective = objective + nn::total(loss.kl);
  }
  objective.backward();
  optimizer_->gather_gradients();
  const Tensor norms = optimizer_->gradient_norms().to(torch::kCPU);
  const auto factor = [&](int i) { return std::min(1.0, 1.0 / std::max(1e-12, norms[i].item<double>())); };
  optimizer_->step(rate_, {factor(0), factor(1)});
  optimizer_->zero_gradients();
  loss_ = shown.item<double>();
}

double Steps::operations() const {
  const nn::CostOptions options{.length = length_,
                                .dtype = DType::bf16,
                                .phase = phase_,
                                .kl_support = kl_support_,
                                .kl_share = kl_share_};
  return nn::estimate_cost(config_, options).training.total() * static_cast<double>(sequences_);
}

std::int64_t Steps::parameters() const { return nn::count_model(config_).total(); }

}  // namespace gsa::bench
