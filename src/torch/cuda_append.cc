// append on CUDA devices.
#include <torch/library.h>

#include "kernels/append/append_cuda.h"
#include "torch/append.h"
#include "torch/cuda_context.h"

namespace gsa::binding {

namespace {

BoundAppend append_cuda(const ops::AppendInputs& inputs) {
  CudaContext current(inputs.x.device());
  BoundAppend bound = bind_append(inputs);
  current.run([&](const cuda::Context& context) { cuda::append(bound.args, context); });
  return bound;
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, CUDA, m) { m.impl("append", &append_by<append_cuda>); }

}  // namespace gsa::binding
