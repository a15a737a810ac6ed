#include "kernels/decode/cuda/score_launch.cuh"

namespace gsa::cuda::decoding {

void launch_score_f16(const ScoreParams& params, DecodeScores kernel, const DecodeArgs& args,
                      const Context& context) {
  launch_score_of<__half>(params, kernel, args, context);
}

}  // namespace gsa::cuda::decoding
