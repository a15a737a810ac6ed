#include "nn/indexer.h"

#include <cmath>

#include "nn/new_layers.h"

namespace gsa::nn {

using at::Tensor;

ops::IndexerInputs Temperature::apply(ops::IndexerInputs inputs) const {
  // Scores are linear in w, so dividing w divides them.
  if (log) {
    inputs.w = inputs.w * (-*log).exp();
  } else if (value != 1) {
    inputs.w = inputs.w / value;
  }
  return inputs;
}

ops::BudgetOptions budget_options(const BudgetConfig& config, const Tensor& mean_variance) {
  ops::BudgetOptions options;
  options.mode = name_of(config.mode);
  options.base = config.base;
  options.min = config.min;
  options.max = config.max;
  options.mean_variance = mean_variance;
  return options;
}

IndexerImpl::IndexerImpl(const AttentionConfig& config) : config_(config.indexer), budget_(config.budget) {
  const auto linear = [&](const char* name, std::int64_t size) {
    return register_module(name, new_linear(config.d_model, size, false, config.init_std));
  };
  wq = linear("wq", config_.heads * config_.head_size);
  wk = linear("wk", config_.head_size);
  weights_proj = linear("weights_proj", config_.heads);
  if (config_.form == ScoreForm::sigmoid) {
    bias = register_parameter("bias", torch::zeros({config_.heads}));
  }
  if (config_.temperature.learned) {
    log_temperature = register_parameter(
        "log_temperature", torch::tensor(std::log(config_.temperature.value), torch::get_default_dtype()));
  }
  mean_variance = register_buffer("mean_variance", torch::tensor(-1.0, torch::kFloat64));
}

ops::IndexerInputs IndexerImpl::project(const Tensor& h, const RopeTables& tables) {
  const Tensor x = h.detach();
  ops::IndexerInputs inputs;
  inputs.q = rotate(wq(x).view({x.size(0), config_.heads, config_.head_size}), tables);
  inputs.k = rotate(wk(x).unsqueeze(1), tables).squeeze(1);
  const Tensor w = weights_proj(x);
  if (config_.form == ScoreForm::sigmoid) {
    inputs.w = torch::sigmoid(w);
    inputs.bias = bias_as(w.scalar_type());
  } else {
    inputs.w = w * (1 / std::sqrt(static_cast<double>(config_.heads)));
  }
  inputs.scale = 1 / std::sqrt(static_cast<double>(config_.head_size));
  inputs.form = name_of(config_.form);
  return inputs;
}

ops::OptTensor IndexerImpl::bias_as(at::ScalarType type) const {
  if (config_.form != ScoreForm::sigmoid) return std::nullopt;
  return bias.to(type);  // autocast leaves parameters as they are
}

Temperature IndexerImpl::temperature() const {
  if (config_.temperature.learned) return {.value = 1, .log = log_temperature};
  return {.value = config_.temperature.value};
}

ops::BudgetOptions IndexerImpl::budget(const std::optional<Tensor>& mean) const {
  return budget_options(budget_, mean.value_or(mean_variance).clone());
}

Tensor IndexerImpl::variance_totals(const Tensor& variance, const Tensor& visible) const {
  const Tensor counts = visible >= budget_.min;
  const Tensor sum = torch::where(counts, variance.to(torch::kFloat64), 0.0).sum();
  return torch::stack({sum, counts.sum().to(torch::kFloat64)});
}

void IndexerImpl::update_mean_variance(Tensor totals) {
  torch::NoGradGuard no_grad;
  if (reduce_totals) reduce_totals(totals);
  const Tensor sum = totals[0], count = totals[1];
  const Tensor mean = sum / count;
  const double momentum = config_.mean_variance_momentum;
  const Tensor moved =
      torch::where(mean_variance < 0, mean, momentum * mean_variance + (1 - momentum) * mean);
  // All on the tensor's own device: no wait for a GPU. 0/0 is NaN and so not finite.
  mean_variance.copy_(torch::where(mean.isfinite(), moved, mean_variance));
}

void IndexerImpl::keep_mean_variance(const std::function<void()>& move) {
  const Tensor kept = mean_variance.clone();
  move();
  mean_variance.set_data(kept.to(mean_variance.device()));
}

void IndexerImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  keep_mean_variance([&] { Module::to(device, dtype, non_blocking); });
}

void IndexerImpl::to(torch::Dtype dtype, bool non_blocking) {
  keep_mean_variance([&] { Module::to(dtype, non_blocking); });
}

void IndexerImpl::to(torch::Device device, bool non_blocking) {
  keep_mean_variance([&] { Module::to(device, non_blocking); });
}

}  // namespace gsa::nn
