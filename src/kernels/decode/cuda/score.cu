// The score stage: its parameters.
#include "kernels/decode/cuda/score_launch.cuh"

namespace gsa::cuda::decoding {

void score(const DecodeArgs& args, const DecodeConfig& config, const Scratch& scratch,
           const Context& context) {
  ScoreParams p = {};
  p.cache = cache_of(args);
  p.k = {args.index_k.data,  args.index_k.page_stride,  args.index_k.token_stride,
         args.index_k_scale, args.index_k_scale_stride, static_cast<int>(args.index_head_size)};
  p.q = args.index_q.data;
  p.q_token_stride = args.index_q.token_stride;
  p.q_head_stride = args.index_q.head_stride;
  p.w = args.index_w.data;
  p.w_token_stride = args.index_w.token_stride;
  p.w_head_stride = args.index_w.head_stride;
  p.bias = args.index_bias;
  p.scale = static_cast<float>(args.index_scale);
  p.heads = static_cast<int>(args.index_heads);
  p.columns = padded_columns(p.heads);
  p.scores = scratch.scores;
  p.score_stride = scratch.score_stride;
  p.segments = scratch.segments;
  p.segment_stride = scratch.segment_stride;
  if (args.shape.dtype == DType::bf16) {
    launch_score_bf16(p, args, config, context);
  } else {
    launch_score_f16(p, args, config, context);
  }
}

}  // namespace gsa::cuda::decoding
