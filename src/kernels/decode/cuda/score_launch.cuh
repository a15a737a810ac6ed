// The score stage: the kernel that the plan chose (decode_plan.h). One file for each storage type compiles the
// kernels.
#pragma once

#include <algorithm>

#include "gsa/error.h"
#include "kernels/decode/cuda/score.cuh"

namespace gsa::cuda::decoding {

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

template <typename T, ScoreForm form>
void launch_keys(const ScoreParams& p, DecodeScores kernel, const DecodeArgs& args, const Context& context) {
  using Narrow = ScoreBlock<4, 2, 8>;
  switch (kernel) {
    case DecodeScores::wide:
      return launch_score<T, T, form, 4, 4, true, ScoreBlock<16, 2, 2>>(p, args, context);
    case DecodeScores::narrow:
      return launch_score<T, T, form, 4, 4, true, Narrow>(p, args, context);
    case DecodeScores::any_heads:
      return launch_score<T, T, form, 4, 0, true, Narrow>(p, args, context);
    case DecodeScores::keys_128:
      return launch_score<T, T, form, 8, 0, true, ScoreBlock<8, 2, 1>>(p, args, context);
    case DecodeScores::keys_256:
      return launch_score<T, T, form, 16, 0, true, ScoreBlock<8, 1, 1>>(p, args, context);
    case DecodeScores::unaligned:
      return launch_score<T, T, form, 16, 0, false, ScoreBlock<8, 1, 1>>(p, args, context);
    case DecodeScores::none:
      break;
  }
  throw Error("gsa: decode has no kernel to score keys with");
}

// The same for keys of 8 bits, twice as many at a time.
template <typename T, ScoreForm form>
void launch_bytes(const ScoreParams& p, DecodeScores kernel, const DecodeArgs& args, const Context& context) {
  using Key = std::int8_t;
  switch (kernel) {
    case DecodeScores::wide:
      return launch_score<T, Key, form, 4, 4, true, ScoreBlock<16, 4, 2>>(p, args, context);
    case DecodeScores::narrow:
      return launch_score<T, Key, form, 4, 4, true, ScoreBlock<4, 4, 8>>(p, args, context);
    case DecodeScores::keys_256:
      return launch_score<T, Key, form, 16, 0, true, ScoreBlock<8, 2, 1>>(p, args, context);
    case DecodeScores::unaligned:
      return launch_score<T, Key, form, 16, 0, false, ScoreBlock<8, 1, 1>>(p, args, context);
    case DecodeScores::none:
    case DecodeScores::any_heads:
    case DecodeScores::keys_128:
      break;
  }
  throw Error("gsa: decode has no kernel to score keys of 8 bits with");
}

template <typename T, ScoreForm form>
void launch_form(const ScoreParams& p, DecodeScores kernel, const DecodeArgs& args, const Context& context) {
  if (p.k.scale == nullptr) {
    launch_keys<T, form>(p, kernel, args, context);
  } else {
    launch_bytes<T, form>(p, kernel, args, context);
  }
}

template <typename T>
void launch_score_of(const ScoreParams& p, DecodeScores kernel, const DecodeArgs& args,
                     const Context& context) {
  if (args.form == ScoreForm::sigmoid) {
    launch_form<T, ScoreForm::sigmoid>(p, kernel, args, context);
  } else {
    launch_form<T, ScoreForm::relu>(p, kernel, args, context);
  }
}

// One file each.
void launch_score_bf16(const ScoreParams& params, DecodeScores kernel, const DecodeArgs& args,
                       const Context& context);
void launch_score_f16(const ScoreParams& params, DecodeScores kernel, const DecodeArgs& args,
                      const Context& context);

}  // namespace gsa::cuda::decoding
