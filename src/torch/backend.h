// The kernels of one device, called on arguments whose memory lies there. Operators are written once against
// this; which backend they get is decided by the device of their first tensor.
#pragma once

#include <memory>
#include <string_view>

#include "kernels/adamw/adamw_cuda.h"
#include "kernels/append/append_cuda.h"
#include "kernels/attend/attend_cuda.h"
#include "kernels/attend_lse/attend_lse_cuda.h"
#include "kernels/cross_entropy/cross_entropy_cuda.h"
#include "kernels/decode/decode_cuda.h"
#include "kernels/gate/gate_cuda.h"
#include "kernels/indexer_kl/indexer_kl_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rotary/rotary_cuda.h"
#include "kernels/select/select_cuda.h"
#include "kernels/skinny_linear/skinny_linear_cuda.h"
#include "kernels/swiglu/swiglu_cuda.h"
#include "torch/chunks.h"
#include "torch/tensor_checks.h"

namespace gsa::binding {

// The kernels that both devices have, and what they take: gsa::<kernel>(args, parallel) on the CPU and
// gsa::cuda::<kernel>(args, context) on a CUDA device.
#define GSA_KERNELS(KERNEL)                          \
  KERNEL(adamw, AdamWArgs)                           \
  KERNEL(append, AppendArgs)                         \
  KERNEL(attend, AttendArgs)                         \
  KERNEL(attend_lse, AttendLseArgs)                  \
  KERNEL(cross_entropy, CrossEntropyArgs)            \
  KERNEL(decode, DecodeArgs)                         \
  KERNEL(gate, GateArgs)                             \
  KERNEL(gate_backward, GateBackwardArgs)            \
  KERNEL(index_scores, IndexScoresArgs)              \
  KERNEL(indexer_kl, IndexerKlArgs)                  \
  KERNEL(indexer_kl_backward, IndexerKlBackwardArgs) \
  KERNEL(rms_norm, RmsNormArgs)                      \
  KERNEL(rms_norm_backward, RmsNormBackwardArgs)     \
  KERNEL(rotary, RotaryArgs)                         \
  KERNEL(rotary_backward, RotaryBackwardArgs)        \
  KERNEL(select, SelectArgs)                         \
  KERNEL(select_mask, SelectMaskArgs)                \
  KERNEL(swiglu, SwigluArgs)                         \
  KERNEL(swiglu_backward, SwigluBackwardArgs)

class Backend {
 public:
  virtual ~Backend() = default;

#define GSA_DECLARE(kernel, Args) virtual void kernel(const Args& args) = 0;
  GSA_KERNELS(GSA_DECLARE)
#undef GSA_DECLARE

  // Devices differ here. The CPU has one way to accumulate, and no kernel for skinny_linear: it takes
  // nothing.
  virtual void attend_backward(const AttendBackwardArgs& args, cuda::Accumulation accumulation) = 0;
  virtual bool skinny_linear_takes(std::int64_t rows, std::int64_t size, bool norm) const = 0;
  virtual void skinny_linear(const SkinnyLinearArgs& args) = 0;

  // How much of a mask operators hold at a time.
  virtual ChunkLimits chunk_limits() const = 0;
};

// For the device of this tensor, the first of a call. On a CUDA device work is enqueued on torch's current
// stream, and the device is the current one while the backend lives.
std::unique_ptr<Backend> backend_of(const Tensor& tensor);

// Defined in cuda_backend.cc, or in cuda_absent.cc where the CUDA operators are not built.
std::unique_ptr<Backend> cuda_backend(const at::Device& device);
bool cuda_built();

// "ordered": deterministic accumulation over queries, in a fixed order. "atomic": non-deterministic, faster
// on a GPU; on the CPU the same thing.
cuda::Accumulation bind_accumulation(const char* op, std::string_view accumulation);

}  // namespace gsa::binding
