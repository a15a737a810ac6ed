// AdamW over a model's parameter groups, with fp32 master weights and moments whatever type the model has.
//
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
//   w = w - lr (m / (1 - b1^n) / (sqrt(v / (1 - b2^n)) + eps) + decay w)
//
// n counts the steps of a parameter, not of the run: what was frozen (the base in warm-up, the indexer in the
// dense phase) starts with its own bias correction when it begins to learn.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nn/model.h"
#include "nn/torch.h"

namespace gsa::train {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
  double indexer_lr_multiplier = 10, gate_lr_multiplier = 1;
};

class AdamW {
 public:
  // The parameters must be fp32 here. Where the model takes another type afterwards (own_masters), masters
  // are copies, and every step writes them back, rounded.
  AdamW(const std::vector<nn::ParameterGroup>& groups, const AdamWOptions& options, bool own_masters);

  // To be called after every backward pass: gradients of narrow types are added up in fp32 here, because
  // their own sum over many micro-batches would lose what is small. The gradient of a single one stays as it
  // is.
  void gather_gradients();

  // Of the model's gradients (base and gates) and of the indexer's: the two learn from different losses, so
  // each has its own norm and is clipped by itself. 0 where there are none.
  struct Norms {
    double model = 0, indexer = 0;
  };
  at::Tensor gradient_norms() const;  // float64 [2] on the parameters' device: model, indexer

  // One step for every parameter that has a gradient, gradients multiplied by the factor of their part.
  void step(double lr, const Norms& factors);
  void zero_gradients();

  // The name of a parameter whose gradient holds NaN or infinity; empty: none does.
  std::string not_finite() const;

  // Tensors by name ("model.norm.weight.master", ".mean", ".square", ".steps"): all that a checkpoint needs.
  // Writing into them is what resuming does; take_state() then makes the rest follow (the model's weights
  // among it).
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  void take_state();

 private:
  struct Slot {
    std::string name;
    at::Tensor parameter;
    at::Tensor master;  // shares the parameter's memory unless own_masters
    at::Tensor mean, square, steps;
    std::int64_t count = 0;  // what steps says, on the host
    at::Tensor gathered;     // of narrow parameters, undefined where there is no gradient
    double multiplier = 1, decay = 0;
    bool indexer = false;

    bool narrow() const { return parameter.scalar_type() != torch::kFloat32; }
    const at::Tensor& gradient() const { return narrow() ? gathered : parameter.grad(); }
  };
  std::vector<Slot> slots_;
  AdamWOptions options_;
};

}  // namespace gsa::train
