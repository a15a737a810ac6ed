// few_linear as a C++ function. kernels/few_linear/few_linear.h says what it computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace gsa::ops {

struct FewLinearInputs {
  at::Tensor x;                             // [rows, size]
  at::Tensor weight;                        // [outputs, size]; with swiglu [2 outputs, size]
  std::optional<at::Tensor> norm = {};      // [size]: x is normalised first
  std::optional<at::Tensor> bias = {};      // [outputs]
  std::optional<at::Tensor> residual = {};  // [rows, outputs], added to the result
  double eps = 0;                           // of the norm
  bool swiglu = false;
  bool settled = false;  // norm, weight and bias were there before the last kernels on the stream began
};
at::Tensor few_linear(const FewLinearInputs& inputs);  // [rows, outputs]

// Whether there is a kernel for such a product: few rows of 16 bits on a Hopper GPU.
bool few_linear_serves(const at::Device& device, at::ScalarType type, std::int64_t rows, std::int64_t size,
                       bool norm);

}  // namespace gsa::ops
