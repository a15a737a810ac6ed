// append on CUDA devices: a warp for each head of a token, and one for the weights of its indexer. A decoding
// step has few tokens, so that what counts is to be short: one launch, nothing shared between warps.
#include "kernels/append/append_cuda.h"

#include <cmath>
#include <limits>

#include "kernels/append/append_checks.h"
#include "kernels/common/pipeline.cuh"
#include "kernels/common/vec.cuh"

namespace gsa::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct Shape {
  std::int64_t rows;
  int tokens, stride;
  int q_heads, kv_heads, size, pairs;
  int index_heads, index_size, index_pairs;
  int units;       // warps a token
  int gate;        // columns of the value gate, of a head
  int gate_begin;  // first column
  int w_begin;
  float w_scale;  // of the ReLU form
  bool sigmoid;
};

template <typename T>
struct Memory {
  const T* x;
  const float *cos, *sin, *index_cos, *index_sin;
  const std::int64_t* slots;
  T *k, *v, *q, *index_q, *index_w;
  void* index_k;
  float* index_scale;
};

template <typename T>
struct Params {
  Shape shape;
  Memory<T> memory;
};

__device__ __forceinline__ float sigmoid(float z) { return 1.f / (1.f + expf(-z)); }

// Element i of a head after its rotation, rounded to the type.
template <typename T>
__device__ __forceinline__ T rotated(const T* head, int i, int pairs, const float* cos, const float* sin) {
  if (i >= 2 * pairs) return head[i];
  const bool front = i < pairs;
  const int pair = front ? i : i - pairs;
  const float a = to_float(head[pair]), b = to_float(head[pairs + pair]);
  const float c = cos[pair], s = sin[pair];
  return from_float<T>(front ? a * c - b * s : b * c + a * s);
}

