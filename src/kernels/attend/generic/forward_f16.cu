#include "kernels/attend/generic/forward.cuh"

namespace gsa::cuda::generic {

void launch_forward_f16(const ForwardParams& params, int tiles, cudaStream_t stream) {
  launch_forward<__half>(params, tiles, stream);
}

}  // namespace gsa::cuda::generic
