// rms_norm: a residual stream takes in a branch and is normalised, in one pass over memory.
//
//   s = x + branch,   y = s rstd w,   rstd = 1 / sqrt(mean(s^2) + eps)
//
// Backward, with n = s rstd and ds the gradient that reaches s from elsewhere:
//   dx = dbranch = ds + rstd (w dy - n mean(w dy n)),   dw = sum over tokens of dy n
//
// s is rounded to the storage type before it is normalised: what is normalised is what the stream holds.
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "gsa/dtype.h"

namespace gsa {

// Tensors are contiguous. Real is float, double for f64.
struct RmsNormShape {
  DType dtype = DType::f32;
  std::int64_t tokens = 0;
  std::int64_t size = 0;
  double eps = 0;
};

struct RmsNormArgs {
  RmsNormShape shape;
  const void* x = nullptr;       // [tokens, size]
  const void* branch = nullptr;  // as x; null: s is x
  const void* weight = nullptr;  // [size]
  void* y = nullptr;             // [tokens, size]
  void* sum = nullptr;           // s, as x; null exactly where branch is
  void* rstd = nullptr;          // Real [tokens]
};

void rms_norm(const RmsNormArgs& args, const Parallel& parallel);

struct RmsNormBackwardArgs {
  RmsNormShape shape;
  const void* dy = nullptr;      // [tokens, size]
  const void* dsum = nullptr;    // ds, [tokens, size]; null: none
  const void* sum = nullptr;     // s
  const void* weight = nullptr;  // [size]
  const void* rstd = nullptr;    // Real [tokens], as rms_norm() wrote it
  void* dx = nullptr;            // [tokens, size]
  void* dweight = nullptr;       // Real [size]
};

void rms_norm_backward(const RmsNormBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
