// The score stage: which kernel runs. One file for each storage type compiles the kernels.
#pragma once

#include <algorithm>

#include "gsa/error.h"
#include "kernels/decode/cuda/score.cuh"

namespace gsa::cuda::decoding {

// Whether rows of keys, and scales, may be read 16 bytes at a time.
inline bool keys_aligned(const DecodeArgs& args) {
  const auto at_16 = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  const std::int64_t chunk = args.index_k_scale != nullptr ? 16 : 8;
  const ConstPages& k = args.index_k;
  return at_16(k.data) && k.page_stride % chunk == 0 && k.token_stride % chunk == 0 &&
         args.index_head_size % chunk == 0 && at_16(args.index_k_scale) && args.index_k_scale_stride % 4 == 0;
}

template <typename T, typename Key, ScoreForm form, int steps, int fixed_columns, bool aligned, class Block>
void launch_score(ScoreParams p, const DecodeArgs& args, const Context& context) {
  // Queries of a block: as many as fit beside the keys, but at least one.
  const auto bytes_for = [&](int queries) {
    constexpr int kRing = Block::kWarps * Block::kStages * KeyTile<T, Key, steps, aligned>::kBytes;
    return static_cast<std::size_t>(ScoreLayout(steps, p.columns, queries, p.far_queries, kRing).bytes);
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
  how.overlap = true;
  launch(score_kernel<T, Key, form, steps, fixed_columns, aligned, Block>, p, how, context, "decode: score");
}

// Keys of 64 dimensions and four heads are what models have: large blocks where there are too few to fill the
// device, small ones else. Other shapes share fewer kernels.
template <typename T, ScoreForm form>
void launch_keys(const ScoreParams& p, const DecodeArgs& args, const Context& context) {
  using Wide = ScoreBlock<16, 2, 2>;
  using Narrow = ScoreBlock<4, 2, 8>;
  const bool few = p.segment_stride * args.sequences <= 3 * context.device.multiprocessors;
  if (!keys_aligned(args)) {
    launch_score<T, T, form, 16, 0, false, ScoreBlock<8, 1, 1>>(p, args, context);
  } else if (p.k.head_size <= 64 && p.columns == 4) {
    few ? launch_score<T, T, form, 4, 4, true, Wide>(p, args, context)
        : launch_score<T, T, form, 4, 4, true, Narrow>(p, args, context);
  } else if (p.k.head_size <= 64) {
    launch_score<T, T, form, 4, 0, true, Narrow>(p, args, context);
  } else if (p.k.head_size <= 128) {
    launch_score<T, T, form, 8, 0, true, ScoreBlock<8, 2, 1>>(p, args, context);
  } else {
    launch_score<T, T, form, 16, 0, true, ScoreBlock<8, 1, 1>>(p, args, context);
  }
}

// The same for keys of 8 bits, twice as many at a time.
template <typename T, ScoreForm form>
void launch_bytes(const ScoreParams& p, const DecodeArgs& args, const Context& context) {
  using Wide = ScoreBlock<16, 4, 2>;
  using Narrow = ScoreBlock<4, 4, 8>;
  const bool few = p.segment_stride * args.sequences <= 3 * context.device.multiprocessors;
  if (!keys_aligned(args)) {
    launch_score<T, std::int8_t, form, 16, 0, false, ScoreBlock<8, 1, 1>>(p, args, context);
  } else if (p.k.head_size <= 64 && p.columns == 4) {
    few ? launch_score<T, std::int8_t, form, 4, 4, true, Wide>(p, args, context)
        : launch_score<T, std::int8_t, form, 4, 4, true, Narrow>(p, args, context);
  } else {
    launch_score<T, std::int8_t, form, 16, 0, true, ScoreBlock<8, 2, 1>>(p, args, context);
  }
}

template <typename T, ScoreForm form>
void launch_form(const ScoreParams& p, const DecodeArgs& args, const Context& context) {
  if (p.k.scale == nullptr) {
    launch_keys<T, form>(p, args, context);
  } else {
    launch_bytes<T, form>(p, args, context);
  }
}

template <typename T>
void launch_score_of(const ScoreParams& p, const DecodeArgs& args, const Context& context) {
  if (args.form == ScoreForm::sigmoid) {
    launch_form<T, ScoreForm::sigmoid>(p, args, context);
  } else {
    launch_form<T, ScoreForm::relu>(p, args, context);
  }
}

// One file each.
void launch_score_bf16(const ScoreParams& params, const DecodeArgs& args, const Context& context);
void launch_score_f16(const ScoreParams& params, const DecodeArgs& args, const Context& context);

}  // namespace gsa::cuda::decoding
