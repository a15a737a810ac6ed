// The operators on CUDA devices: the same functions as on the CPU, with the kernels of the GPU behind them.
#include "torch/backend.h"
#include "torch/cuda_context.h"
#include "torch/operators.h"

namespace gsa::binding {

namespace {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const at::Device& device) : context_(device) {}

#define GSA_RUN(kernel, Args)                                                              \
  void kernel(const Args& args) override {                                                 \
    context_.run([&](const cuda::Context& context) { gsa::cuda::kernel(args, context); }); \
  }
  GSA_KERNELS(GSA_RUN)
#undef GSA_RUN

  void attend_backward(const AttendBackwardArgs& args, cuda::Accumulation accumulation) override {
    context_.run([&](const cuda::Context& context) { cuda::attend_backward(args, accumulation, context); });
  }
  bool skinny_linear_takes(std::int64_t rows, std::int64_t size, bool norm) const override {
    const cuda::Device& facts = context_.device();
    return facts.hopper() &&
           gsa::skinny_linear_takes(rows, size, norm, static_cast<std::int64_t>(facts.shared_memory));
  }
  void skinny_linear(const SkinnyLinearArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::skinny_linear(args, context); });
  }
  // As many queries as a mask of 256 MiB holds, and never so few that multiprocessors stand idle: at 1M
  // tokens the mask is 2 GiB.
  ChunkLimits chunk_limits() const override {
    return {.queries = kMaxTokens, .mask_words = (std::int64_t{256} << 20) / 4, .min_queries = 16384};
  }

 private:
  CudaContext context_;
};

}  // namespace

std::unique_ptr<Backend> cuda_backend(const at::Device& device) {
  return std::make_unique<CudaBackend>(device);
}

bool cuda_built() { return true; }

torch::CppFunction cuda_form(torch::CppFunction function) { return function; }

}  // namespace gsa::binding
