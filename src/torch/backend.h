// The kernels of one device, called on arguments whose memory lies there. Operators are written once against
// this; which backend they get is decided by the device of their first tensor.
#pragma once

#include <memory>
#include <string_view>

#include "kernels/attend/attend.h"
#include "kernels/attend/attend_cuda.h"
#include "kernels/attend_lse/attend_lse.h"
#include "kernels/gate/gate.h"
#include "kernels/indexer_kl/indexer_kl.h"
#include "kernels/select/select.h"
#include "torch/chunks.h"
#include "torch/tensor_checks.h"

namespace gsa::binding {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual void select(const SelectArgs& args) = 0;
  virtual void select_mask(const SelectMaskArgs& args) = 0;
  virtual void index_scores(const IndexScoresArgs& args) = 0;
  virtual void attend(const AttendArgs& args) = 0;
  virtual void attend_backward(const AttendBackwardArgs& args, cuda::Accumulation accumulation) = 0;
  virtual void attend_lse(const AttendLseArgs& args) = 0;
  virtual void gate(const GateArgs& args) = 0;
  virtual void gate_backward(const GateBackwardArgs& args) = 0;
  virtual void indexer_kl(const IndexerKlArgs& args) = 0;
  virtual void indexer_kl_backward(const IndexerKlBackwardArgs& args) = 0;

  // How much of a mask operators hold at a time.
  virtual ChunkLimits chunk_limits() const = 0;
};

// For the device of this tensor, the first of a call. On a CUDA device work is enqueued on torch's current
// stream, and the device is the current one while the backend lives.
std::unique_ptr<Backend> backend_of(const Tensor& tensor);

// Defined in cuda_backend.cc, or in cuda_absent.cc where the CUDA operators are not built.
std::unique_ptr<Backend> cuda_backend(const at::Device& device);

// "ordered": sums over queries run in a fixed order. "atomic": as they come, faster on a GPU and not
// reproducible there; on the CPU the same thing.
cuda::Accumulation bind_accumulation(const char* op, std::string_view accumulation);

}  // namespace gsa::binding
