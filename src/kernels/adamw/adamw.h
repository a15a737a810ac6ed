// adamw: one step of AdamW for one parameter, in one pass over memory.
//
//   g = factor gradient,   m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2
//   w <- w - lr (m / c1 / (sqrt(v / c2) + eps) + decay w),   c1 = 1 - b1^n,  c2 = 1 - b2^n,  n = step
//
// w is the master in fp32; where the model holds another type, the result goes there too, rounded.
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "gsa/dtype.h"

namespace gsa {

// Arrays of `count` elements, contiguous.
struct AdamWArgs {
  std::int64_t count = 0;
  DType gradient_type = DType::f32;  // f32, bf16 or f16
  DType weight_type = DType::f32;    // of weight: f32, bf16 or f16
  const void* gradient = nullptr;
  float* master = nullptr;
  float* mean = nullptr;
  float* square = nullptr;
  void* weight = nullptr;  // null: the master is the weight
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, decay = 0;
  double factor = 1;      // of the gradient
  std::int64_t step = 1;  // n, counted from 1
};

void adamw(const AdamWArgs& args, const Parallel& parallel);

// The numbers of a step that all elements share, in the order in which kernels use them.
struct AdamWNumbers {
  float factor, beta1, rest1, beta2, rest2, step_size, root, eps, keep;
};
AdamWNumbers adamw_numbers(const AdamWArgs& args);

// Throws gsa::Error where the arguments do not fit; returns whether there is anything to do.
bool check_adamw(const AdamWArgs& args);

}  // namespace gsa
