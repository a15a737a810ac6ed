// The score of a (query, key) pair, as the CUDA backend defines it. Every kernel that scores uses these few
// lines, with x accumulated by mma_16x8x16 from zero in ascending steps of 16 dimensions (the head size
// padded with zeros to a multiple of 16); hence prefill, decode and rebuilt masks agree bit for bit.
//
//   sigmoid: I = sum_j w_j/2 + sum_j w_j/2 tanh(scale/2 x_j + bias_j/2), with tanh.approx.f32, whose relative
//            error is at most 2^-11: the score is within H_I 2^-12 of the exact one, and monotone where
//            tanh.approx is
//   relu:    I = sum_j w_j max(scale x_j + bias_j, 0); NaN stays NaN
#pragma once

#include "kernels/common/mma.cuh"
#include "kernels/scores/scores.h"

namespace gsa::cuda {

__device__ __forceinline__ float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float relu_nan(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// What the forms need of a head: factor and offset of x, and the weight of the activation.
template <ScoreForm form>
struct ScoreHead {
  static constexpr float kPart = form == ScoreForm::sigmoid ? 0.5f : 1.0f;

  static __device__ __forceinline__ float factor(float scale) { return kPart * scale; }
  static __device__ __forceinline__ float offset(float bias) { return kPart * bias; }
  static __device__ __forceinline__ float weight(float w) { return kPart * w; }

  // The start of the sum over heads: weights are added in ascending order of heads, from zero.
  static __device__ __forceinline__ float add_weight(float start, float weight) {
    return form == ScoreForm::sigmoid ? __fadd_rn(start, weight) : 0.0f;
  }
  static __device__ __forceinline__ float activation(float factor, float offset, float x) {
    const float argument = __fmaf_rn(x, factor, offset);
    return form == ScoreForm::sigmoid ? tanh_approx(argument) : relu_nan(argument);
  }
  // One head more, in ascending order of heads.
  static __device__ __forceinline__ float add_head(float score, float weight, float factor, float offset,
                                                   float x) {
    return __fmaf_rn(weight, activation(factor, offset, x), score);
  }
};

}  // namespace gsa::cuda
