// gate on CUDA devices: bound by memory. A thread treats vectors of 16 bytes where pointers, strides and
// sizes allow it, else single elements (gate_plan.h).
#include "kernels/gate/gate_cuda.h"

#include <climits>
#include <limits>

#include "core/checked.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/vec.cuh"
#include "kernels/gate/gate_checks.h"
#include "kernels/gate/gate_plan.h"

namespace gsa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVecs = 2;  // a thread's, loaded together
constexpr unsigned kAll = 0xffffffffu;
template <typename T>
constexpr int kRowVecs = gate_row_vecs(sizeof(T));

// Rows of [tokens, heads, size] in vectors.
struct Grid {
  std::int64_t vecs;  // of all rows
  std::int64_t row_vecs;
  std::int64_t heads;
};

struct Place {
  std::int64_t token, head, column;
};

template <int width, bool flat>
__device__ __forceinline__ Place place_of(const Grid& grid, std::int64_t vec) {
  if constexpr (flat) {
    return {0, 0, vec * width};
  } else if (grid.vecs <= INT_MAX) {
    const int row = static_cast<int>(vec) / static_cast<int>(grid.row_vecs);
    const int column = static_cast<int>(vec) - row * static_cast<int>(grid.row_vecs);
    const int token = row / static_cast<int>(grid.heads);
    return {token, row - token * static_cast<int>(grid.heads), std::int64_t(column) * width};
  } else {
    const std::int64_t row = vec / grid.row_vecs;
    return {row / grid.heads, row % grid.heads, vec % grid.row_vecs * width};
  }
}

template <typename T, int width>
__device__ __forceinline__ Vec<T, width> load(const ConstRows& rows, const Place& at) {
  const T* const from = static_cast<const T*>(rows.data) + at.token * rows.token_stride +
                        at.head * rows.head_stride + at.column;
  return load_vec<T, width>(from);
}

template <typename T, int width>
__device__ __forceinline__ void store(const Rows& rows, const Place& at, const Vec<T, width>& vec) {
  T* const to =
      static_cast<T*>(rows.data) + at.token * rows.token_stride + at.head * rows.head_stride + at.column;
  store_vec<T, width>(to, vec);
}

// ---- one gate an element

template <typename T, int width, bool flat>
__global__ __launch_bounds__(kThreads) void gate_kernel(Grid grid, ConstRows x, ConstRows z, Rows y) {
  const std::int64_t first = std::int64_t(blockIdx.x) * (kThreads * kVecs) + threadIdx.x;
  Place at[kVecs];
  Vec<T, width> in[kVecs], gate[kVecs];
#pragma unroll
  for (int n = 0; n < kVecs; ++n) {
    if (first + n * kThreads >= grid.vecs) break;
    at[n] = place_of<width, flat>(grid, first + n * kThreads);
    in[n] = load<T, width>(x, at[n]);
    gate[n] = load<T, width>(z, at[n]);
  }
#pragma unroll
  for (int n = 0; n < kVecs; ++n) {
    if (first + n * kThreads >= grid.vecs) break;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      in[n].value[i] = from_float<T>(to_float(in[n].value[i]) * vec_sigmoid<T>(to_float(gate[n].value[i])));
    }
    store<T, width>(y, at[n], in[n]);
  }
}

template <typename T, int width, bool flat>
__global__ __launch_bounds__(kThreads) void gate_backward_kernel(Grid grid, ConstRows x, ConstRows z,
                                                                 ConstRows dy, Rows dx, Rows dz) {
  const std::int64_t first = std::int64_t(blockIdx.x) * (kThreads * kVecs) + threadIdx.x;
  Place at[kVecs];
  Vec<T, width> in[kVecs], gate[kVecs], d[kVecs];
#pragma unroll
  for (int n = 0; n < kVecs; ++n) {
    if (first + n * kThreads >= grid.vecs) break;
    at[n] = place_of<width, flat>(grid, first + n * kThreads);
    in[n] = load<T, width>(x, at[n]);
    gate[n] = load<T, width>(z, at[n]);
    d[n] = load<T, width>(dy, at[n]);
  }
#pragma unroll
  for (int n = 0; n < kVecs; ++n) {
    if (first + n * kThreads >= grid.vecs) break;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float open = vec_sigmoid<T>(to_float(gate[n].value[i])), back = to_float(d[n].value[i]);
      gate[n].value[i] = from_float<T>(back * to_float(in[n].value[i]) * open * (1.0f - open));
      d[n].value[i] = from_float<T>(back * open);
    }
    store<T, width>(dx, at[n], d[n]);
    store<T, width>(dz, at[n], gate[n]);
  }
}

