// Activation checkpointing: a part of the network keeps only its input and is computed again in the backward
// pass.
#pragma once

#include <functional>
#include <vector>

#include "nn/torch.h"

namespace gsa::nn {

// A differentiable function of its inputs and of parameters that it knows by itself.
using Recomputable = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// first(inputs), without a graph; the backward pass calls again(inputs) with one, under the autocast settings
// of now, and differentiates that. again must compute the same values as first and have no other effect.
// inputs: of any type, those of integers without a gradient. parameters: every tensor that requires a gradient
// and that the function reads besides.
std::vector<at::Tensor> recompute(const std::vector<at::Tensor>& inputs,
                                  const std::vector<at::Tensor>& parameters, const Recomputable& first,
                                  const Recomputable& again);

}  // namespace gsa::nn
