// How operators are registered and called. Each has a file, src/torch/<operator>.cc, with everything torch
// knows of it, in this order: schema, checks of arguments, implementation, fake kernel, gradient, C++
// function (declared in ops.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <tuple>

#include "torch/tensor_checks.h"

namespace gsa::binding {

using Tensor2 = std::tuple<Tensor, Tensor>;
using Tensor3 = std::tuple<Tensor, Tensor, Tensor>;
using Tensor4 = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Tensor5 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using Tensor6 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using Tensor7 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// The registered operator of this name, "gsa::attend".
template <typename Fn>
c10::TypedOperatorHandle<Fn> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Fn>();
}

// What CUDA tensors get: the function itself (cuda_backend.cc), or, where the CUDA operators are not built,
// an error that says so (cuda_absent.cc).
torch::CppFunction cuda_form(torch::CppFunction function);

// Registers one function for all devices; it takes the kernels of the device that it is called on from
// backend_of() (backend.h).
template <typename Fn>
void implement(torch::Library& library, const char* name, Fn* function) {
  library.impl(name, torch::dispatch(c10::DispatchKey::CPU, function));
  library.impl(name, torch::dispatch(c10::DispatchKey::CUDA, cuda_form(torch::CppFunction(function))));
}

// For the key Autograd, where an operator has no gradient of its own (gradient.h is for those that have).

// Results do not require a gradient, whatever the inputs do.
torch::CppFunction no_gradient();

// Differentiating the results is an error that names the operator.
torch::CppFunction not_differentiable();

// An operator that writes into its arguments, as autograd sees it, on every device: it refuses arguments that
// need a gradient, since it has none to give, and marks what it wrote as changed, so that a backward pass
// that had kept the values of before is an error, as after torch's own in-place operators.
void works_in_place(torch::Library& library, const char* name);

}  // namespace gsa::binding
