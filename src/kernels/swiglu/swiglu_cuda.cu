// swiglu on CUDA devices: bound by memory, one vector of g and the one of u that belongs to it a thread.
#include "kernels/swiglu/swiglu_cuda.h"

#include "kernels/common/cuda_check.h"
#include "kernels/common/vec.cuh"
#include "kernels/swiglu/swiglu_checks.h"

namespace gsa::cuda {
namespace {

constexpr int kThreads = 256;

// __fdividef(1, 1 + inf) is 0, so that a gate far below zero gives g * 0.
template <typename T, int width>
__global__ __launch_bounds__(kThreads) void swiglu_kernel(std::int64_t vecs, unsigned row_vecs,
                                                          const T* __restrict__ x, T* __restrict__ y) {
  const std::int64_t vec = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (vec >= vecs) return;
  const std::int64_t row = vec / row_vecs, size = std::int64_t(row_vecs) * width;
  const T* const from = x + vec * width + row * size;  // rows of x are twice as long
  auto g = load_vec<T, width>(from);
  const auto u = load_vec<T, width>(from + size);
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const float gate = to_float(g.value[i]);
    g.value[i] = from_float<T>(gate * vec_sigmoid<T>(gate) * to_float(u.value[i]));
  }
  store_vec<T, width>(y + vec * width, g);
}

template <typename T, int width>
__global__ __launch_bounds__(kThreads) void swiglu_backward_kernel(std::int64_t vecs, unsigned row_vecs,
                                                                   const T* __restrict__ x,
                                                                   const T* __restrict__ dy,
                                                                   T* __restrict__ dx) {
  const std::int64_t vec = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (vec >= vecs) return;
  const std::int64_t row = vec / row_vecs, size = std::int64_t(row_vecs) * width;
  const std::int64_t offset = vec * width + row * size;
  auto g = load_vec<T, width>(x + offset);
  auto u = load_vec<T, width>(x + offset + size);
  const auto d = load_vec<T, width>(dy + vec * width);
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const float gate = to_float(g.value[i]), up = to_float(u.value[i]);
    const float open = vec_sigmoid<T>(gate), back = to_float(d.value[i]) * open;
    g.value[i] = from_float<T>(back * up * (1.0f + gate * (1.0f - open)));
    u.value[i] = from_float<T>(back * gate);
  }
  store_vec<T, width>(dx + offset, g);
  store_vec<T, width>(dx + offset + size, u);
}

}  // namespace

void swiglu(const SwigluArgs& args, const Context& context) {
  constexpr const char* kOp = "swiglu";
  check_device(kOp, context.device);
  if (!check_swiglu(args)) return;
  with_vec(kOp, args.shape.dtype, {args.shape.size}, {args.x, args.y}, [&]<typename T, int width>() {
    const std::int64_t row = args.shape.size / width, vecs = args.shape.tokens * row;
    check::in_range(kOp, "size", row, 1, INT_MAX);
    swiglu_kernel<T, width><<<blocks_for(kOp, vecs, kThreads), kThreads, 0, stream_of(context.stream)>>>(
        vecs, static_cast<unsigned>(row), static_cast<const T*>(args.x), static_cast<T*>(args.y));
    check_launch(kOp);
  });
}

void swiglu_backward(const SwigluBackwardArgs& args, const Context& context) {
  constexpr const char* kOp = "swiglu_backward";
  check_device(kOp, context.device);
  if (!check_swiglu_backward(args)) return;
  with_vec(kOp, args.shape.dtype, {args.shape.size}, {args.x, args.dy, args.dx},
           [&]<typename T, int width>() {
             const std::int64_t row = args.shape.size / width, vecs = args.shape.tokens * row;
             check::in_range(kOp, "size", row, 1, INT_MAX);
             swiglu_backward_kernel<T, width>
                 <<<blocks_for(kOp, vecs, kThreads), kThreads, 0, stream_of(context.stream)>>>(
                     vecs, static_cast<unsigned>(row), static_cast<const T*>(args.x),
                     static_cast<const T*>(args.dy), static_cast<T*>(args.dx));
             check_launch(kOp);
           });
}

}  // namespace gsa::cuda
