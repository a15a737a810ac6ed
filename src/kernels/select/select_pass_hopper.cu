// Sample and pass over the keys with wgmma, for 4 heads of 64.
//
// Queries of all heads lie in shared memory, one [64, 64] tile a head, and so do tiles of 64 keys; the four
// warps of a block are the warpgroup that multiplies them. Two sets of accumulators: the products of a head
// run while the sigmoids of the one before are taken. And while the special-function unit takes the sigmoids
// of a tile, the scores of the tile before are added up and collected. That takes registers for two blocks a
// multiprocessor only, as many as a chunk of 16,384 queries has for each.
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

using TileScores = float[kTileKeys / 8][4];  // of a lane: laid out as mma_16x8x16's result

// Scores of a tile of queries with tiles of keys. load(slot) brings 16 bytes, the chunk thread % 8, of rows
// thread / 8 + 16 i, i = 0 .. 3, of the next tile of keys to a slot of the ring, by cp.async. While the
// scores of a tile are computed, meanwhile(part, last), part = 0, 1, 2, works on those of the tile before (on
// what `last` held, before the first); done(key_tile, last) is called when they are there.
template <typename T, ScoreForm form, class Load, class Meanwhile, class Done>
__device__ __forceinline__ void for_scores(const LongArgs& a, const QueryTile& tile, std::uint32_t q_address,
                                           int key_tiles, TileScores& last, Load load, Meanwhile meanwhile,
                                           Done done) {
  using namespace hopper;
  using Head = ScoreHead<form>;
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint32_t ring = q_address + kPassHeads * kPanelBytes;
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
#pragma unroll
  for (int i = 0; i < kPassStages - 1; ++i) {
    if (i < key_tiles) load(i);
    cp_async_commit();
  }

  float factor = Head::factor(a.in.scale), start[2] = {0, 0}, weight[2][kPassHeads], offset[kPassHeads];
  const WarpQueries queries(tile, thread / 32 * 16);
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
  TileScores score;
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
    meanwhile(0, last);
#pragma unroll
    for (int h = 0; h < kPassHeads; ++h) {
      h + 1 < kPassHeads ? wgmma_wait<1>() : wgmma_wait<0>();
      keep(x[h % 2]);
      TileScores& to = h + 1 < kPassHeads ? score : last;
#pragma unroll
      for (int i = 0; i < kTileKeys / 2; ++i) {
        to[i / 4][i % 4] = Head::add_head(h == 0 ? start[i % 4 / 2] : score[i / 4][i % 4],
                                          weight[i % 4 / 2][h], factor, offset[h], x[h % 2][i]);
      }
      if (h < 2) meanwhile(h + 1, last);
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) keep(to[n]);  // taken before they are overwritten
      if (h + 2 < kPassHeads) multiply(h + 2, b);
    }
    done(key_tile, last);
    slot = slot + 1 == kPassStages ? 0 : slot + 1;
  }
  cp_async_wait<0>();
}

[[maybe_unused]] __device__ __forceinline__ std::uint32_t aligned_address(const char* memory) {
  return (shared_address(memory) + 1023) / 1024 * 1024;
}

template <typename T, ScoreForm form>
__global__ __launch_bounds__(kThreads, kHopperPassBlocks) void hopper_sample_kernel(
    const __grid_constant__ LongArgs args) {
#ifdef GSA_HOPPER_CODE
  extern __shared__ __align__(1024) char memory[];
  const int number = static_cast<int>(blockIdx.x);
  const QueryTile tile = tile_of(args, number);
  const int count = samples_of(args, tile);
  if (count == 0) return;
  const int thread = static_cast<int>(threadIdx.x), query = thread / 32 * 16 + thread % 32 / 4;
  const int visible = tile.position + tile.count, row = thread / 8, chunk = thread % 8;
  const std::uint32_t q_address = aligned_address(memory);
  const std::uint32_t to = q_address + kPassHeads * kPanelBytes + hopper::swizzled(row, chunk);
  const T* const keys = static_cast<const T*>(args.in.k) + tile.key * args.in.k_token + 8 * chunk;
  int next = row;
  const auto load = [&](int slot) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const long long s = min(sample_position(min(next + 16 * i, count - 1), args.shift), visible - 1);
      cp_async_16(to + slot * kPanelBytes + i * 2048, keys + s * args.in.k_token);
    }
    next += kTileKeys;
  };
  float* const scores = reinterpret_cast<float*>(slot_of(args, number));
  TileScores last;
  for_scores<T, form>(
      args, tile, q_address, (count + kTileKeys - 1) / kTileKeys, last, load, [](int, const TileScores&) {},
      [&](int key_tile, const TileScores& score) {
        store_sampled(scores, args.samples, query, key_tile * kTileKeys, score);
      });
#endif
}

