// gate: y = x * sigmoid(z), element-wise, or with one z for each head.
//
//   dx = dy * sigmoid(z),   dz = dy * x * sigmoid(z) * (1 - sigmoid(z))   (summed over the head when head-wise)
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "gsa/dtype.h"
#include "gsa/tensor_view.h"

namespace gsa {

struct GateShape {
  DType dtype = DType::f32;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t head_size = 0;
  bool head_wise = false;  // z is [tokens, heads] instead of [tokens, heads, head_size]
};

struct GateArgs {
  GateShape shape;
  ConstRows x;  // [tokens, heads, head_size]
  ConstRows z;  // as x; head-wise: [tokens, heads], head_stride is the step between heads
  Rows y;       // as x; may be x itself
};

void gate(const GateArgs& args, const Parallel& parallel);

struct GateBackwardArgs {
  GateShape shape;
  ConstRows x;
  ConstRows z;
  ConstRows dy;
  Rows dx;  // as x
  Rows dz;  // as z
};

void gate_backward(const GateBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
