#include "kernels/attend/generic/backward.cuh"

namespace gsa::cuda::generic {

void launch_backward_f16(const BackwardParams& params, int warps, cudaStream_t stream) {
  launch_backward<__half>(params, warps, stream);
}

}  // namespace gsa::cuda::generic
