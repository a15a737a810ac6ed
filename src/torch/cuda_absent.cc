// Tensors on a CUDA device: this library holds the operators of the CPU alone, and says so instead of leaving
// the user with the dispatcher's list of backends.
#include <torch/library.h>

#include "gsa/error.h"
#include "torch/backend.h"
#include "torch/few_linear.h"
#include "torch/fused_backend.h"

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

std::unique_ptr<FusedBackend> cuda_fused_backend(const at::Device& device) {
  throw Error(
      concat("gsa: the CUDA operators are not built in this library, got a tensor on ", device.str()));
}

bool cuda_few_linear_takes(const at::Device&, std::int64_t, std::int64_t, bool) { return false; }

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  m.def("built_with_cuda() -> bool", [] { return false; });
}

TORCH_LIBRARY_IMPL(gsa, CUDA, m) {
  for (const char* name : {"select",
                           "select_mask",
                           "index_scores",
                           "attend",
                           "attend_backward",
                           "attend_lse",
                           "sparse_attend",
                           "sparse_attend_backward",
                           "gate",
                           "gate_backward",
                           "indexer_kl",
                           "indexer_kl_backward",
                           "decode",
                           "append",
                           "few_linear",
                           "rms_norm",
                           "rms_norm_backward",
                           "rotary",
                           "rotary_backward",
                           "swiglu",
                           "swiglu_backward",
                           "cross_entropy_",
                           "adamw_",
                           "sparse_attend_with_mask"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&not_built>());
  }
}

}  // namespace gsa::binding
