// For gradients. A forward operator runs below autograd and remembers what its backward operator reads; a
// backward operator is called through the dispatcher, so that tracing sees it.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>

#include "torch/tensor_checks.h"

namespace gsa::binding {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// What a forward pass saves has names: a struct of tensors and optional tensors, whose slots() are all of its
// fields, std::tie(q, k, ...).
template <typename Saved>
void save(AutogradContext* ctx, Saved saved) {
  const auto saved_form = [](const OptTensor& tensor) { return tensor.value_or(Tensor()); };
  ctx->save_for_backward(
      std::apply([&](const auto&... slot) { return variable_list{saved_form(slot)...}; }, saved.slots()));
}

template <typename Saved>
Saved load(AutogradContext* ctx) {
  Saved saved;
  const variable_list tensors = ctx->get_saved_variables();
  auto next = tensors.begin();
  const auto fill = [&next](auto& slot) {
    // A tensor that was absent comes back undefined.
    if (next->defined()) slot = *next;
    ++next;
  };
  std::apply([&](auto&... slot) { (fill(slot), ...); }, saved.slots());
  return saved;
}

inline OptTensor optional_of(const Tensor& tensor) {
  return tensor.defined() ? OptTensor(tensor) : OptTensor();
}

// A gradient where one is wanted, nothing otherwise.
inline Tensor wanted(AutogradContext* ctx, std::size_t input, const Tensor& gradient) {
  return ctx->needs_input_grad(input) ? gradient : Tensor();
}

}  // namespace gsa::binding
