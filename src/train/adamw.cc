#include "train/adamw.h"

#include "gsa/error.h"
#include "torch/ops.h"

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
    const at::Tensor part = slot.parameter.grad();
    slot.parameter.mutable_grad().reset();
    if (!slot.gathered.defined()) {
      slot.gathered = part;  // the only one, as long as no other follows: nothing to add up
      continue;
    }
    if (slot.gathered.scalar_type() != torch::kFloat32) slot.gathered = slot.gathered.to(torch::kFloat32);
    sums.push_back(slot.gathered);
    parts.push_back(part.to(torch::kFloat32));
  }
  if (!sums.empty()) at::_foreach_add_(sums, parts);
}

void AdamW::step(double lr, const Norms& factors) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> counts;
  for (Slot& slot : slots_) {
    if (!slot.gradient().defined()) continue;
    ++slot.count;
    counts.push_back(slot.steps);
    ops::adamw_(slot.master, slot.mean, slot.square,
                slot.narrow() ? std::optional(slot.parameter) : std::nullopt, slot.gradient(),
                {.lr = lr * slot.multiplier,
                 .beta1 = options_.beta1,
                 .beta2 = options_.beta2,
                 .eps = options_.eps,
                 .decay = slot.decay,
                 .factor = slot.indexer ? factors.indexer : factors.model,
                 .number = slot.count});
  }
  if (!counts.empty()) at::_foreach_add_(counts, 1);
}

at::Tensor AdamW::gradient_norms() const {
  const torch::NoGradGuard no_grad;
  const auto norm_of = [this](bool indexer) {
    std::vector<at::Tensor> gradients;
    for (const Slot& slot : slots_) {
      if (slot.indexer == indexer && slot.gradient().defined()) gradients.push_back(slot.gradient());
    }
    if (gradients.empty()) return torch::zeros({}, slots_.front().master.options().dtype(torch::kFloat64));
    return at::stack(at::_foreach_norm(gradients, 2, torch::kFloat32))
        .to(torch::kFloat64)
        .square()
        .sum()
        .sqrt();
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

void AdamW::take_state() {
  const torch::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    slot.count = static_cast<std::int64_t>(slot.steps.item<double>());
    if (slot.narrow()) slot.parameter.copy_(slot.master);
  }
}

}  // namespace gsa::train
