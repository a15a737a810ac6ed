// Argument checks of select, the same on every device. Each returns whether there is anything to do.
#pragma once

#include "gsa/error.h"
#include "kernels/common/checks.h"
#include "kernels/scores/checks.h"
#include "kernels/select/select.h"

namespace gsa {

// in_pages: whether the backend reads keys that lie in pages or have 8 bits.
inline bool check_select(const SelectArgs& args, bool in_pages = false) {
  constexpr const char* kOp = "select";
  check::sequences(kOp, args.sequences);
  check::indexer(kOp, args.indexer, args.sequences, in_pages);
  check::budget(kOp, args.budget);
  check::mask(kOp, args.mask, args.sequences);
  return args.sequences.total_queries() > 0;
}

inline bool check_select_mask(const SelectMaskArgs& args, bool in_pages = false) {
  constexpr const char* kOp = "select_mask";
  check::sequences(kOp, args.sequences);
  check::indexer(kOp, args.indexer, args.sequences, in_pages);
  check::mask(kOp, args.mask, args.sequences);
  if (args.sequences.total_queries() == 0) return false;
  check::not_null(kOp, "mask", args.mask.words);
  check::not_null(kOp, "threshold", args.threshold);
  check::not_null(kOp, "tie_cut", args.tie_cut);
  return true;
}

inline bool check_index_scores(const IndexScoresArgs& args, bool in_pages = false) {
  constexpr const char* kOp = "index_scores";
  check::sequences(kOp, args.sequences);
  check::indexer(kOp, args.indexer, args.sequences, in_pages);
  if (args.sequences.total_queries() == 0) return false;
  check::not_null(kOp, "scores", args.scores);
  for (std::int64_t n = 0; n < args.sequences.count; ++n) {
    if (args.scores_stride < args.sequences.keys(n)) {
      bad_argument(kOp, "scores_stride",
                   concat("at least the keys of sequence ", n, " = ", args.sequences.keys(n)),
                   concat(args.scores_stride));
    }
  }
  return true;
}

}  // namespace gsa
