#include "torch/backend.h"

#include "gsa/error.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/parallel.h"

namespace gsa::binding {

namespace {

class CpuBackend final : public Backend {
 public:
#define GSA_RUN(kernel, Args) \
  void kernel(const Args& args) override { gsa::kernel(args, parallel_); }
  GSA_KERNELS(GSA_RUN)
#undef GSA_RUN

  void attend_backward(const AttendBackwardArgs& args, cuda::Accumulation) override {
    gsa::attend_backward(args, parallel_);
  }
  bool skinny_linear_takes(std::int64_t, std::int64_t, bool) const override { return false; }
  void skinny_linear(const SkinnyLinearArgs&) override {
    throw Error("gsa: skinny_linear has a kernel on CUDA devices alone");
  }
  // Enough work for all threads, and a mask of at most 64 MiB.
  ChunkLimits chunk_limits() const override {
    return {.queries = 2048, .mask_words = (std::int64_t{64} << 20) / 4};
  }

 private:
  TorchParallel parallel_;
};

}  // namespace

std::unique_ptr<Backend> backend_of(const Tensor& tensor) {
  if (tensor.is_cuda()) return cuda_backend(tensor.device());
  return std::make_unique<CpuBackend>();
}

cuda::Accumulation bind_accumulation(const char* op, std::string_view accumulation) {
  if (accumulation == "ordered") return cuda::Accumulation::ordered;
  if (accumulation == "atomic") return cuda::Accumulation::atomic;
  bad_argument(op, "accumulation", "'ordered' or 'atomic'", concat("'", accumulation, "'"));
}

// Whether this library holds the CUDA operators.
TORCH_LIBRARY_FRAGMENT(gsa, m) { m.def("built_with_cuda() -> bool", &cuda_built); }

}  // namespace gsa::binding

namespace gsa::ops {

bool built_with_cuda() { return binding::cuda_built(); }

}  // namespace gsa::ops
