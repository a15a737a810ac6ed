// Which kernel of rms_norm runs, from facts alone: no CUDA header, so that choices are tested without a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "gsa/dtype.h"
#include "kernels/common/vec_plan.h"

namespace gsa::cuda {

inline constexpr int kRmsNormThreads = 256;  // of a block

struct RmsNormFacts {
  DType dtype = DType::bf16;
  std::int64_t size = 0;  // of a row
  VecConfig vec;
};

struct RmsNormConfig {
  VecConfig vec;
  int vecs = 0;            // that a thread holds: 1 or 2, of a block's row 8 too
  bool block_row = false;  // a block treats a row, else each of its warps does
};

// Throws gsa::Error, in the operator's name, where a row is too long to be held in registers.
RmsNormConfig choose_rms_norm(const char* op, const RmsNormFacts& facts);

// A line to print, such as "a row a block, 1 vector a thread, vectors of 8 elements: sizes and addresses are
// multiples of 16 bytes".
std::string to_string(const RmsNormConfig& config);

}  // namespace gsa::cuda
