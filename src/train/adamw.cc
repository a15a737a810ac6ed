#include "train/adamw.h"

#include <cmath>
#include <map>
#include <tuple>

#include "gsa/error.h"

namespace gsa::train {
namespace {

double multiplier_of(nn::ParameterKind kind, const AdamWOptions& options) {
  switch (kind) {
    case nn::ParameterKind::base:
      return 1;
    case nn::ParameterKind::indexer:
      return options.indexer_lr_multiplier;
    case nn::ParameterKind::gate:
      return options.gate_lr_multiplier;
  }
  return 1;
}

}  // namespace

AdamW::AdamW(const std::vector<nn::ParameterGroup>& groups, const AdamWOptions& options, bool own_masters)
    : options_(options) {
  const torch::NoGradGuard no_grad;
  for (const nn::ParameterGroup& group : groups) {
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const at::Tensor& parameter = group.parameters[i];
      if (parameter.scalar_type() != torch::kFloat32) {
        bad_argument("train::AdamW", group.names[i].c_str(), "float32",
                     c10::toString(parameter.scalar_type()));
      }
      Slot slot;
      slot.name = group.names[i];
      slot.parameter = parameter;
      slot.master = own_masters ? parameter.detach().clone() : parameter.detach();
      slot.mean = torch::zeros_like(slot.master);
      slot.square = torch::zeros_like(slot.master);
      slot.steps = torch::zeros({}, slot.master.options());
      slot.multiplier = multiplier_of(group.kind, options);
      slot.decay = group.decay ? options.weight_decay : 0;
      slot.indexer = group.kind == nn::ParameterKind::indexer;
      slots_.push_back(std::move(slot));
    }
  }
}

void AdamW::gather_gradients() {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> sums, parts;
  for (Slot& slot : slots_) {
    if (!slot.narrow() || !slot.parameter.grad().defined()) continue;
    const at::Tensor part = slot.parameter.grad().to(torch::kFloat32);
    slot.parameter.mutable_grad().reset();
    if (slot.gathered.defined()) {
      sums.push_back(slot.gathered);
      parts.push_back(part);
    } else {
      slot.gathered = part;
    }
  }
  if (!sums.empty()) at::_foreach_add_(sums, parts);
}

void AdamW::step(double lr, const Norms& factors) {
  const torch::NoGradGuard no_grad;
  // The fused operator takes one rate and one decay: parameters are handed over in bundles that share them.
  struct Bundle {
    std::vector<at::Tensor> masters, gradients, means, squares, steps;
    std::vector<at::Tensor> narrow, wide;  // parameters that are copies of their masters
  };
  std::map<std::tuple<bool, double, double>, Bundle> bundles;
  for (const Slot& slot : slots_) {
    if (!slot.gradient().defined()) continue;
    Bundle& bundle = bundles[{slot.indexer, slot.multiplier, slot.decay}];
    bundle.masters.push_back(slot.master);
    bundle.gradients.push_back(slot.gradient());
    bundle.means.push_back(slot.mean);
    bundle.squares.push_back(slot.square);
    bundle.steps.push_back(slot.steps);
    if (slot.narrow()) {
      bundle.narrow.push_back(slot.parameter);
      bundle.wide.push_back(slot.master);
    }
  }
  for (auto& [key, bundle] : bundles) {
    const auto& [indexer, multiplier, decay] = key;
    const double factor = indexer ? factors.indexer : factors.model;
    if (factor != 1) at::_foreach_mul_(bundle.gradients, factor);
    at::_foreach_add_(bundle.steps, 1);
    at::_fused_adamw_(bundle.masters, bundle.gradients, bundle.means, bundle.squares, {}, bundle.steps,
                      lr * multiplier, options_.beta1, options_.beta2, decay, options_.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
    if (!bundle.narrow.empty()) at::_foreach_copy_(bundle.narrow, bundle.wide);
  }
}

at::Tensor AdamW::gradient_norms() const {
  const torch::NoGradGuard no_grad;
  const auto norm_of = [this](bool indexer) {
    std::vector<at::Tensor> gradients;
    for (const Slot& slot : slots_) {
      if (slot.indexer == indexer && slot.gradient().defined()) gradients.push_back(slot.gradient());
    }
    if (gradients.empty()) return torch::zeros({}, slots_.front().master.options().dtype(torch::kFloat64));
    return at::stack(at::_foreach_norm(gradients, 2)).to(torch::kFloat64).square().sum().sqrt();
  };
  return at::stack({norm_of(false), norm_of(true)});
}

void AdamW::zero_gradients() {
  for (Slot& slot : slots_) {
    slot.parameter.mutable_grad().reset();
    slot.gathered.reset();
  }
}

std::string AdamW::not_finite() const {
  const torch::NoGradGuard no_grad;
  for (const Slot& slot : slots_) {
    if (slot.gradient().defined() && !slot.gradient().isfinite().all().item<bool>()) return slot.name;
  }
  return "";
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const Slot& slot : slots_) {
    tensors.emplace_back(slot.name + ".master", slot.master);
    tensors.emplace_back(slot.name + ".mean", slot.mean);
    tensors.emplace_back(slot.name + ".square", slot.square);
    tensors.emplace_back(slot.name + ".steps", slot.steps);
  }
  return tensors;
}

void AdamW::masters_to_model() {
  const torch::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    if (slot.narrow()) slot.parameter.copy_(slot.master);
  }
}

}  // namespace gsa::train
