// Operators that write into their arguments, as autograd sees them: on every device they refuse arguments
// that need a gradient, since they have none to give, and mark what they wrote as changed, so that a backward
// pass that had kept the values of before is an error, as after torch's own in-place operators.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "gsa/error.h"

namespace gsa::binding {

namespace {

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

constexpr const char* kInPlace[] = {"append", "cross_entropy_", "adamw_"};

}  // namespace

TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  for (const char* name : kInPlace) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_gradients>());
  }
}

TORCH_LIBRARY_IMPL(gsa, ADInplaceOrView, m) {
  for (const char* name : kInPlace) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&mark_changed>());
  }
}

}  // namespace gsa::binding
