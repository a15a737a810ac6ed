// skinny_linear: the product of a few rows with a matrix of weights, together with what stands before and
// behind it in a decoding step. Such a product is bound by reading the weights; what counts is that nothing
// else takes time.
//
//   h = x                                        or x rstd(x) norm, rounded (rms_norm.h)
//   z = h weight^T + bias                        in float, rounded once
//   y = z,   residual + z (rounded),   or silu(g) u of z = [g | u] (swiglu.h)
//
// A row's result has the same bits whatever rows stand beside it, and whatever the device: the order of its
// sum follows from `size` alone.
#pragma once

#include <cstdint>

#include "gsa/dtype.h"

namespace gsa {

inline constexpr std::int64_t kMaxSkinnyRows = 16;

// Tensors are contiguous, aligned to 16 bytes.
struct SkinnyLinearArgs {
  DType dtype = DType::bf16;  // of all tensors: bf16 or f16
  std::int64_t rows = 0;      // at most kMaxSkinnyRows
  std::int64_t size = 0;      // of a row of x; a multiple of 16
  std::int64_t outputs = 0;   // of a row of y
  bool swiglu = false;        // excludes bias and residual
  double eps = 0;             // of the norm

  const void* x = nullptr;         // [rows, size]
  const void* norm = nullptr;      // [size], or null: x as it is
  const void* weight = nullptr;    // [outputs, size]; with swiglu [2 outputs, size]: those of g, those of u
  const void* bias = nullptr;      // [outputs], or null
  const void* residual = nullptr;  // [rows, outputs], or null; may be y
  void* y = nullptr;               // [rows, outputs]

  // Nothing that is still running on the stream writes norm, weight or bias: they may be read before the work
  // in front has ended, which is most of the gain in a chain of products.
  bool settled = false;
};

// Whether skinny_linear takes a product of these sizes on a device with so much shared memory for a block.
// The rows of a normed x lie in shared memory together.
bool skinny_linear_takes(std::int64_t rows, std::int64_t size, bool norm, std::int64_t shared_memory);

}  // namespace gsa
