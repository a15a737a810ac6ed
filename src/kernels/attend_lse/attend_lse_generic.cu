// Parts of the log-sum-exp by mma.sync, for any head size and device: a block takes 64 queries of one head
// and a split of the keys; a warp has 16 of the queries.
#include "kernels/attend_lse/attend_lse_kernels.h"
#include "kernels/common/cuda_check.h"

namespace gsa::cuda::lse {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kKeys = 64;  // of a step
constexpr int kStages = 2;

template <int kSize>
constexpr int shared_bytes() {
  return (kQueries + kStages * kKeys) * kSize * 2;
}

template <typename T, int kSize>
__global__ __launch_bounds__(kThreads) void generic_lse_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kChunks = kSize / 8, kBlocks = kKeys / 8;
  const int tile_index = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int split = static_cast<int>(blockIdx.z);
  const Tile tile = p.tile[tile_index];
  const int begin = split * kSplitKeys, end = min(tile.visible(), begin + kSplitKeys);
  if (begin >= end) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const std::uint32_t rows_at = shared_address(shared), keys_at = rows_at + kQueries * kSize * 2;
  const T* const q = static_cast<const T*>(p.q) + tile.first_query * p.q_token + head * p.q_head;
  const T* const k = static_cast<const T*>(p.k) + tile.k_begin * p.k_token + head / p.group * p.k_head;
  for (int c = thread; c < kQueries * kChunks; c += kThreads) {
    const int row = c / kChunks, part = c % kChunks;
    copy_chunk(rows_at + tile_offset<kSize>(row, part), q + min(row, tile.queries - 1) * p.q_token, 8 * part,
               p.size, row < tile.queries, p.aligned);
  }
  const auto load = [&](int step) {
    for (int c = thread; c < kKeys * kChunks; c += kThreads) {
      const int row = c / kChunks, part = c % kChunks, key = begin + step * kKeys + row;
      copy_chunk(keys_at + step % kStages * (kKeys * kSize * 2) + tile_offset<kSize>(row, part),
                 k + min(key, end - 1) * p.k_token, 8 * part, p.size, key < end, p.aligned);
    }
    cp_async_commit();
  };
  const int steps = (end - begin + kKeys - 1) / kKeys;
  load(0);
  RowState state[2];
  const int query = 16 * warp + lane / 4;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<0>();
    __syncthreads();  // the keys have landed, and everyone is done with those before
    if (step + 1 < steps) load(step + 1);
    float x[kBlocks][4];
    row_products<T, kSize>(x, rows_at, 16 * warp, keys_at + step % kStages * (kKeys * kSize * 2), 0, lane);
    const int first = begin + step * kKeys + 2 * (lane % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int last = min(tile.first_position + query + 8 * r, end - 1);
#pragma unroll
      for (int i = 0; i < kBlocks * 2; ++i) {
        float& y = x[i / 2][2 * r + i % 2];
        y = first + i / 2 * 8 + i % 2 <= last ? y * p.scale : -INFINITY;
      }
      state[r].template add<kBlocks * 2>([&](int i) { return x[i / 2][2 * r + i % 2]; });
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) store_part(p, tile_index, query + 8 * r, head, split, state[r]);
}

template <typename T, int kSize>
void launch(const Params& p, int tiles, const Context& context) {
  const auto kernel = &generic_lse_kernel<T, kSize>;
  allow_shared_memory(kernel, shared_bytes<kSize>(), "generic_lse_kernel");
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(p.heads),
                  static_cast<unsigned>(p.splits));
  kernel<<<grid, kThreads, shared_bytes<kSize>(), stream_of(context.stream)>>>(p);
  check_launch("generic_lse_kernel");
}

}  // namespace

void launch_generic(DType dtype, const Params& p, int tiles, const Context& context) {
  const auto size = [&]<typename T>() {
    if (p.size <= 64) {
      launch<T, 64>(p, tiles, context);
    } else if (p.size <= 128) {
      launch<T, 128>(p, tiles, context);
    } else {
      launch<T, 256>(p, tiles, context);
    }
  };
  dtype == DType::bf16 ? size.template operator()<__nv_bfloat16>() : size.template operator()<__half>();
}

}  // namespace gsa::cuda::lse
