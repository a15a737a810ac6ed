// cross_entropy: the loss of rows of logits and, in their place, its gradient.
//
//   loss_t = log sum_j e^(z_tj) - z_t,target      z_tj <- softmax(z_t)_j - [j = target]
//
// A row whose target is `ignored` has loss 0 and gradient 0. Any other target outside 0 .. classes - 1 is an
// error on the CPU; on a CUDA device, where a look would be a wait, it gives a loss of NaN.
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "gsa/dtype.h"

namespace gsa {

struct CrossEntropyArgs {
  DType dtype = DType::f32;
  std::int64_t tokens = 0;
  std::int64_t classes = 0;
  void* logits = nullptr;                 // [tokens, classes], contiguous; overwritten where gradient is set
  const std::int64_t* targets = nullptr;  // [tokens]
  std::int64_t ignored = -100;
  bool gradient = false;
  void* loss = nullptr;  // Real [tokens]: float, double for f64
};

void cross_entropy(const CrossEntropyArgs& args, const Parallel& parallel);

}  // namespace gsa
