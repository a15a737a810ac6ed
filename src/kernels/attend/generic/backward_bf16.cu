#include "kernels/attend/generic/backward.cuh"

namespace gsa::cuda::generic {

void launch_backward_bf16(const BackwardParams& params, int warps, cudaStream_t stream) {
  launch_backward<__nv_bfloat16>(params, warps, stream);
}

}  // namespace gsa::cuda::generic