template <typename T, ScoreForm form>
__global__ __launch_bounds__(kThreads, kHopperPassBlocks) void hopper_pass_kernel(
    const __grid_constant__ LongArgs args) {
#ifdef GSA_HOPPER_CODE
  extern __shared__ __align__(1024) char memory[];
  __shared__ PassShared shared;
  const int number = static_cast<int>(blockIdx.x);
  const QueryTile tile = tile_of(args, number);
  if (tile.count == 0) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  for (int i = thread; i < kTileQueries; i += kThreads) shared.sums[i][0] = shared.sums[i][1] = 0;
  __syncthreads();
  const int first = thread / 32 * 16, query = first + lane / 4;
  const int visible = tile.position + tile.count, row = thread / 8, chunk = thread % 8;
  const std::uint32_t q_address = aligned_address(memory);
  const std::uint32_t to = q_address + kPassHeads * kPanelBytes + hopper::swizzled(row, chunk);
  const T* const keys = static_cast<const T*>(args.in.k) + tile.key * args.in.k_token;
  const char* from = reinterpret_cast<const char*>(keys + row * args.in.k_token + 8 * chunk);
  const long long step = 16 * args.in.k_token * static_cast<long long>(sizeof(T));
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

  uint2* const lists = reinterpret_cast<uint2*>(slot_of(args, number));
  Collector collector(tile, query, lists, args.list);
  int before = -kTileKeys;  // position of the first key of the tile before
  const auto collect = [&](int part, const TileScores& last) {
    if (part == 0) {
      collector.template groups<false, 0, 3>(before, last);
    } else if (part == 1) {
      collector.template groups<false, 3, 6>(before, last);
    } else {
      collector.template groups<false, 6, 8>(before, last);
      collector.end_tile();
    }
  };
  const int whole = (tile.position + first + 1) / kTileKeys;  // tiles that all queries of the warp see
  TileScores last = {};
  for_scores<T, form>(args, tile, q_address, (visible + kTileKeys - 1) / kTileKeys, last, load, collect,
                      [&](int key_tile, TileScores& score) {
                        if (key_tile == 0) {
                          collector.start(tile, query, args.bounds,
                                          __shfl_sync(kAll, score[0][0], lane / 4 * 4),
                                          __shfl_sync(kAll, score[0][2], lane / 4 * 4));
                        } else if (key_tile * kTileKeys % kMomentSegment == 0) {
                          collector.end_segment(shared, query);
                        }
                        before += kTileKeys;
                        if (key_tile >= whole) collector.hide(before, score);
                      });
#pragma unroll
  for (int part = 0; part < 3; ++part) collect(part, last);
  collector.end_segment(shared, query);
  __syncwarp();
  collector.close(shared, query, lists, args.list, args.passed + number * kTileQueries);
#endif
}

bool wide(const void* data, long long token_stride, long long head_stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && token_stride % 8 == 0 && head_stride % 8 == 0;
}

template <class Kernel>
void launch(Kernel* kernel, const char* name, const LongArgs& args, const Context& context) {
  allow_shared_memory(kernel, kPassBytes, name);
  kernel<<<static_cast<unsigned>(args.tiles), kThreads, kPassBytes, stream_of(context.stream)>>>(args);
  check_launch(name);
}

}  // namespace

bool hopper_pass_takes(const ScoreInput& in, const Device& device) {
  return device.hopper() && in.heads == kPassHeads && in.head_size == kPassSize && in.wide_keys &&
         wide(in.q, in.q_token, in.q_head);
}

void launch_hopper_sample(const LongArgs& args, ScoreType type, const Context& context) {
  constexpr ScoreForm kSigmoid = ScoreForm::sigmoid, kRelu = ScoreForm::relu;
  const auto go = [&](auto* kernel) { launch(kernel, "hopper_sample_kernel", args, context); };
  if (type.dtype == DType::bf16) {
    type.form == kSigmoid ? go(&hopper_sample_kernel<__nv_bfloat16, kSigmoid>)
                          : go(&hopper_sample_kernel<__nv_bfloat16, kRelu>);
  } else {
    type.form == kSigmoid ? go(&hopper_sample_kernel<__half, kSigmoid>)
                          : go(&hopper_sample_kernel<__half, kRelu>);
  }
}

void launch_hopper_pass(const LongArgs& args, ScoreType type, const Context& context) {
  constexpr ScoreForm kSigmoid = ScoreForm::sigmoid, kRelu = ScoreForm::relu;
  const auto go = [&](auto* kernel) { launch(kernel, "hopper_pass_kernel", args, context); };
  if (type.dtype == DType::bf16) {
    type.form == kSigmoid ? go(&hopper_pass_kernel<__nv_bfloat16, kSigmoid>)
                          : go(&hopper_pass_kernel<__nv_bfloat16, kRelu>);
  } else {
    type.form == kSigmoid ? go(&hopper_pass_kernel<__half, kSigmoid>)
                          : go(&hopper_pass_kernel<__half, kRelu>);
  }
}

}  // namespace gsa::cuda::selecting
