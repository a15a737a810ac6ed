// The pass over the keys with wgmma, for 4 heads of 64.
//
// Queries of all heads lie in shared memory, one [64, 64] tile a head, and so do tiles of 64 keys; the four
// warps of a block are the warpgroup that multiplies them. Two sets of accumulators: the products of a head
// run while the sigmoids of the one before are taken.
#include "kernels/common/wgmma.cuh"
#include "kernels/select/select_pass.cuh"

namespace gsa::cuda::selecting {
namespace {

constexpr int kPassHeads = 4;
constexpr int kPassSize = 64;
constexpr int kPassStages = 3;
constexpr int kPanelBytes = kTileQueries * 128;  // a tile of queries of one head, and of keys
constexpr int kPassBytes = (kPassHeads + kPassStages) * kPanelBytes + 1024;
static_assert(kTileKeys == kTileQueries);

template <typename T, ScoreForm form>
__device__ __forceinline__ void collect(const LongArgs& a, const QueryTile& tile, char* memory,
                                        PassShared& shared) {
  using namespace hopper;
  using Head = ScoreHead<form>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int first = thread / 32 * 16, query = first + lane / 4;
  const int visible = tile.position + tile.count;
  const int key_tiles = (visible + kTileKeys - 1) / kTileKeys;
  char* const base = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const std::uint32_t q_address = shared_address(base), ring = q_address + kPassHeads * kPanelBytes;

  // Row thread / 8 + 16 i, chunk thread % 8 of every tile is this thread's to load.
  const int row = thread / 8, chunk = thread % 8;
#pragma unroll
  for (int h = 0; h < kPassHeads; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const long long from = tile.row + min(row + 16 * i, tile.count - 1);
      cp_async_16(q_address + h * kPanelBytes + swizzled(row + 16 * i, chunk),
                  static_cast<const T*>(a.in.q) + from * a.in.q_token + h * a.in.q_head + 8 * chunk);
    }
  }
  const T* const keys = static_cast<const T*>(a.in.k) + tile.key * a.in.k_token;
  const char* from = reinterpret_cast<const char*>(keys + row * a.in.k_token + 8 * chunk);
  const long long step = 16 * a.in.k_token * static_cast<long long>(sizeof(T));
  const std::uint32_t to = ring + swizzled(row, chunk);  // 16 rows on, the swizzle is the same
  int left = visible - row;
  const auto load = [&](int slot) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool valid = left > 16 * i;
      cp_async_16(to + slot * kPanelBytes + i * 2048, valid ? from : reinterpret_cast<const char*>(keys),
                  valid);
      from += step;
    }
    left -= kTileKeys;
  };
#pragma unroll
  for (int i = 0; i < kPassStages - 1; ++i) {
    if (i < key_tiles) load(i);
    cp_async_commit();
  }

  float factor = Head::factor(a.in.scale), start[2] = {0, 0}, weight[2][kPassHeads], offset[kPassHeads];
  const WarpQueries queries(tile, first);
#pragma unroll
  for (int h = 0; h < kPassHeads; ++h) {
    offset[h] = Head::offset(bias_of<T>(a.in, h));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weight[i][h] = Head::weight(queries.weight<T>(a.in, i, h));
      start[i] = Head::add_weight(start[i], weight[i][h]);
    }
  }

  // The products of a head with a tile of keys, into one of two sets of accumulators. Descriptors differ in
  // their addresses only, which are added to.
  float x[2][kTileKeys / 2];
  const std::uint64_t q_descriptor = k_major(q_address), ring_descriptor = k_major(ring);
  const auto multiply = [&](int h, std::uint64_t b) {
    keep(x[h % 2]);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kPassSize / 16; ++s) {
      wgmma<T, kTileKeys, Major::k, Major::k>(x[h % 2], q_descriptor + (h * kPanelBytes + 32 * s) / 16,
                                              b + 32 * s / 16, s > 0);
    }
    wgmma_commit();
  };
  uint2* const lists = reinterpret_cast<uint2*>(slot_of(a));
  Collector collector(tile, query, a.bounds, lists, a.list);
  float score[kTileKeys / 8][4];
  const auto take = [&](int key_tile) {
    if ((key_tile + 1) * kTileKeys <= tile.position + first + 1) {
      collector.template group<false>(key_tile * kTileKeys, score);
    } else {
      collector.template group<true>(key_tile * kTileKeys, score);
    }
    collector.end_tile();
    if ((key_tile + 1) * kTileKeys % kMomentSegment == 0) collector.end_segment(shared, query);
  };
  int slot = 0;
