#include "kernels/decode/cuda/score_launch.cuh"

namespace gsa::cuda::decoding {

void launch_score_bf16(const ScoreParams& params, const DecodeArgs& args, const DecodeConfig& config,
                       const Context& context) {
  launch_score_of<__nv_bfloat16>(params, args, config, context);
}

}  // namespace gsa::cuda::decoding
