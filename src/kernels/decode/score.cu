// The score stage: which kernel runs.
#include "kernels/decode/score.cuh"

#include <algorithm>

#include "gsa/error.h"

namespace gsa::cuda::decoding {
namespace {

int padded_columns(int heads) { return heads <= 2 ? 2 : heads <= 4 ? 4 : (heads + 7) / 8 * 8; }

bool aligned(const ConstPages& pages, std::int64_t size) {
  return reinterpret_cast<std::uintptr_t>(pages.data) % 16 == 0 && pages.page_stride % 8 == 0 &&
         pages.token_stride % 8 == 0 && size % 8 == 0;
}

template <typename T, ScoreForm form, int steps, int fixed_columns, bool aligned, class Block>
void launch_score(ScoreParams p, const DecodeArgs& args, const Context& context) {
  // Queries of a block: as many as fit beside the keys, but at least one.
  const auto bytes_for = [&](int queries) {
    return static_cast<std::size_t>(
        ScoreLayout(steps, p.columns, queries, p.far_queries, Block::kWarps * Block::kStages).bytes);
  };
  constexpr std::size_t kComfortable = 96 * 1024;  // two blocks a multiprocessor
  p.block_queries = static_cast<int>(std::min<std::int64_t>(args.queries, kScoreQueries));
  while (p.block_queries > 1 && bytes_for(p.block_queries) > kComfortable) --p.block_queries;
  p.far_queries = bytes_for(p.block_queries) > context.device.shared_memory;
  const int groups = (p.cache.queries + p.block_queries - 1) / p.block_queries;
  Launch how;
  how.grid = dim3(static_cast<unsigned>(p.segment_stride), static_cast<unsigned>(args.sequences),
                  static_cast<unsigned>(groups));
  how.threads = Block::kWarps * 32;
  how.shared_bytes = bytes_for(p.block_queries);
  launch(score_kernel<T, form, steps, fixed_columns, aligned, Block>, p, how, context, "decode: score");
}

template <typename T, ScoreForm form>
void launch_sized(const ScoreParams& p, const DecodeArgs& args, const Context& context) {
  using Wide = ScoreBlock<16, 2, 2>;
  using Narrow = ScoreBlock<4, 2, 8>;
  if (!aligned(args.index_k, args.index_head_size)) {
    launch_score<T, form, 16, 0, false, ScoreBlock<8, 1, 1>>(p, args, context);
  } else if (p.head_size <= 64 && p.columns == 4) {
    // Wide blocks where there are too few to fill the device, narrow ones else.
    if (p.segment_stride * args.sequences <= 3 * context.device.multiprocessors) {
      launch_score<T, form, 4, 4, true, Wide>(p, args, context);
    } else {
      launch_score<T, form, 4, 4, true, Narrow>(p, args, context);
    }
  } else if (p.head_size <= 64) {
    launch_score<T, form, 4, 0, true, Narrow>(p, args, context);
  } else if (p.head_size <= 128) {
    launch_score<T, form, 8, 0, true, ScoreBlock<8, 2, 1>>(p, args, context);
  } else {
    launch_score<T, form, 16, 0, true, ScoreBlock<8, 1, 1>>(p, args, context);
  }
}

template <typename T>
void launch_typed(const ScoreParams& p, const DecodeArgs& args, const Context& context) {
  if (args.form == ScoreForm::sigmoid) {
    launch_sized<T, ScoreForm::sigmoid>(p, args, context);
  } else {
    launch_sized<T, ScoreForm::relu>(p, args, context);
  }
}

}  // namespace

void score(const DecodeArgs& args, const Scratch& scratch, const Context& context) {
  ScoreParams p = {};
  p.cache = cache_of(args);
  p.k = args.index_k.data;
  p.page_stride = args.index_k.page_stride;
  p.token_stride = args.index_k.token_stride;
  p.q = args.index_q.data;
  p.q_token_stride = args.index_q.token_stride;
  p.q_head_stride = args.index_q.head_stride;
  p.w = args.index_w.data;
  p.w_token_stride = args.index_w.token_stride;
  p.w_head_stride = args.index_w.head_stride;
  p.bias = args.index_bias;
  p.scale = static_cast<float>(args.index_scale);
  p.heads = static_cast<int>(args.index_heads);
  p.head_size = static_cast<int>(args.index_head_size);
  p.columns = padded_columns(p.heads);
  p.scores = scratch.scores;
  p.score_stride = scratch.score_stride;
  p.segments = scratch.segments;
  p.segment_stride = scratch.segment_stride;
  if (args.shape.dtype == DType::bf16) {
    launch_typed<__nv_bfloat16>(p, args, context);
  } else {
    launch_typed<__half>(p, args, context);
  }
}

}  // namespace gsa::cuda::decoding
