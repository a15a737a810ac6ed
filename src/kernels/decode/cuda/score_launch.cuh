// The score stage: the kernel that the plan chose (decode_plan.h). One file for each storage type compiles the
// kernels.
#pragma once

#include <algorithm>

#include "gsa/error.h"
#include "kernels/decode/cuda/score.cuh"

namespace gsa::cuda::decoding {

template <typename T, typename Key, ScoreForm form, DecodeScores scores>
void launch_score(ScoreParams p, const DecodeArgs& args, const DecodeConfig& config, const Context& context) {
  constexpr DecodeScoreShape kShape = score_shape(scores, sizeof(Key) == 1);
  constexpr bool kAligned = scores != DecodeScores::unaligned;
  using Block = ScoreBlock<kShape.warps, kShape.stages, kShape.blocks>;
  p.block_queries = config.score_queries;
  p.far_queries = config.far_queries;
  const int groups = (p.cache.queries + p.block_queries - 1) / p.block_queries;
  Launch how;
  how.grid = dim3(static_cast<unsigned>(p.segment_stride), static_cast<unsigned>(args.sequences),
                  static_cast<unsigned>(groups));
  how.threads = Block::kWarps * 32;
  how.shared_bytes = config.score_bytes;
  how.overlap = true;
  launch(score_kernel<T, Key, form, kShape.steps, kShape.columns, kAligned, Block>, p, how, context,
         "decode: score");
}

template <typename T, ScoreForm form>
void launch_keys(const ScoreParams& p, const DecodeArgs& args, const DecodeConfig& config,
                 const Context& context) {
  switch (config.scores) {
    case DecodeScores::wide:
      return launch_score<T, T, form, DecodeScores::wide>(p, args, config, context);
    case DecodeScores::narrow:
      return launch_score<T, T, form, DecodeScores::narrow>(p, args, config, context);
    case DecodeScores::any_heads:
      return launch_score<T, T, form, DecodeScores::any_heads>(p, args, config, context);
    case DecodeScores::keys_128:
      return launch_score<T, T, form, DecodeScores::keys_128>(p, args, config, context);
    case DecodeScores::keys_256:
      return launch_score<T, T, form, DecodeScores::keys_256>(p, args, config, context);
    case DecodeScores::unaligned:
      return launch_score<T, T, form, DecodeScores::unaligned>(p, args, config, context);
    case DecodeScores::none:
      break;
  }
  throw Error("gsa: decode has no kernel to score keys with");
}

// The same for keys of 8 bits.
template <typename T, ScoreForm form>
void launch_bytes(const ScoreParams& p, const DecodeArgs& args, const DecodeConfig& config,
                  const Context& context) {
  using Key = std::int8_t;
  switch (config.scores) {
    case DecodeScores::wide:
      return launch_score<T, Key, form, DecodeScores::wide>(p, args, config, context);
    case DecodeScores::narrow:
      return launch_score<T, Key, form, DecodeScores::narrow>(p, args, config, context);
    case DecodeScores::keys_256:
      return launch_score<T, Key, form, DecodeScores::keys_256>(p, args, config, context);
    case DecodeScores::unaligned:
      return launch_score<T, Key, form, DecodeScores::unaligned>(p, args, config, context);
    case DecodeScores::none:
    case DecodeScores::any_heads:
    case DecodeScores::keys_128:
      break;
  }
  throw Error("gsa: decode has no kernel to score keys of 8 bits with");
}

template <typename T, ScoreForm form>
void launch_form(const ScoreParams& p, const DecodeArgs& args, const DecodeConfig& config,
                 const Context& context) {
  if (p.k.scale == nullptr) {
    launch_keys<T, form>(p, args, config, context);
  } else {
    launch_bytes<T, form>(p, args, config, context);
  }
}

template <typename T>
void launch_score_of(const ScoreParams& p, const DecodeArgs& args, const DecodeConfig& config,
                     const Context& context) {
  if (args.form == ScoreForm::sigmoid) {
    launch_form<T, ScoreForm::sigmoid>(p, args, config, context);
  } else {
    launch_form<T, ScoreForm::relu>(p, args, config, context);
  }
}

// One file each.
void launch_score_bf16(const ScoreParams& params, const DecodeArgs& args, const DecodeConfig& config,
                       const Context& context);
void launch_score_f16(const ScoreParams& params, const DecodeArgs& args, const DecodeConfig& config,
                      const Context& context);

}  // namespace gsa::cuda::decoding
