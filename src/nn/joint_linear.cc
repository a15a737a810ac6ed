#include "nn/joint_linear.h"

#include <ATen/autocast_mode.h>

namespace gsa::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool side_by_side(at::TensorList weights) {
  const Tensor& first = weights[0];
  std::int64_t offset = first.storage_offset();
  for (const Tensor& weight : weights) {
    if (!weight.is_contiguous() || !weight.has_storage() || !weight.is_alias_of(first) ||
        weight.storage_offset() != offset || weight.scalar_type() != first.scalar_type()) {
      return false;
    }
    offset += weight.numel();
  }
  return true;
}

// All rows of all weights, [n_1 + n_2 + ..., d].
Tensor joined(at::TensorList weights) {
  if (!side_by_side(weights)) return torch::cat(weights);
  std::int64_t rows = 0;
  for (const Tensor& weight : weights) rows += weight.size(0);
  return weights[0].as_strided({rows, weights[0].size(1)}, {weights[0].size(1), 1});
}

// Its inputs are the weights, and behind them a bias of all rows, where there is one: a vector.
class JointLinear : public torch::autograd::Function<JointLinear> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, at::TensorList parts) {
    variable_list saved = {x};
    saved.insert(saved.end(), parts.begin(), parts.end());
    context->save_for_backward(std::move(saved));
    context->set_materialize_grads(false);
    const Tensor weight = joined(weights_of(parts));
    return has_bias(parts) ? at::addmm(parts.back(), x, weight.t()) : x.mm(weight.t());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    variable_list result(saved.size());
    const Tensor& dy = gradients[0];
    if (!dy.defined()) return result;
    const Tensor& x = saved_input(saved);
    const at::TensorList parts = saved_parts(saved), weights = weights_of(parts);
    if (context->needs_input_grad(0)) result[0] = dy.mm(joined(weights));
    Tensor dweight;
    std::int64_t row = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::int64_t rows = weights[i].size(0);
      if (context->needs_input_grad(i + 1)) {
        if (!dweight.defined()) dweight = dy.t().mm(x);
        result[i + 1] = dweight.narrow(0, row, rows);
      }
      row += rows;
    }
    if (has_bias(parts) && context->needs_input_grad(parts.size())) result[parts.size()] = dy.sum(0);
    return result;
  }

 private:
  // Of what forward() saves: x, then its parts.
  static const Tensor& saved_input(const variable_list& saved) { return saved.front(); }
  static at::TensorList saved_parts(const variable_list& saved) { return at::TensorList(saved).slice(1); }

  static bool has_bias(at::TensorList parts) { return parts.back().dim() == 1; }
  static at::TensorList weights_of(at::TensorList parts) {
    return parts.slice(0, parts.size() - (has_bias(parts) ? 1 : 0));
  }
};

}  // namespace

Tensor joint_linear(const Tensor& x, const std::vector<Tensor>& weights, const std::vector<Tensor>& biases) {
  std::vector<Tensor> parts = weights;
  if (!biases.empty()) parts.push_back(torch::cat(biases));
  const at::DeviceType device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return JointLinear::apply(x, at::TensorList(parts));
  const at::ScalarType type = at::autocast::get_autocast_dtype(device);
  for (Tensor& part : parts) part = part.to(type);
  return JointLinear::apply(x.to(type), at::TensorList(parts));
}

void lay_side_by_side(const std::vector<Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  const Tensor all = torch::cat(parameters);
  std::int64_t row = 0;
  for (Tensor parameter : parameters) {
    const std::int64_t rows = parameter.size(0);
    parameter.set_data(all.narrow(0, row, rows));
    row += rows;
  }
}

}  // namespace gsa::nn
