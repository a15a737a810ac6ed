// Several projections of one input as one matrix product: [x W1^T | x W2^T | ...]. The input is read once,
// and its gradient is one product instead of a sum of several.
#pragma once

#include <vector>

#include "nn/torch.h"

namespace gsa::nn {

// x [T, d], weights [n_i, d] -> [T, n_1 + n_2 + ...], plus biases [n_i], where there are any. Under autocast in
// autocast's type. Weights that lie side by side in memory (lay_side_by_side) are read where they are; others are
// copied together first.
at::Tensor joint_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                        const std::vector<at::Tensor>& biases = {});

// Moves the parameters into one block of memory, in this order. They keep their values, names and identity.
void lay_side_by_side(const std::vector<at::Tensor>& parameters);

}  // namespace gsa::nn
