// swiglu: y = silu(g) u = g sigmoid(g) u, with g and u side by side as one matrix product gives them.
//
//   du = dy g o,   dg = dy u o (1 + g (1 - o)),   o = sigmoid(g)
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "gsa/dtype.h"

namespace gsa {

// Tensors are contiguous.
struct SwigluShape {
  DType dtype = DType::f32;
  std::int64_t tokens = 0;
  std::int64_t size = 0;
};

struct SwigluArgs {
  SwigluShape shape;
  const void* x = nullptr;  // [tokens, 2 size]: g, then u
  void* y = nullptr;        // [tokens, size]
};

void swiglu(const SwigluArgs& args, const Parallel& parallel);

struct SwigluBackwardArgs {
  SwigluShape shape;
  const void* x = nullptr;   // [tokens, 2 size]
  const void* dy = nullptr;  // [tokens, size]
  void* dx = nullptr;        // [tokens, 2 size]: dg, then du
};

void swiglu_backward(const SwigluBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
