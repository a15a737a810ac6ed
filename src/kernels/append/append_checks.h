// Argument checks of append, the same on every device. Returns whether there is anything to do.
#pragma once

#include <limits>

#include "gsa/error.h"
#include "kernels/append/append.h"
#include "kernels/common/checks.h"

namespace gsa {

inline bool check_append(const AppendArgs& args) {
  constexpr const char* kOp = "append";
  constexpr std::int64_t kMaxHeads = 1 << 20;
  check::in_range(kOp, "tokens", args.tokens, 0, std::numeric_limits<std::int32_t>::max());
  check::in_range(kOp, "q_heads", args.q_heads, 1, kMaxHeads);
  check::in_range(kOp, "kv_heads", args.kv_heads, 1, kMaxHeads);
  check::in_range(kOp, "head_size", args.head_size, 1, check::kMaxHeadSize);
  check::in_range(kOp, "pairs", args.pairs, 0, args.head_size / 2);
  check::in_range(kOp, "index_heads", args.index_heads, 0, check::kMaxIndexHeads);
  if (args.index_heads > 0) {
    check::in_range(kOp, "index_head_size", args.index_head_size, 1, check::kMaxHeadSize);
    check::in_range(kOp, "index_pairs", args.index_pairs, 0, args.index_head_size / 2);
  }
  if (args.value_gate != 0 && args.value_gate != args.kv_heads &&
      args.value_gate != args.kv_heads * args.head_size) {
    bad_argument(kOp, "value_gate", "0, one column a head or one a value", concat(args.value_gate));
  }
  const std::int64_t front = (args.q_heads + 2 * args.kv_heads) * args.head_size +
                             (args.index_heads > 0 ? (args.index_heads + 1) * args.index_head_size : 0) +
                             args.value_gate;
  const std::int64_t width = args.index_heads > 0 ? args.index_w_column + args.index_heads : front;
  if (args.index_heads > 0) {
    check::in_range(kOp, "index_w_column", args.index_w_column, front,
                    std::numeric_limits<std::int32_t>::max());
  }
  check::in_range(kOp, "x_stride", args.x_stride, width, std::numeric_limits<std::int32_t>::max());
  if (args.tokens == 0) return false;
  check::not_null(kOp, "x", args.x);
  if (args.pairs > 0) check::not_null(kOp, "cos", args.cos);
  if (args.pairs > 0) check::not_null(kOp, "sin", args.sin);
  check::not_null(kOp, "slots", args.slots);
  check::not_null(kOp, "k", args.k);
  check::not_null(kOp, "v", args.v);
  check::not_null(kOp, "q", args.q);
  if (args.index_heads > 0) {
    if (args.index_pairs > 0) check::not_null(kOp, "index_cos", args.index_cos);
    if (args.index_pairs > 0) check::not_null(kOp, "index_sin", args.index_sin);
    check::not_null(kOp, "index_k", args.index_k);
    check::not_null(kOp, "index_q", args.index_q);
    check::not_null(kOp, "index_w", args.index_w);
  }
  return true;
}

}  // namespace gsa
