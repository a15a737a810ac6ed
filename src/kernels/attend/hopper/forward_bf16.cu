#include "kernels/attend/hopper/forward.cuh"

namespace gsa::cuda::forward {

void launch_bf16(const Params& params, const AttendConfig& config, int head_size, bool dense,
                 int multiprocessors, cudaStream_t stream) {
  launch_type<__nv_bfloat16>(params, config, head_size, dense, multiprocessors, stream);
}

}  // namespace gsa::cuda::forward
