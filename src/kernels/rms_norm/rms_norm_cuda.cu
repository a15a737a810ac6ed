// rms_norm on CUDA devices: bound by memory. A row is held in the registers of a warp, or of a whole block
// where it is long, and read once. The weight's gradient is added up in registers over the rows that a block
// treats, then over blocks by a second kernel: a fixed order, without atomics.
#include "kernels/rms_norm/rms_norm_cuda.h"

#include <algorithm>

#include "kernels/common/cuda_check.h"
#include "kernels/common/vec.cuh"
#include "kernels/rms_norm/rms_norm_checks.h"
#include "kernels/rms_norm/rms_norm_plan.h"

namespace gsa::cuda {
namespace {

constexpr int kThreads = kRmsNormThreads;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr std::int64_t kMaxParts = 528;  // of the weight's gradient: blocks of the backward kernel

// How a block's threads share rows: `lanes` threads a row, each with vectors lane, lane + lanes, ...
template <bool block_row>
struct Team {
  static constexpr int kLanes = block_row ? kThreads : 32;
  static constexpr int kRows = kThreads / kLanes;  // a block's, side by side
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ __forceinline__ int row() { return static_cast<int>(threadIdx.x) / kLanes; }

  // The row's sum, the same bits for every thread. All threads of the team call it; `shared` is not in use by
  // an earlier call.
  static __device__ __forceinline__ float sum(float mine, float* shared) {
    for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(kAll, mine, step);
    if constexpr (block_row) {
      if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
      __syncthreads();
      mine = shared[threadIdx.x % kWarps];
      for (int step = kWarps / 2; step > 0; step /= 2) mine += __shfl_xor_sync(kAll, mine, step);
    }
    return mine;
  }
};

struct RowShape {
  std::int64_t tokens;
  int size, row_vecs;
  float eps;
};

template <typename T, int width, int vecs, bool block_row>
__global__ __launch_bounds__(kThreads) void rms_norm_kernel(RowShape shape, const T* __restrict__ x,
                                                            const T* __restrict__ branch,
                                                            const T* __restrict__ weight, T* __restrict__ y,
                                                            T* __restrict__ sum, float* __restrict__ rstd) {
  using Rows = Team<block_row>;
  __shared__ float shared[kWarps];
  const std::int64_t row = std::int64_t(blockIdx.x) * Rows::kRows + Rows::row();
  if (row >= shape.tokens) return;  // a whole team
  const std::int64_t begin = row * shape.size;
  Vec<T, width> s[vecs];
  float square = 0;
#pragma unroll
  for (int n = 0; n < vecs; ++n) {
    const int vec = Rows::lane() + n * Rows::kLanes;
    if (vec >= shape.row_vecs) break;
    s[n] = load_vec<T, width>(x + begin + vec * width);
    if (branch != nullptr) {
      const auto more = load_vec<T, width>(branch + begin + vec * width);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        s[n].value[i] = from_float<T>(to_float(s[n].value[i]) + to_float(more.value[i]));
      }
      store_vec<T, width>(sum + begin + vec * width, s[n]);
    }
#pragma unroll
    for (int i = 0; i < width; ++i) square += to_float(s[n].value[i]) * to_float(s[n].value[i]);
  }
  const float mean = Rows::sum(square, shared) / static_cast<float>(shape.size);
  const float scale = 1.0f / sqrtf(mean + shape.eps);
  if (Rows::lane() == 0) rstd[row] = scale;
#pragma unroll
  for (int n = 0; n < vecs; ++n) {
    const int vec = Rows::lane() + n * Rows::kLanes;
    if (vec >= shape.row_vecs) break;
    const auto w = load_vec<T, width>(weight + vec * width);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      s[n].value[i] = from_float<T>(to_float(s[n].value[i]) * scale * to_float(w.value[i]));
    }
    store_vec<T, width>(y + begin + vec * width, s[n]);
  }
}