// ---- one gate a head: 1 << shift neighbouring lanes treat a row, each kRowVecs of its vectors at a time

// The lane's row; its last row where there is none.
struct HeadRow {
  Place at;
  bool inside;
  int lane, lanes;
};
__device__ __forceinline__ HeadRow head_row(const Grid& grid, int shift) {
  const std::int64_t rows = grid.vecs / grid.row_vecs;
  const std::int64_t row = (std::int64_t(blockIdx.x) * kThreads + threadIdx.x) >> shift;
  return {place_of<1, false>({rows, 1, grid.heads}, min(row, rows - 1)), row < rows,
          static_cast<int>(threadIdx.x) & ((1 << shift) - 1), 1 << shift};
}

template <typename T, int width>
__global__ __launch_bounds__(kThreads) void gate_heads_kernel(Grid grid, int shift, ConstRows x, ConstRows z,
                                                              Rows y) {
  HeadRow row = head_row(grid, shift);
  if (!row.inside) return;
  const float open = vec_sigmoid<T>(to_float(load<T, 1>(z, row.at).value[0]));
  for (std::int64_t first = row.lane; first < grid.row_vecs; first += kRowVecs<T> * row.lanes) {
    Vec<T, width> in[kRowVecs<T>];
#pragma unroll
    for (int n = 0; n < kRowVecs<T>; ++n) {
      if (first + n * row.lanes >= grid.row_vecs) break;
      row.at.column = (first + n * row.lanes) * width;
      in[n] = load<T, width>(x, row.at);
    }
#pragma unroll
    for (int n = 0; n < kRowVecs<T>; ++n) {
      if (first + n * row.lanes >= grid.row_vecs) break;
#pragma unroll
      for (int i = 0; i < width; ++i) in[n].value[i] = from_float<T>(to_float(in[n].value[i]) * open);
      row.at.column = (first + n * row.lanes) * width;
      store<T, width>(y, row.at, in[n]);
    }
  }
}

// dz is summed in an order that the row's size fixes: each lane its own vectors upwards, then the lanes
// pairwise.
template <typename T, int width>
__global__ __launch_bounds__(kThreads) void gate_backward_heads_kernel(Grid grid, int shift, ConstRows x,
                                                                       ConstRows z, ConstRows dy, Rows dx,
                                                                       Rows dz) {
  HeadRow row = head_row(grid, shift);
  const float open = vec_sigmoid<T>(to_float(load<T, 1>(z, row.at).value[0]));
  float sum = 0;
  for (std::int64_t first = row.lane; first < grid.row_vecs; first += kRowVecs<T> * row.lanes) {
    Vec<T, width> in[kRowVecs<T>], d[kRowVecs<T>];
#pragma unroll
    for (int n = 0; n < kRowVecs<T>; ++n) {
      if (first + n * row.lanes >= grid.row_vecs) break;
      row.at.column = (first + n * row.lanes) * width;
      in[n] = load<T, width>(x, row.at);
      d[n] = load<T, width>(dy, row.at);
    }
#pragma unroll
    for (int n = 0; n < kRowVecs<T>; ++n) {
      if (first + n * row.lanes >= grid.row_vecs) break;
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float back = to_float(d[n].value[i]);
        sum += back * to_float(in[n].value[i]) * open * (1.0f - open);
        d[n].value[i] = from_float<T>(back * open);
      }
      row.at.column = (first + n * row.lanes) * width;
      if (row.inside) store<T, width>(dx, row.at, d[n]);
    }
  }
  for (int step = row.lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
  if (row.inside && row.lane == 0) {
    row.at.column = 0;
    store<T, 1>(dz, row.at, {{from_float<T>(sum)}});
  }
}

