// cross_entropy on CUDA devices: a block a row. The row is read twice, the second time mostly from L2 (the
// rows under way, 132 times some hundred KB at most, fit), so that memory sees one reading and one writing.
#include "kernels/cross_entropy/cross_entropy_cuda.h"

#include <cmath>

#include "kernels/common/cuda_check.h"
#include "kernels/common/vec.cuh"
#include "kernels/cross_entropy/cross_entropy_checks.h"

namespace gsa::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffffu;

// Maximum and sum of e^(z - maximum) of a part of a row. A maximum of -infinity goes with a sum of 0.
struct Partial {
  float maximum, sum;
};

// e^(z - maximum): within the rounding of float; of 16-bit logits within 2^-20.
template <typename T>
__device__ __forceinline__ float shifted_exp(float z, float maximum) {
  return sizeof(T) == 4 ? expf(z - maximum) : __expf(z - maximum);
}

// NaN wins, wherever it is: fmaxf would drop it, but the sum keeps it.
template <typename T>
__device__ __forceinline__ Partial joined(const Partial& a, const Partial& b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  if (maximum == -INFINITY) return {maximum, a.sum + b.sum};
  return {maximum, a.sum * shifted_exp<T>(a.maximum, maximum) + b.sum * shifted_exp<T>(b.maximum, maximum)};
}

// The whole block's, in an order that the block's shape fixes; every thread gets it.
template <typename T>
__device__ __forceinline__ Partial joined_block(Partial mine) {
  __shared__ Partial warps[kWarps];
  for (int step = 16; step > 0; step /= 2) {
    mine =
        joined<T>(mine, {__shfl_xor_sync(kAll, mine.maximum, step), __shfl_xor_sync(kAll, mine.sum, step)});
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();
  mine = warps[threadIdx.x % kWarps];
  for (int step = kWarps / 2; step > 0; step /= 2) {
    mine =
        joined<T>(mine, {__shfl_xor_sync(kAll, mine.maximum, step), __shfl_xor_sync(kAll, mine.sum, step)});
  }
  return mine;
}

struct Problem {
  std::int64_t classes, ignored;
  const std::int64_t* targets;
  float* loss;
  bool gradient;
};

template <typename T, int width>
__global__ __launch_bounds__(kThreads) void cross_entropy_kernel(Problem problem, T* logits) {
  const std::int64_t token = blockIdx.x;
  const std::int64_t target = problem.targets[token];
  const int vecs = static_cast<int>(problem.classes / width);
  T* const row = logits + token * problem.classes;

  if (target == problem.ignored) {
    if (threadIdx.x == 0) problem.loss[token] = 0;
    if (!problem.gradient) return;
    const Vec<T, width> zero = {};
    for (int p = threadIdx.x; p < vecs; p += kThreads) store_vec<T, width>(row + p * width, zero);
    return;
  }

  Partial partial = {-INFINITY, 0};
  for (int p = threadIdx.x; p < vecs; p += kThreads) {
    const auto z = load_vec<T, width>(row + p * width);
    float maximum = partial.maximum;
#pragma unroll
    for (int i = 0; i < width; ++i) maximum = fmaxf(maximum, to_float(z.value[i]));
    if (maximum == -INFINITY) {  // nothing but -infinity so far, or NaN, which the sum then keeps
#pragma unroll
      for (int i = 0; i < width; ++i) partial.sum += isnan(to_float(z.value[i])) ? NAN : 0.0f;
      continue;
    }
    partial.sum *= shifted_exp<T>(partial.maximum, maximum);
    partial.maximum = maximum;
#pragma unroll
    for (int i = 0; i < width; ++i) partial.sum += shifted_exp<T>(to_float(z.value[i]), maximum);
  }
  partial = joined_block<T>(partial);

  if (threadIdx.x == 0) {
    const bool known = target >= 0 && target < problem.classes;
    const float at_target = known ? to_float(row[target]) : NAN;
    problem.loss[token] = partial.maximum + logf(partial.sum) - at_target;
  }
  if (!problem.gradient) return;
  __syncthreads();  // the target's logit has been read
  const float inverse = 1.0f / partial.sum;
  for (int p = threadIdx.x; p < vecs; p += kThreads) {
    auto z = load_vec<T, width>(row + p * width);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float one = p * width + i == target ? 1.0f : 0.0f;
      z.value[i] = from_float<T>(shifted_exp<T>(to_float(z.value[i]), partial.maximum) * inverse - one);
    }
    store_vec<T, width>(row + p * width, z);
  }
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, const Context& context) {
  constexpr const char* kOp = "cross_entropy";
  check_device(kOp, context.device);
  if (!check_cross_entropy(args)) return;
  with_vec(kOp, args.dtype, {args.classes}, {args.logits}, [&]<typename T, int width>() {
    const Problem problem = {args.classes, args.ignored, args.targets, static_cast<float*>(args.loss),
                             args.gradient};
    cross_entropy_kernel<T, width>
        <<<blocks_for(kOp, args.tokens, 1), kThreads, 0, stream_of(context.stream)>>>(
            problem, static_cast<T*>(args.logits));
    check_launch(kOp);
  });
}

}  // namespace gsa::cuda
