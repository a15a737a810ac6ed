// What a layer with an indexer hands to the layers that share its selection: what it selected, and the
// indexer's inputs, since those layers' attention is part of the target that the indexer learns
// (docs/specification.md, Selections shared between layers).
#pragma once

#include <memory>
#include <vector>

#include "nn/indexer.h"
#include "nn/torch.h"
#include "torch/ops.h"

namespace gsa::nn {

struct SharedSelection {
  ops::IndexerInputs inputs;  // packed, with the gradient of the layer that selects
  Temperature temperature;
  ops::BudgetOptions budget;  // as it selected with
  // One a group of the plan; nothing is defined where the group is dense, nor the mask where it would take
  // more memory than it is worth: selecting once more from `inputs` gives the same.
  std::vector<ops::Selection> groups;
  at::Tensor starts;  // the plan's: of which sequences it is

  // Every tensor that there is but the budget's and the starts, in one order.
  template <typename Visitor>
  void visit(const Visitor& visitor) {
    const auto each = [&](at::Tensor& tensor) {
      if (tensor.defined()) visitor(tensor);
    };
    each(inputs.q);
    each(inputs.k);
    each(inputs.w);
    if (inputs.bias) each(*inputs.bias);
    if (temperature.log) each(*temperature.log);
    for (ops::Selection& group : groups) {
      each(group.mask);
      each(group.k_t);
      each(group.threshold);
      each(group.tie_cut);
    }
  }
};

}  // namespace gsa::nn
