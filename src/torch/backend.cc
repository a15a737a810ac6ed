#include "torch/backend.h"

#include "gsa/error.h"
#include "torch/operators.h"
#include "torch/parallel.h"

namespace gsa::binding {

namespace {

class CpuBackend final : public Backend {
 public:
  void select(const SelectArgs& args) override { gsa::select(args, parallel_); }
  void select_mask(const SelectMaskArgs& args) override { gsa::select_mask(args, parallel_); }
  void index_scores(const IndexScoresArgs& args) override { gsa::index_scores(args, parallel_); }
  void attend(const AttendArgs& args) override { gsa::attend(args, parallel_); }
  void attend_backward(const AttendBackwardArgs& args, cuda::Accumulation) override {
    gsa::attend_backward(args, parallel_);
  }
  void attend_lse(const AttendLseArgs& args) override { gsa::attend_lse(args, parallel_); }
  void gate(const GateArgs& args) override { gsa::gate(args, parallel_); }
  void gate_backward(const GateBackwardArgs& args) override { gsa::gate_backward(args, parallel_); }
  void indexer_kl(const IndexerKlArgs& args) override { gsa::indexer_kl(args, parallel_); }
  void indexer_kl_backward(const IndexerKlBackwardArgs& args) override {
    gsa::indexer_kl_backward(args, parallel_);
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

TORCH_LIBRARY_IMPL(gsa, CPU, m) { implement_operators(m); }

}  // namespace gsa::binding
