// rotary: takes apart the rows of one joint projection [q heads | k heads | v heads] and rotates queries and
// keys by their positions.
//
//   x = [x1 | x2 | rest],  x1 and x2 of `pairs` dimensions each
//   y = [x1 c - x2 s | x2 c + x1 s | rest]      for the heads of q and k;   y = x for those of v
//
// The backward pass rotates back and puts the three together again: dx = [y1 c + y2 s | y2 c - y1 s | rest].
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "gsa/dtype.h"

namespace gsa {

// Tensors are contiguous. Real is float, double for f64.
struct RotaryShape {
  DType dtype = DType::f32;
  std::int64_t tokens = 0;
  std::int64_t q_heads = 0, k_heads = 0, v_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t pairs = 0;  // at most head_size / 2; 0: nothing is rotated
};

struct RotaryArgs {
  RotaryShape shape;
  const void* x = nullptr;    // [tokens, (q_heads + k_heads + v_heads) head_size]
  const void* cos = nullptr;  // Real [tokens, pairs], like sin; null where pairs is 0
  const void* sin = nullptr;
  void* q = nullptr;  // [tokens, q_heads, head_size]; null where there are no such heads, like the next
  void* k = nullptr;  // [tokens, k_heads, head_size]
  void* v = nullptr;  // [tokens, v_heads, head_size]
};

void rotary(const RotaryArgs& args, const Parallel& parallel);

struct RotaryBackwardArgs {
  RotaryShape shape;
  const void* dq = nullptr;  // as q, k, v
  const void* dk = nullptr;
  const void* dv = nullptr;
  const void* cos = nullptr;
  const void* sin = nullptr;
  void* dx = nullptr;  // as x
};

void rotary_backward(const RotaryBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
