// skinny_linear on Hopper: one block a multiprocessor, each with an equal share of the outputs.
//
// A warp of its own asks for the weights by bulk copies into a ring in shared memory, up to 4 KB of each of
// 16 rows at a time. It begins before the kernel in front has ended, so that weights keep coming while one
// kernel drains and the next one gets its input. Eight warps multiply: weights are the rows of mma.16x8x16,
// rows of x its columns, and a warp takes every eighth step of 16 elements. Its sums are added to those of
// the others in the order of the warps. None of this depends on which rows of the weights a block has, nor on
// how many rows of x there are.
#include "kernels/skinny_linear/skinny_linear_cuda.h"

#include <algorithm>

#include "kernels/common/barrier.cuh"
#include "kernels/common/pipeline.cuh"
#include "kernels/common/plans.h"
#include "kernels/common/vec.cuh"
#include "kernels/skinny_linear/skinny_linear_checks.h"
#include "kernels/skinny_linear/skinny_linear_plan.h"

namespace gsa::cuda {
namespace skinny {
namespace {

constexpr int kThreads = kWarps * 32, kAllThreads = kThreads + 32;
constexpr unsigned kAll = 0xffffffffu;

struct Params {
  const void *x, *norm, *weight, *bias, *residual;
  void* y;
  int rows, size, outputs;
  float eps;
  bool settled;
  Layout layout;
};

__device__ __forceinline__ void expect_bytes(std::uint64_t* barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}

// Into shared memory, by one thread; the barrier hears of the bytes when they have come. once: nobody will
// ask for them again soon.
template <bool once>
__device__ __forceinline__ void bulk_copy(void* to, const void* from, int bytes, std::uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  if constexpr (once) {
    std::uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
        "[%3], %4;" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
  }
#endif
}

__device__ __forceinline__ void ldmatrix_x2(std::uint32_t (&r)[2], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

// A block's share of the outputs, in tiles. A tile has kTile rows of the weights; with swiglu those are the
// gates of half as many outputs, then their other factors.
template <bool swiglu>
struct Share {
  static constexpr int kOutputs = swiglu ? kTile / 2 : kTile;  // of a tile
  int begin, end, tiles;

  __device__ __forceinline__ explicit Share(const Params& p) {
    const auto edge = [&](unsigned block) {
      return static_cast<int>(static_cast<std::int64_t>(p.outputs) * block / gridDim.x);
    };
    begin = edge(blockIdx.x);
    end = edge(blockIdx.x + 1);
    tiles = (end - begin + kOutputs - 1) / kOutputs;
  }
  __device__ __forceinline__ int outputs(int tile) const {
    return min(kOutputs, end - begin - tile * kOutputs);
  }
};

// Where the next part of the weights belongs: tile, elements of its rows, stage of the ring.
template <int chunk>
struct Cursor {
  int tile = 0, begin = 0, stage = 0, phase = 0;

  __device__ __forceinline__ void advance(int size) {
    begin += chunk;
    if (begin >= size) {
      begin = 0;
      ++tile;
    }
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The warp that loads.
template <typename T, int columns, bool normed, bool swiglu>
__device__ __forceinline__ void load(const Params& p, char* shared, std::uint64_t* full,
                                     std::uint64_t* empty) {
  constexpr int kChunk = kChunkOf<columns>, kRowBytes = kChunk * 2 + kPad;
  using Place = Cursor<kChunk>;
  const Share<swiglu> share(p);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto stage_at = [&](const Place& to) { return shared + p.layout.ring + to.stage * p.layout.stage; };
  const auto bytes_of = [&](const Place& to) { return min(kChunk, p.size - to.begin) * 2; };
  const auto load_weights = [&](const Place& to) {
    const int outputs = share.outputs(to.tile), rows = swiglu ? 2 * outputs : outputs, bytes = bytes_of(to);
    if (lane == 0) expect_bytes(full + to.stage, (rows + (normed ? 0 : p.rows)) * bytes);
    __syncwarp();
    const int output = lane % Share<swiglu>::kOutputs;
    if (lane >= kTile || output >= outputs) return;
    const std::int64_t row =
        share.begin + to.tile * Share<swiglu>::kOutputs + output + (lane > output ? p.outputs : 0);
    bulk_copy<true>(stage_at(to) + lane * kRowBytes,
                    static_cast<const T*>(p.weight) + row * p.size + to.begin, bytes, full + to.stage);
  };
  const auto load_x = [&](const Place& to) {
    if (normed || lane >= p.rows) return;
    bulk_copy<false>(stage_at(to) + (kTile + lane) * kRowBytes,
                     static_cast<const T*>(p.x) + static_cast<std::int64_t>(lane) * p.size + to.begin,
                     bytes_of(to), full + to.stage);
  };

  if (!p.settled) wait_for_previous();
  Place weights, x;
  for (int i = 0; i < kStages && weights.tile < share.tiles; ++i, weights.advance(p.size))
    load_weights(weights);
  if (p.settled) wait_for_previous();
  for (int i = 0; i < kStages && x.tile < share.tiles; ++i, x.advance(p.size)) load_x(x);
  for (; weights.tile < share.tiles; weights.advance(p.size)) {
    barrier_wait(empty + weights.stage, weights.phase ^ 1);
    load_weights(weights);
    load_x(weights);
  }
}

// Normed rows of x into shared memory; all threads that multiply. The norm's weights lie there already.
template <typename T>
__device__ __forceinline__ void norm_rows(const Params& p, char* shared) {
  constexpr int kWidth = 16 / sizeof(T);
  const int lane = static_cast<int>(threadIdx.x % 32), vecs = p.size / kWidth;
  const T* const norm = reinterpret_cast<const T*>(shared + p.layout.norm);
  for (int row = static_cast<int>(threadIdx.x / 32); row < p.rows; row += kWarps) {
    const T* const from = static_cast<const T*>(p.x) + static_cast<std::int64_t>(row) * p.size;
    T* const to = reinterpret_cast<T*>(shared + p.layout.x + row * p.layout.x_stride);
    float squares[4] = {};  // chains
#pragma unroll 8
    for (int vec = lane; vec < vecs; vec += 32) {
      const auto s = load_vec<T, kWidth>(from + vec * kWidth);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        squares[i % 4] = fmaf(to_float(s.value[i]), to_float(s.value[i]), squares[i % 4]);
      }
      store_vec<T, kWidth>(to + vec * kWidth, s);
    }
    float square = squares[0] + squares[1] + (squares[2] + squares[3]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(kAll, square, step);
    const float scale = 1.0f / sqrtf(square / static_cast<float>(p.size) + p.eps);
#pragma unroll 4
    for (int vec = lane; vec < vecs; vec += 32) {
      auto s = load_vec<T, kWidth>(to + vec * kWidth);
      const auto w = load_vec<T, kWidth>(norm + vec * kWidth);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        s.value[i] = from_float<T>(to_float(s.value[i]) * scale * to_float(w.value[i]));
      }
      store_vec<T, kWidth>(to + vec * kWidth, s);
    }
  }
}

// The results of a tile from the sums of the warps, one a thread.
template <typename T, bool swiglu>
struct Results {
  int row, place;  // of x; in the tile
  float bias = 0, residual = 0;
  std::int64_t at = 0;  // in y
  bool mine = false;

  __device__ __forceinline__ Results(const Params& p, const Share<swiglu>& share, int tile)
      : row(static_cast<int>(threadIdx.x) / kTile), place(static_cast<int>(threadIdx.x) % kTile) {
    mine = row < p.rows && place < share.outputs(tile);
    const int output = share.begin + tile * Share<swiglu>::kOutputs + place;
    at = static_cast<std::int64_t>(row) * p.outputs + output;
    if (!mine) return;
    if (p.bias != nullptr) bias = to_float(static_cast<const T*>(p.bias)[output]);
    if (p.residual != nullptr) residual = to_float(static_cast<const T*>(p.residual)[at]);
  }
  __device__ __forceinline__ void write(const Params& p, const float* sums, int columns) const {
    if (!mine) return;
    const auto sum = [&](int of) {
      const float* const from = sums + row * kSumStride + of;
      float total = from[0];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) total += from[w * columns * kSumStride];
      return total;
    };
    T result;
    if constexpr (swiglu) {
      const float g = to_float(from_float<T>(sum(place)));
      const float u = to_float(from_float<T>(sum(place + kTile / 2)));
      result = from_float<T>(g * vec_sigmoid<T>(g) * u);
    } else {
      result = from_float<T>(sum(place) + bias);
      if (p.residual != nullptr) result = from_float<T>(residual + to_float(result));
    }
    static_cast<T*>(p.y)[at] = result;
  }
};

template <typename T, int columns, bool normed, bool swiglu>
__device__ __forceinline__ void multiply(const Params& p, char* shared, std::uint64_t* full,
                                         std::uint64_t* empty) {
  constexpr int kChunk = kChunkOf<columns>, kRowBytes = kChunk * 2 + kPad;
  const Share<swiglu> share(p);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  // Of a chunk: where this lane's rows begin, as ldmatrix wants them. Columns without a row repeat the last.
  const int a_offset = lane % 16 * kRowBytes + lane / 16 * 16;
  const int column = columns == 8 ? lane % 8 : lane / 16 * 8 + lane % 8;
  const int b_offset = min(column, p.rows - 1) * p.layout.x_stride + lane / 8 % 2 * 16;
  Cursor<kChunk> from;
#pragma unroll 1
  while (from.tile < share.tiles) {
    const int tile = from.tile;
    const Results<T, swiglu> results(p, share, tile);
    float acc[columns / 8][4] = {};
#pragma unroll 1
    for (; from.tile == tile; from.advance(p.size)) {
      const char* const data = shared + p.layout.ring + from.stage * p.layout.stage;
      const std::uint32_t a_at = shared_address(data + a_offset);
      const std::uint32_t b_at = shared_address(
          (normed ? shared + p.layout.x + from.begin * 2 : data + kTile * kRowBytes) + b_offset);
      const int steps = min(kChunk, p.size - from.begin) / 16;
      barrier_wait(full + from.stage, from.phase);
#pragma unroll
      for (int i = 0; i < kChunk / 16 / kWarps; ++i) {
        const int step = i * kWarps + warp;
        if (step >= steps) break;
        std::uint32_t a[4];
        ldmatrix_x4(a, a_at + step * 32);
        if constexpr (columns == 8) {
          std::uint32_t b[2];
          ldmatrix_x2(b, b_at + step * 32);
          mma_16x8x16<T>(acc[0], a, b[0], b[1]);
        } else {
          std::uint32_t b[4];
          ldmatrix_x4(b, b_at + step * 32);
          mma_16x8x16<T>(acc[0], a, b[0], b[1]);
          mma_16x8x16<T>(acc[1], a, b[2], b[3]);
        }
      }
      barrier_arrive(empty + from.stage);  // every lane for itself, so that racecheck can follow
    }
    // Two buffers for sums, alternately: one barrier a tile is enough.
    float* const sums =
        reinterpret_cast<float*>(shared + p.layout.sums) + tile % 2 * kWarps * columns * kSumStride;
#pragma unroll
    for (int i = 0; i < columns / 8 * 4; ++i) {
      const int of = lane / 4 + i % 4 / 2 * 8, to = i / 4 * 8 + lane % 4 * 2 + i % 2;
      sums[(warp * columns + to) * kSumStride + of] = acc[i / 4][i % 4];
    }
    named_barrier(1, kThreads);
    results.write(p, sums, columns);
  }
}

template <typename T, int columns, bool normed, bool swiglu>
__global__ void __launch_bounds__(kAllThreads, 1) skinny_linear_kernel(const Params p) {
  extern __shared__ __align__(128) char shared[];
  std::uint64_t* const full = reinterpret_cast<std::uint64_t*>(shared);
  std::uint64_t* const empty = full + kStages;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, kThreads);
    }
#if __CUDA_ARCH__ >= 900
    barrier_init_fence();
#endif
  }
  __syncthreads();
  if (threadIdx.x >= kThreads) {
    load<T, columns, normed, swiglu>(p, shared, full, empty);
    return;
  }
  if constexpr (normed) {
    constexpr int kWidth = 16 / sizeof(T);
    if (!p.settled) wait_for_previous();
    T* const to = reinterpret_cast<T*>(shared + p.layout.norm);
    for (int i = static_cast<int>(threadIdx.x) * kWidth; i < p.size; i += kThreads * kWidth) {
      store_vec<T, kWidth>(to + i, load_vec<T, kWidth>(static_cast<const T*>(p.norm) + i));
    }
    named_barrier(1, kThreads);
    wait_for_previous();
    norm_rows<T>(p, shared);
    named_barrier(1, kThreads);
  } else {
    wait_for_previous();
  }
  multiply<T, columns, normed, swiglu>(p, shared, full, empty);
}

template <typename T, int columns>
void launch_columns(const Params& p, const SkinnyLinearArgs& args, const SkinnyLinearConfig& config,
                    const Context& context) {
  Launch how;
  how.grid = dim3(static_cast<unsigned>(config.blocks));
  how.threads = kAllThreads;
  how.shared_bytes = static_cast<std::size_t>(p.layout.bytes);
  how.overlap = true;
  const auto go = [&](auto kernel) { launch(kernel, p, how, context, "skinny_linear"); };
  if (args.norm == nullptr) {
    args.swiglu ? go(skinny_linear_kernel<T, columns, false, true>)
                : go(skinny_linear_kernel<T, columns, false, false>);
  } else {
    args.swiglu ? go(skinny_linear_kernel<T, columns, true, true>)
                : go(skinny_linear_kernel<T, columns, true, false>);
  }
}

template <typename T>
void launch_typed(const Params& p, const SkinnyLinearArgs& args, const SkinnyLinearConfig& config,
                  const Context& context) {
  config.columns == 8 ? launch_columns<T, 8>(p, args, config, context)
                      : launch_columns<T, 16>(p, args, config, context);
}

}  // namespace
}  // namespace skinny

