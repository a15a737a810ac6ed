// The kernels of one device behind the operators of fused.h (compare backend.h).
#pragma once

#include <torch/library.h>

#include <memory>

#include "kernels/adamw/adamw.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rotary/rotary.h"
#include "kernels/swiglu/swiglu.h"
#include "torch/tensor_checks.h"

namespace gsa::binding {

class FusedBackend {
 public:
  virtual ~FusedBackend() = default;

  virtual void rms_norm(const RmsNormArgs& args) = 0;
  virtual void rms_norm_backward(const RmsNormBackwardArgs& args) = 0;
  virtual void rotary(const RotaryArgs& args) = 0;
  virtual void rotary_backward(const RotaryBackwardArgs& args) = 0;
  virtual void swiglu(const SwigluArgs& args) = 0;
  virtual void swiglu_backward(const SwigluBackwardArgs& args) = 0;
  virtual void cross_entropy(const CrossEntropyArgs& args) = 0;
  virtual void adamw(const AdamWArgs& args) = 0;
};

// Defined in cuda_fused.cc, or in cuda_absent.cc where the CUDA operators are not built.
std::unique_ptr<FusedBackend> cuda_fused_backend(const at::Device& device);

// Registers the operators of fused.cc for a device.
void implement_fused(torch::Library& library);

}  // namespace gsa::binding
