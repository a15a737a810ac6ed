// Activation checkpointing: a part of the network keeps only its input and is computed again in the backward
// pass.
#pragma once

#include <functional>
#include <vector>

#include "nn/torch.h"

namespace gsa::nn {

// A differentiable function of x and of parameters that it knows by itself.
using Recomputable = std::function<std::vector<at::Tensor>(const at::Tensor& x)>;

// first(x), without a graph; the backward pass calls again(x) with one, under the autocast settings of now,
// and differentiates that. again must compute the same values as first and have no other effect. parameters:
// every tensor that requires a gradient and that the function reads besides x.
std::vector<at::Tensor> recompute(const at::Tensor& x, const std::vector<at::Tensor>& parameters,
                                  const Recomputable& first, const Recomputable& again);

}  // namespace gsa::nn
