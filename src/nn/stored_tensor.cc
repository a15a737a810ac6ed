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

void double_weight(at::Tensor& tensor, const WeightSource& source) {
  tensor.mul_(2);
  if (!tensor.isfinite().all().item<bool>()) {
    bad_file(source.file_name, concat("tensor '", source.tensor->name, "' to be finite when doubled"),
             "infinity or NaN");
  }
}

}  // namespace gsa::nn
