#include "nn/rms_norm.h"

namespace gsa::nn {

using at::Tensor;

RmsNormImpl::RmsNormImpl(std::int64_t size, double eps) : eps_(eps) {
  weight = register_parameter("weight", torch::ones({size}));
}

Tensor RmsNormImpl::forward(const Tensor& x) { return take_in(x, std::nullopt).y; }

// Under autocast the stream, the branch and the weights may be of different types.
ops::Normed RmsNormImpl::take_in(const Tensor& x, const std::optional<Tensor>& branch) {
  const at::ScalarType type = x.scalar_type();
  return ops::rms_norm(x, branch ? std::optional(branch->to(type)) : std::nullopt, weight.to(type), eps_);
}

}  // namespace gsa::nn