void skinny_linear(const SkinnyLinearArgs& args, const Context& context) {
  constexpr const char* kOp = "skinny_linear";
  if (!context.device.hopper()) {
    bad_argument(kOp, "x", "a tensor on a CUDA device of compute capability 9.0",
                 concat(context.device.major, ".", context.device.minor));
  }
  if (!check_skinny_linear(args, static_cast<std::int64_t>(context.device.shared_memory))) return;
  const SkinnyLinearConfig config = choose_skinny_linear({.device = context.device,
                                                          .rows = args.rows,
                                                          .size = args.size,
                                                          .outputs = args.outputs,
                                                          .normed = args.norm != nullptr});
  const skinny::Params p = {args.x,
                            args.norm,
                            args.weight,
                            args.bias,
                            args.residual,
                            args.y,
                            static_cast<int>(args.rows),
                            static_cast<int>(args.size),
                            static_cast<int>(args.outputs),
                            static_cast<float>(args.eps),
                            args.settled,
                            config.layout};
  if (prints_plans()) {
    print_plan(kOp,
               concat(args.rows, " x ", args.size, " to ", args.outputs, ", ", name_of(args.dtype),
                      args.norm != nullptr ? ", norm" : "", args.swiglu ? ", swiglu" : ""),
               to_string(config));
  }
  if (args.dtype == DType::bf16) {
    skinny::launch_typed<__nv_bfloat16>(p, args, config, context);
  } else {
    skinny::launch_typed<__half>(p, args, config, context);
  }
}

}  // namespace gsa::cuda
