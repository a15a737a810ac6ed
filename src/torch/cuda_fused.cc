// The operators of fused.cc on CUDA devices.
#include <torch/library.h>

#include "kernels/adamw/adamw_cuda.h"
#include "kernels/cross_entropy/cross_entropy_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rotary/rotary_cuda.h"
#include "kernels/swiglu/swiglu_cuda.h"
#include "torch/cuda_context.h"
#include "torch/fused_backend.h"

namespace gsa::binding {

namespace {

class CudaFusedBackend final : public FusedBackend {
 public:
  explicit CudaFusedBackend(const at::Device& device) : context_(device) {}

  void rms_norm(const RmsNormArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::rms_norm(args, context); });
  }
  void rms_norm_backward(const RmsNormBackwardArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::rms_norm_backward(args, context); });
  }
  void rotary(const RotaryArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::rotary(args, context); });
  }
  void rotary_backward(const RotaryBackwardArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::rotary_backward(args, context); });
  }
  void swiglu(const SwigluArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::swiglu(args, context); });
  }
  void swiglu_backward(const SwigluBackwardArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::swiglu_backward(args, context); });
  }
  void cross_entropy(const CrossEntropyArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::cross_entropy(args, context); });
  }
  void adamw(const AdamWArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::adamw(args, context); });
  }

 private:
  CudaContext context_;
};

}  // namespace

std::unique_ptr<FusedBackend> cuda_fused_backend(const at::Device& device) {
  return std::make_unique<CudaFusedBackend>(device);
}

TORCH_LIBRARY_IMPL(gsa, CUDA, m) { implement_fused(m); }

}  // namespace gsa::binding