template <typename T, int width, int vecs, bool block_row>
__global__ __launch_bounds__(kThreads) void rms_norm_backward_kernel(
    RowShape shape, const T* __restrict__ dy, const T* __restrict__ dsum, const T* __restrict__ sum,
    const T* __restrict__ weight, const float* __restrict__ rstd, T* __restrict__ dx,
    float* __restrict__ parts) {
  using Rows = Team<block_row>;
  __shared__ float shared[2][kWarps];
  extern __shared__ float columns[];  // [rows of a block, size]; one row a block needs none
  Vec<T, width> w[vecs];
  float dweight[vecs][width] = {};
#pragma unroll
  for (int n = 0; n < vecs; ++n) {
    const int vec = Rows::lane() + n * Rows::kLanes;
    if (vec < shape.row_vecs) w[n] = load_vec<T, width>(weight + vec * width);
  }
  int buffer = 0;
  for (std::int64_t row = std::int64_t(blockIdx.x) * Rows::kRows + Rows::row(); row < shape.tokens;
       row += std::int64_t(gridDim.x) * Rows::kRows, buffer ^= 1) {
    const std::int64_t begin = row * shape.size;
    const float scale = rstd[row];
    Vec<T, width> s[vecs], d[vecs], other[vecs];
#pragma unroll
    for (int n = 0; n < vecs; ++n) {
      const int vec = Rows::lane() + n * Rows::kLanes;
      if (vec >= shape.row_vecs) break;
      s[n] = load_vec<T, width>(sum + begin + vec * width);
      d[n] = load_vec<T, width>(dy + begin + vec * width);
      if (dsum != nullptr) other[n] = load_vec<T, width>(dsum + begin + vec * width);
    }
    float dot = 0;
#pragma unroll
    for (int n = 0; n < vecs; ++n) {
      if (Rows::lane() + n * Rows::kLanes >= shape.row_vecs) break;
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float normal = to_float(s[n].value[i]) * scale, back = to_float(d[n].value[i]);
        dweight[n][i] += back * normal;
        dot += back * to_float(w[n].value[i]) * normal;
      }
    }
    const float mean = Rows::sum(dot, shared[buffer]) / static_cast<float>(shape.size);
#pragma unroll
    for (int n = 0; n < vecs; ++n) {
      const int vec = Rows::lane() + n * Rows::kLanes;
      if (vec >= shape.row_vecs) break;
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float normal = to_float(s[n].value[i]) * scale;
        const float back = to_float(d[n].value[i]) * to_float(w[n].value[i]);
        const float from_sum = dsum != nullptr ? to_float(other[n].value[i]) : 0.0f;
        s[n].value[i] = from_float<T>(from_sum + scale * (back - normal * mean));
      }
      store_vec<T, width>(dx + begin + vec * width, s[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < vecs; ++n) {
    const int vec = Rows::lane() + n * Rows::kLanes;
    if (vec >= shape.row_vecs) break;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      float* const to =
          block_row ? parts + std::int64_t(blockIdx.x) * shape.size : columns + Rows::row() * shape.size;
      to[vec * width + i] = dweight[n][i];
    }
  }
  if constexpr (!block_row) {
    __syncthreads();
    for (int c = threadIdx.x; c < shape.size; c += kThreads) {
      float total = 0;
      for (int r = 0; r < Rows::kRows; ++r) total += columns[r * shape.size + c];
      parts[std::int64_t(blockIdx.x) * shape.size + c] = total;
    }
  }
}

