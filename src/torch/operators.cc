#include "torch/operators.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "gsa/error.h"

namespace gsa::binding {

namespace {

void pass_below_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

void refuse_gradients(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  for (std::size_t i = 0; at::GradMode::is_enabled() && i < arguments.size(); ++i) {
    if (values[i].isTensor() && values[i].toTensor().requires_grad()) {
      throw Error(concat(op.schema().name(), ": argument '", arguments[i].name(),
                         "': expected a tensor that needs no gradient, as the operator has none (call it "
                         "under torch.no_grad(), or with detached tensors), got one that requires grad"));
    }
  }
  const at::AutoDispatchBelowAutograd below;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// Before the kernel runs, so that one that fails halfway has changed them too.
void mark_changed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    if (written && values[i].isTensor()) values[i].toTensor().unsafeGetTensorImpl()->bump_version();
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
}

}  // namespace

torch::CppFunction no_gradient() { return torch::CppFunction::makeFromBoxedFunction<&pass_below_autograd>(); }

torch::CppFunction not_differentiable() { return torch::autograd::autogradNotImplementedFallback(); }

void works_in_place(torch::Library& library, const char* name) {
  library.impl(name, torch::dispatch(c10::DispatchKey::Autograd,
                                     torch::CppFunction::makeFromBoxedFunction<&refuse_gradients>()));
  library.impl(name, torch::dispatch(c10::DispatchKey::ADInplaceOrView,
                                     torch::CppFunction::makeFromBoxedFunction<&mark_changed>()));
}

}  // namespace gsa::binding