#pragma unroll 1
  for (int key_tile = 0; key_tile < key_tiles; ++key_tile) {
    cp_async_wait<kPassStages - 2>();
    fence_async_proxy();
    __syncthreads();  // the tile has landed, and everyone is done with the one before
    const std::uint64_t b = ring_descriptor + slot * (kPanelBytes / 16);
    multiply(0, b);
    multiply(1, b);
    if (key_tile + kPassStages - 1 < key_tiles) load(slot == 0 ? kPassStages - 1 : slot - 1);
    cp_async_commit();
#pragma unroll
    for (int h = 0; h < kPassHeads; ++h) {
      h + 1 < kPassHeads ? wgmma_wait<1>() : wgmma_wait<0>();
      keep(x[h % 2]);
#pragma unroll
      for (int i = 0; i < kTileKeys / 2; ++i) {
        float& sum = score[i / 4][i % 4];
        sum = Head::add_head(h == 0 ? start[i % 4 / 2] : sum, weight[i % 4 / 2][h], factor, offset[h],
                             x[h % 2][i]);
      }
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) keep(score[n]);  // taken before they are overwritten
      if (h + 2 < kPassHeads) multiply(h + 2, b);
    }
    if (key_tile == 0) {
      collector.set_shift(__shfl_sync(kAll, score[0][0], lane / 4 * 4),
                          __shfl_sync(kAll, score[0][2], lane / 4 * 4));
    }
    take(key_tile);
    slot = slot + 1 == kPassStages ? 0 : slot + 1;
  }
  if (key_tiles * kTileKeys % kMomentSegment != 0) collector.end_segment(shared, query);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    shared.count[query + 8 * i][lane % 4] = collector.close(query, i, lists, a.list);
  }
  cp_async_wait<0>();
  __syncthreads();
}

template <typename T, ScoreForm form>
__global__ __launch_bounds__(kThreads, 3) void hopper_pass_kernel(const __grid_constant__ LongArgs args) {
#ifdef GSA_HOPPER_CODE
  extern __shared__ __align__(1024) char memory[];
  __shared__ PassShared shared;
  for_query_tiles(args, args.next_tile, [&](const QueryTile& tile) {
    for (int i = static_cast<int>(threadIdx.x); i < kTileQueries; i += kThreads) {
      shared.sums[i][0] = shared.sums[i][1] = 0;
    }
    collect<T, form>(args, tile, memory, shared);
    finish_tile(args, tile, shared, memory);
  });
#endif
}

bool wide(const void* data, long long token_stride, long long head_stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && token_stride % 8 == 0 && head_stride % 8 == 0;
}

}  // namespace

bool hopper_pass_takes(const ScoreInput& in, const Device& device) {
  return device.hopper() && in.heads == kPassHeads && in.head_size == kPassSize && in.wide_keys &&
         wide(in.q, in.q_token, in.q_head);
}

void launch_hopper_pass(const LongArgs& args, ScoreType type, std::size_t bytes, int blocks,
                        const Context& context) {
  const auto go = [&](auto* kernel) {
    const std::size_t all = bytes < kPassBytes ? kPassBytes : bytes;
    allow_shared_memory(kernel, all, "hopper_pass_kernel");
    kernel<<<static_cast<unsigned>(blocks), kThreads, all, stream_of(context.stream)>>>(args);
    check_launch("hopper_pass_kernel");
  };
  const bool sigmoid = type.form == ScoreForm::sigmoid;
  if (type.dtype == DType::bf16) {
    sigmoid ? go(&hopper_pass_kernel<__nv_bfloat16, ScoreForm::sigmoid>)
            : go(&hopper_pass_kernel<__nv_bfloat16, ScoreForm::relu>);
  } else {
    sigmoid ? go(&hopper_pass_kernel<__half, ScoreForm::sigmoid>)
            : go(&hopper_pass_kernel<__half, ScoreForm::relu>);
  }
}

}  // namespace gsa::cuda::selecting
