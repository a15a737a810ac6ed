#include "nn/stored_tensor.h"

#include <cstring>

#include "core/file.h"
#include "model/weight_checks.h"
#include "torch/tensor_checks.h"

namespace gsa::nn {

at::Tensor read_tensor(const WeightSource& source) {
  const StoredTensor& stored = *source.tensor;
  at::Tensor tensor = torch::empty(stored.shape, binding::scalar_type(gsa::dtype_of(stored.type).value()));
  const auto bytes = source.bytes();  // may be unaligned in the file
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

void fold_gate(const AttentionConfig& config, const WeightSource& source, at::Tensor& tensor) {
  const double factor = 1 / config.gate_init;
  tensor.mul_(factor);
  if (!tensor.isfinite().all().item<bool>()) {
    bad_file(source.file_name, concat("tensor '", source.tensor->name, "' to be finite times ", factor),
             "infinity or NaN");
  }
}

}  // namespace gsa::nn
