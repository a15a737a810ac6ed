// The operators on CUDA devices: the same bindings as on the CPU, with the kernels of the GPU behind them.
#include <torch/library.h>

#include "kernels/attend_lse/attend_lse_cuda.h"
#include "kernels/gate/gate_cuda.h"
#include "kernels/indexer_kl/indexer_kl_cuda.h"
#include "kernels/select/select_cuda.h"
#include "torch/backend.h"
#include "torch/cuda_context.h"
#include "torch/operators.h"

namespace gsa::binding {

namespace {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const at::Device& device) : context_(device) {}

  void select(const SelectArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::select(args, context); });
  }
  void select_mask(const SelectMaskArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::select_mask(args, context); });
  }
  void index_scores(const IndexScoresArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::index_scores(args, context); });
  }
  void attend(const AttendArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::attend(args, context); });
  }
  void attend_backward(const AttendBackwardArgs& args, cuda::Accumulation accumulation) override {
    context_.run([&](const cuda::Context& context) { cuda::attend_backward(args, accumulation, context); });
  }
  void attend_lse(const AttendLseArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::attend_lse(args, context); });
  }
  void gate(const GateArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::gate(args, context); });
  }
  void gate_backward(const GateBackwardArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::gate_backward(args, context); });
  }
  void indexer_kl(const IndexerKlArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::indexer_kl(args, context); });
  }
  void indexer_kl_backward(const IndexerKlBackwardArgs& args) override {
    context_.run([&](const cuda::Context& context) { cuda::indexer_kl_backward(args, context); });
  }
  // As many queries as a mask of 256 MiB holds, and never so few that multiprocessors stand idle: at 1M
  // tokens the mask is 2 GiB.
  ChunkLimits chunk_limits() const override {
    return {.queries = kMaxTokens, .mask_words = (std::int64_t{256} << 20) / 4, .least = 16384};
  }

 private:
  CudaContext context_;
};

}  // namespace

std::unique_ptr<Backend> cuda_backend(const at::Device& device) {
  return std::make_unique<CudaBackend>(device);
}

// Whether this library holds the CUDA operators.
TORCH_LIBRARY_FRAGMENT(gsa, m) {
  m.def("built_with_cuda() -> bool", [] { return true; });
}

TORCH_LIBRARY_IMPL(gsa, CUDA, m) { implement_operators(m); }

}  // namespace gsa::binding