// ---- launches

// Calls body with the element type, the width of a Vec, and whether everything is one row; of heads, how many lanes
// treat a row, as a power of two.
template <typename Body>
void dispatch(const char* op, const GateShape& shape, std::initializer_list<GateOperand> operands,
              const Body& body) {
  const GateConfig config = choose_gate(shape, operands);
  const auto typed = [&]<typename T>(T) {
    constexpr int kWidth = 16 / sizeof(T);
    if (prints_plans()) {
      print_plan(op, concat(shape.heads, " heads of ", shape.head_size, ", ", name_of(shape.dtype)),
                 to_string(config));
    }
    const GateShape& seen = config.shape;
    const std::int64_t row_vecs = seen.head_size / config.vec.width;
    const Grid grid = {seen.tokens * seen.heads * row_vecs, row_vecs, seen.heads};
    if (config.kernel == GateConfig::Kernel::flat) {
      body.template operator()<T, kWidth, true>(grid, config.lanes_shift);
    } else if (config.vec.width == kWidth) {
      body.template operator()<T, kWidth, false>(grid, config.lanes_shift);
    } else {
      body.template operator()<T, 1, false>(grid, config.lanes_shift);
    }
  };
  if (with_element(shape.dtype, typed)) return;
  bad_argument(op, "dtype", "float32, bfloat16 or float16 on a CUDA device", name_of(shape.dtype));
}

unsigned blocks_of(const char* op, std::int64_t items, std::int64_t each) {
  const std::int64_t blocks = (items + each - 1) / each;
  if (blocks > INT_MAX) bad_argument(op, "tokens x heads x head_size", "at most 2^40", concat(items));
  return static_cast<unsigned>(blocks);
}

}  // namespace

void gate(const GateArgs& args, const Context& context) {
  constexpr const char* kOp = "gate";
  check_device(kOp, context.device);
  if (!check_gate(args)) return;
  const auto launch = [&]<typename T, int width, bool flat>(const Grid& grid, int shift) {
    const cudaStream_t stream = stream_of(context.stream);
    if (args.shape.head_wise) {
      const unsigned blocks = blocks_of(kOp, grid.vecs / grid.row_vecs, kThreads >> shift);
      gate_heads_kernel<T, width><<<blocks, kThreads, 0, stream>>>(grid, shift, args.x, args.z, args.y);
    } else {
      const unsigned blocks = blocks_of(kOp, grid.vecs, kThreads * kVecs);
      gate_kernel<T, width, flat><<<blocks, kThreads, 0, stream>>>(grid, args.x, args.z, args.y);
    }
    check_launch(kOp);
  };
  dispatch(kOp, args.shape, {{args.x, false}, {args.z, true}, {args.y, false}}, launch);
}

void gate_backward(const GateBackwardArgs& args, const Context& context) {
  constexpr const char* kOp = "gate_backward";
  check_device(kOp, context.device);
  if (!check_gate_backward(args)) return;
  const auto launch = [&]<typename T, int width, bool flat>(const Grid& grid, int shift) {
    const cudaStream_t stream = stream_of(context.stream);
    if (args.shape.head_wise) {
      const unsigned blocks = blocks_of(kOp, grid.vecs / grid.row_vecs, kThreads >> shift);
      gate_backward_heads_kernel<T, width>
          <<<blocks, kThreads, 0, stream>>>(grid, shift, args.x, args.z, args.dy, args.dx, args.dz);
    } else {
      const unsigned blocks = blocks_of(kOp, grid.vecs, kThreads * kVecs);
      gate_backward_kernel<T, width, flat>
          <<<blocks, kThreads, 0, stream>>>(grid, args.x, args.z, args.dy, args.dx, args.dz);
    }
    check_launch(kOp);
  };
  dispatch(kOp, args.shape,
           {{args.x, false}, {args.z, true}, {args.dy, false}, {args.dx, false}, {args.dz, true}}, launch);
}

}  // namespace gsa::cuda
