// The combine stage: combines the splits of a row and head, in the order of the list; gates and writes.
#include "kernels/common/mma.cuh"
#include "kernels/decode/cuda/device.cuh"

namespace gsa::cuda::decoding {
namespace {

// Groups of threads, one thread for each dimension; of `groups` groups each takes every groups-th batch of
// `batch` splits. A list has few splits, and half of a multiprocessor is left for the kernel behind; a dense
// row of 128K keys has 128.
constexpr int kGroupThreads = 128;
constexpr int kListGroups = 4, kListBatch = 4, kDenseGroups = 8, kDenseBatch = 8;

struct CombineParams {
  Cache cache;
  const void* gate;  // null: none
  std::int64_t gate_token_stride, gate_head_stride;
  bool head_wise;
  void* out;
  std::int64_t out_token_stride, out_head_stride;
  float* lse;  // may be null
  int heads, head_size, padded_size;
  Kept kept;
  Scratch scratch;
};

__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fffffff); }

// Within 2 units in the last place; below -87 the result may be zero instead of a number below 1e-38.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// What splits leave together: their maximum (base 2), and sums relative to it.
struct Partial {
  float maximum = -INFINITY, total = 0.0f, value = 0.0f;

  // The maximum may become `to`, which is not less. Where no logit is finite so far, there is nothing to
  // shrink.
  __device__ __forceinline__ float raise(float to) {
    const float base = to == -INFINITY ? 0.0f : to;
    const float shrink = exp2f(maximum - base);
    total *= shrink;
    value *= shrink;
    maximum = to;
    return base;
  }
  __device__ __forceinline__ void add(float from_maximum, float from_total, float from_value, float base) {
    const float factor = exp2f(from_maximum - base);
    total = fmaf(from_total, factor, total);
    value = fmaf(from_value, factor, value);
  }
};

// A block for each head and row. Sums and parts are loaded together, a batch of splits at a time, with a
// running maximum; then the groups are put together in their order.
template <typename T, int groups, int batch>
__global__ void __launch_bounds__(groups* kGroupThreads) combine_kernel(const CombineParams p) {
  __shared__ float maxima[groups], totals[groups], values[groups][kGroupThreads];
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int head = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  let_next_start();
  const T* const gate = static_cast<const T*>(p.gate) + row * p.gate_token_stride + head * p.gate_head_stride;
  float open = 1.0f;  // for thread's dimension; what comes before the wait hides its latency
  if (p.gate != nullptr && thread < p.head_size && group == 0) {
    open = sigmoid(to_float(gate[p.head_wise ? 0 : thread]));
  }
  // attend lets this kernel start when it has seen the kernels before it end: their results may be read.
  const int count = count_of(p.kept, p.cache, row);
  const int splits = splits_of(p.kept.dense, count);
  const std::int64_t first = (static_cast<std::int64_t>(row) * p.heads + head) * p.scratch.splits;
  const float2* const sums = p.scratch.part_sums + first;
  T* const out = static_cast<T*>(p.out) + row * p.out_token_stride + head * p.out_head_stride;
  wait_for_previous();
#pragma unroll 1
  for (int begin_size = 0; begin_size < p.head_size; begin_size += kGroupThreads) {
    const int d = begin_size + thread;
    const float* const parts = p.scratch.part_out + first * p.padded_size + min(d, p.head_size - 1);
    Partial mine;
#pragma unroll 1
    for (int begin = group * batch; begin < splits; begin += groups * batch) {
      float2 sum[batch];
      float part[batch];
      float next = mine.maximum;
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        sum[i] = begin + i < splits ? sums[begin + i] : float2{-INFINITY, 0.0f};
        part[i] = begin + i < splits ? parts[static_cast<std::int64_t>(begin + i) * p.padded_size] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < batch; ++i) next = fmaxf(next, sum[i].x);
      const float base = mine.raise(next);
#pragma unroll
      for (int i = 0; i < batch; ++i) mine.add(sum[i].x, sum[i].y, part[i], base);
    }
    if (thread == 0) {
      maxima[group] = mine.maximum;
      totals[group] = mine.total;
    }
    values[group][thread] = mine.value;
    __syncthreads();
    if (group == 0 && d < p.head_size) {
      Partial all;
      float next = -INFINITY;
#pragma unroll
      for (int g = 0; g < groups; ++g) next = fmaxf(next, maxima[g]);
      const float base = all.raise(next);
#pragma unroll
      for (int g = 0; g < groups; ++g) all.add(maxima[g], totals[g], values[g][thread], base);
      const bool some = all.total != 0.0f;
      if (begin_size > 0 && p.gate != nullptr && !p.head_wise) open = sigmoid(to_float(gate[d]));
      out[d] = from_float<T>(all.value * (some ? __frcp_rn(all.total) : not_a_number()) * open);
      if (d == 0 && p.lse != nullptr) {
        constexpr float kLog2 = 0.693147180559945f;
        p.lse[static_cast<std::int64_t>(row) * p.heads + head] =
            some ? (all.maximum + log2f(all.total)) * kLog2 : not_a_number();
      }
    }
    __syncthreads();
  }
}

}  // namespace

void combine(const DecodeArgs& args, const Scratch& scratch, const Context& context) {
  CombineParams p = {};
  p.cache = cache_of(args);
  p.gate = args.gate.data;
  p.gate_token_stride = args.gate.token_stride;
  p.gate_head_stride = args.gate.head_stride;
  p.head_wise = args.head_wise;
  p.out = args.out.data;
  p.out_token_stride = args.out.token_stride;
  p.out_head_stride = args.out.head_stride;
  p.lse = static_cast<float*>(args.lse);
  p.heads = static_cast<int>(args.shape.heads);
  p.head_size = static_cast<int>(args.shape.head_size);
  p.padded_size = scratch.padded_size;
  p.kept = kept_of(args, scratch);
  p.scratch = scratch;
  Launch how;
  how.grid = dim3(static_cast<unsigned>(p.heads), static_cast<unsigned>(args.sequences * args.queries));
  how.overlap = true;
  const auto go = [&](auto kernel, int groups) {
    how.threads = groups * kGroupThreads;
    launch(kernel, p, how, context, "decode: combine");
  };
  const auto typed = [&]<typename T>(T) {
    p.kept.dense ? go(combine_kernel<T, kDenseGroups, kDenseBatch>, kDenseGroups)
                 : go(combine_kernel<T, kListGroups, kListBatch>, kListGroups);
  };
  args.shape.dtype == DType::bf16 ? typed(__nv_bfloat16()) : typed(__half());
}

}  // namespace gsa::cuda::decoding