template <typename T>
__device__ void quantize(const T* head, const Shape& shape, const float* cos, const float* sin,
                         std::int8_t* values, float* scale, int lane) {
  float largest = 0;
  bool finite = true;
  for (int i = lane; i < shape.index_size; i += 32) {
    const float value = to_float(rotated(head, i, shape.index_pairs, cos, sin));
    finite = finite && isfinite(value);
    largest = fmaxf(largest, fabsf(value));
  }
  finite = __all_sync(~0u, finite);
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  const float s = largest / 127.f;
  if (lane == 0) *scale = finite ? s : nanf("");
  for (int i = lane; i < shape.index_size; i += 32) {
    const float value = to_float(rotated(head, i, shape.index_pairs, cos, sin));
    const float rounded = finite && s > 0 ? rintf(value / s) : 0.f;
    values[i] = static_cast<std::int8_t>(fminf(fmaxf(rounded, -127.f), 127.f));
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads) void append_kernel(const Params<T> p) {
  const Shape& shape = p.shape;
  const Memory<T>& memory = p.memory;
  let_next_start();
  wait_for_previous();
  const std::int64_t warp = std::int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const std::int64_t token = warp / shape.units;
  if (token >= shape.tokens) return;
  int unit = static_cast<int>(warp - token * shape.units);
  const T* const row = memory.x + token * shape.stride;
  const std::int64_t slot = memory.slots[token];
  if (slot < 0 || slot >= shape.rows) return;
  const float* const cos = memory.cos + token * shape.pairs;
  const float* const sin = memory.sin + token * shape.pairs;
  const int rotating = shape.q_heads + shape.kv_heads;
  if (unit < rotating) {
    T* const to = unit < shape.q_heads
                      ? memory.q + (token * shape.q_heads + unit) * shape.size
                      : memory.k + (slot * shape.kv_heads + unit - shape.q_heads) * shape.size;
    const T* const head = row + unit * shape.size;
    for (int i = lane; i < shape.size; i += 32) to[i] = rotated(head, i, shape.pairs, cos, sin);
    return;
  }
  unit -= rotating;
  if (unit < shape.kv_heads) {
    const T* const head = row + (rotating + unit) * shape.size;
    const T* const gate = row + shape.gate_begin + unit * shape.gate;
    T* const to = memory.v + (slot * shape.kv_heads + unit) * shape.size;
    for (int i = lane; i < shape.size; i += 32) {
      to[i] = shape.gate == 0
                  ? head[i]
                  : from_float<T>(to_float(head[i]) * sigmoid(to_float(gate[shape.gate == 1 ? 0 : i])));
    }
    return;
  }
  unit -= shape.kv_heads;
  if (unit > shape.index_heads) {  // behind the heads' queries and the key: the weights
    for (int i = lane; i < shape.index_heads; i += 32) {
      const float w = to_float(row[shape.w_begin + i]);
      memory.index_w[token * shape.index_heads + i] =
          from_float<T>(shape.sigmoid ? sigmoid(w) : w * shape.w_scale);
    }
    return;
  }
  const T* const head = row + (rotating + shape.kv_heads) * shape.size + unit * shape.index_size;
  const float* const index_cos = memory.index_cos + token * shape.index_pairs;
  const float* const index_sin = memory.index_sin + token * shape.index_pairs;
  if (unit == shape.index_heads && memory.index_scale != nullptr) {
    quantize(head, shape, index_cos, index_sin,
             static_cast<std::int8_t*>(memory.index_k) + slot * shape.index_size, memory.index_scale + slot,
             lane);
    return;
  }
  T* const to = unit < shape.index_heads
                    ? memory.index_q + (token * shape.index_heads + unit) * shape.index_size
                    : static_cast<T*>(memory.index_k) + slot * shape.index_size;
  for (int i = lane; i < shape.index_size; i += 32) {
    to[i] = rotated(head, i, shape.index_pairs, index_cos, index_sin);
  }
}

template <typename T>
void launch_append(const AppendArgs& args, const Context& context) {
  const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
  const bool selects = args.index_heads > 0;
  Shape shape;
  shape.rows = args.rows;
  shape.tokens = narrow(args.tokens);
  shape.stride = narrow(args.x_stride);
  shape.q_heads = narrow(args.q_heads);
  shape.kv_heads = narrow(args.kv_heads);
  shape.size = narrow(args.head_size);
  shape.pairs = narrow(args.pairs);
  shape.index_heads = narrow(args.index_heads);
  shape.index_size = narrow(args.index_head_size);
  shape.index_pairs = narrow(args.index_pairs);
  shape.units = shape.q_heads + 2 * shape.kv_heads + (selects ? shape.index_heads + 2 : 0);
  shape.gate = narrow(args.value_gate / args.kv_heads);
  shape.gate_begin = (shape.q_heads + 2 * shape.kv_heads) * shape.size +
                     (selects ? (shape.index_heads + 1) * shape.index_size : 0);
  shape.w_begin = narrow(args.index_w_column);
  shape.w_scale = selects ? static_cast<float>(1 / std::sqrt(static_cast<double>(args.index_heads))) : 1.f;
  shape.sigmoid = args.sigmoid_w;
  const Memory<T> memory = {static_cast<const T*>(args.x),
                            static_cast<const float*>(args.cos),
                            static_cast<const float*>(args.sin),
                            static_cast<const float*>(args.index_cos),
                            static_cast<const float*>(args.index_sin),
                            args.slots,
                            static_cast<T*>(args.k),
                            static_cast<T*>(args.v),
                            static_cast<T*>(args.q),
                            static_cast<T*>(args.index_q),
                            static_cast<T*>(args.index_w),
                            args.index_k,
                            args.index_scale};
  const std::int64_t blocks = (args.tokens * shape.units + kWarps - 1) / kWarps;
  if (blocks > std::numeric_limits<int>::max()) {
    bad_argument("append", "tokens", "a number that one launch can hold", concat(args.tokens));
  }
  Launch how;
  how.grid = dim3(static_cast<unsigned>(blocks));
  how.threads = kThreads;
  how.overlap = true;
  launch(append_kernel<T>, Params<T>{shape, memory}, how, context, "append");
}

}  // namespace

void append(const AppendArgs& args, const Context& context) {
  constexpr const char* kOp = "append";
  check_device(kOp, context.device);
  if (!check_append(args)) return;
  if (with_element(args.dtype, [&]<typename T>(T) { launch_append<T>(args, context); })) return;
  bad_argument(kOp, "dtype", "float32, bfloat16 or float16 on a CUDA device", name_of(args.dtype));
}

}  // namespace gsa::cuda
