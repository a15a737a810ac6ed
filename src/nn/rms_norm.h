// RMSNorm with a weight, on the last dimension.
#pragma once

#include <optional>

#include "nn/torch.h"
#include "torch/ops.h"

namespace gsa::nn {

class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(std::int64_t size, double eps);
  at::Tensor forward(const at::Tensor& x);
  // x + branch (absent: x), and that normalised.
  ops::Normed take_in(const at::Tensor& x, const std::optional<at::Tensor>& branch);
  at::Tensor weight;

 private:
  double eps_;
};
TORCH_MODULE(RmsNorm);

}  // namespace gsa::nn