// dweight = the sum of the rows of parts. A block treats 32 columns, each warp every kWarps-th row.
__global__ __launch_bounds__(kThreads) void sum_parts_kernel(int count, int size,
                                                             const float* __restrict__ parts,
                                                             float* __restrict__ dweight) {
  __shared__ float sums[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
  float total = 0;
  if (column < size) {
    for (int p = warp; p < count; p += kWarps) total += parts[std::int64_t(p) * size + column];
  }
  sums[warp][lane] = total;
  __syncthreads();
  if (warp > 0 || column >= size) return;
  for (int r = 1; r < kWarps; ++r) total += sums[r][lane];
  dweight[column] = total;
}

// Calls body.operator()<T, width, vectors a thread, whether a block treats a row>(shape).
template <typename Body>
void dispatch(const char* op, const RmsNormShape& shape, std::initializer_list<const void*> pointers,
              const Body& body) {
  const VecConfig vec = choose_vec(shape.dtype, {shape.size}, pointers);
  with_vec(op, shape.dtype, vec, [&]<typename T, int width>() {
    const RmsNormConfig config = choose_rms_norm(op, {.dtype = shape.dtype, .size = shape.size, .vec = vec});
    if (prints_plans()) {
      print_plan(op, concat("rows of ", shape.size, ", ", name_of(shape.dtype)), to_string(config));
    }
    const RowShape rows = {shape.tokens, static_cast<int>(shape.size), static_cast<int>(shape.size / width),
                           static_cast<float>(shape.eps)};
    if (config.block_row) {
      if (config.vecs == 1) return body.template operator()<T, width, 1, true>(rows);
      if (config.vecs == 2) return body.template operator()<T, width, 2, true>(rows);
      return body.template operator()<T, width, 8, true>(rows);
    }
    if (config.vecs == 1) return body.template operator()<T, width, 1, false>(rows);
    return body.template operator()<T, width, 2, false>(rows);
  });
}

}  // namespace

void rms_norm(const RmsNormArgs& args, const Context& context) {
  constexpr const char* kOp = "rms_norm";
  check_device(kOp, context.device);
  if (!check_rms_norm(args)) return;
  dispatch(kOp, args.shape, {args.x, args.branch, args.weight, args.y, args.sum},
           [&]<typename T, int width, int vecs, bool block_row>(const RowShape& shape) {
             const unsigned blocks = blocks_for(kOp, shape.tokens, Team<block_row>::kRows);
             rms_norm_kernel<T, width, vecs, block_row><<<blocks, kThreads, 0, stream_of(context.stream)>>>(
                 shape, static_cast<const T*>(args.x), static_cast<const T*>(args.branch),
                 static_cast<const T*>(args.weight), static_cast<T*>(args.y), static_cast<T*>(args.sum),
                 static_cast<float*>(args.rstd));
             check_launch(kOp);
           });
}

void rms_norm_backward(const RmsNormBackwardArgs& args, const Context& context) {
  constexpr const char* kOp = "rms_norm_backward";
  check_device(kOp, context.device);
  if (!check_rms_norm_backward(args)) return;
  const int size = static_cast<int>(args.shape.size);
  std::int64_t count = 0;
  float* parts = nullptr;
  dispatch(kOp, args.shape, {args.dy, args.dsum, args.sum, args.weight, args.dx},
           [&]<typename T, int width, int vecs, bool block_row>(const RowShape& shape) {
             using Rows = Team<block_row>;
             count = std::min(kMaxParts, (shape.tokens + Rows::kRows - 1) / Rows::kRows);
             if (count == 0) return;
             parts = static_cast<float*>(
                 context.workspace->allocate(static_cast<std::size_t>(count * size) * sizeof(float)));
             const std::size_t columns = block_row ? 0 : Rows::kRows * args.shape.size * sizeof(float);
             rms_norm_backward_kernel<T, width, vecs, block_row>
                 <<<static_cast<unsigned>(count), kThreads, columns, stream_of(context.stream)>>>(
                     shape, static_cast<const T*>(args.dy), static_cast<const T*>(args.dsum),
                     static_cast<const T*>(args.sum), static_cast<const T*>(args.weight),
                     static_cast<const float*>(args.rstd), static_cast<T*>(args.dx), parts);
             check_launch(kOp);
           });
  sum_parts_kernel<<<static_cast<unsigned>((size + 31) / 32), kThreads, 0, stream_of(context.stream)>>>(
      static_cast<int>(count), size, parts, static_cast<float*>(args.dweight));
  check_launch(kOp);
}

}  // namespace gsa::cuda
