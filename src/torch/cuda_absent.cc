// Tensors on a CUDA device: this library holds the operators of the CPU alone, and says so instead of leaving
// the user with the dispatcher's list of backends.
#include "gsa/error.h"
#include "torch/backend.h"
#include "torch/operators.h"

namespace gsa::binding {

namespace {

void not_built(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto& values = torch::jit::last(*stack, arguments.size());
  std::string argument = arguments[0].name(), device = "a CUDA tensor";
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (values[i].isTensor() && values[i].toTensor().is_cuda()) {
      argument = arguments[i].name();
      device = concat("one on ", values[i].toTensor().device().str());
      break;
    }
  }
  throw Error(concat(op.schema().name(), ": argument '", argument,
                     "': expected a tensor on cpu (the CUDA operators are not built in this library), got ",
                     device));
}

}  // namespace

std::unique_ptr<Backend> cuda_backend(const at::Device& device) {
  throw Error(
      concat("gsa: the CUDA operators are not built in this library, got a tensor on ", device.str()));
}

bool cuda_built() { return false; }

torch::CppFunction cuda_form(torch::CppFunction) {
  return torch::CppFunction::makeFromBoxedFunction<&not_built>();
}

}  // namespace gsa::binding
