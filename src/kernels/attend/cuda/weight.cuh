// The weights of attention in the backward pass.
#pragma once

namespace gsa::cuda {

// 2^x of a weight that is rebuilt from its log-sum-exp: at most 1, as x is above 0 in rounding alone (of
// logits so large that it would end in infinities); NaN stays.
__device__ __forceinline__ float rebuilt_weight(float x) {
  float result;
  asm("{ .reg .f32 b; min.NaN.f32 b, %1, 0f00000000; ex2.approx.ftz.f32 %0, b; }" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace gsa::cuda
