// Sample and pass over the keys with wgmma (hopper/scores.cuh), for 4 heads of 64. While the special-function
// unit takes the sigmoids of a tile, the scores of the tile before are added up and collected. That takes
// registers for two blocks a multiprocessor only, as many as a chunk of 16,384 queries has for each.
#include "kernels/select/cuda/pass.cuh"
#include "kernels/select/hopper/scores.cuh"
#include "kernels/select/select_plan.h"

namespace gsa::cuda::selecting {
namespace {

// Used by Hopper's code alone.
[[maybe_unused]] constexpr int kPassSize = 64;
#ifdef GSA_SELECT_SPREAD  // an option of CMake (docs/kernels/select.md, "What remains")
[[maybe_unused]] constexpr bool kSpread = true;
#else
[[maybe_unused]] constexpr bool kSpread = false;
#endif

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
  const int visible = tile.position + tile.count;
  const std::uint32_t q_address = aligned_address(memory);
  const PanelCopy<kPassSize> copy;
  const std::uint32_t to = q_address + kPassHeads * kPanelBytes;
  const T* const keys = static_cast<const T*>(args.in.k) + tile.key * args.in.k_token + 8 * copy.chunk;
  int next = copy.row;
  const auto load = [&](int slot) {
#pragma unroll
    for (int i = 0; i < copy.kTimes; ++i) {
      const int sample = min(next + copy.kRowsAtOnce * i, count - 1);
      const long long s = min(sample_position(sample, args.shift), visible - 1);
      cp_async_16(to + slot * kPanelBytes + copy.to(i), keys + s * args.in.k_token);
    }
    next += kTileKeys;
  };
  float* const scores = reinterpret_cast<float*>(slot_of(args, number));
  TileScores last;
  for_scores<T, form, kPassSize, kSpread>(
      args.in, tile, q_address, (count + kTileKeys - 1) / kTileKeys, last, load,
      [](int, const TileScores&) {},
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
  const int number = tile_of_block(static_cast<int>(blockIdx.x), args.tiles, args.multiprocessors);
  const QueryTile tile = tile_of(args, number);
  if (tile.count == 0) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  for (int i = thread; i < kTileQueries; i += kThreads) shared.sums[i][0] = shared.sums[i][1] = 0;
  __syncthreads();
  const int first = thread / 32 * 16, query = first + lane / 4, visible = tile.position + tile.count;
  const std::uint32_t q_address = aligned_address(memory);
  KeyPanels<T, kPassSize> load(args.in, tile, q_address, 0);

  uint2* const lists = reinterpret_cast<uint2*>(slot_of(args, number));
  Collector collector(tile, query, lists, args.list);
  int before = -kTileKeys;  // position of the first key of the tile before
  const auto collect = [&](int part, const TileScores& last) {
    if constexpr (kSpread) {
      collector.one(before, last, part);
    } else if (part == 0) {
      collector.template groups<false, 0, 3>(before, last);
    } else if (part == 1) {
      collector.template groups<false, 3, 6>(before, last);
    } else {
      collector.template groups<false, 6, 8>(before, last);
    }
    if (part == meanwhile_parts(kSpread) - 1) collector.end_tile(before, query, lists, args.list);
  };
  const int whole = (tile.position + first + 1) / kTileKeys;  // tiles that all queries of the warp see
  TileScores last = {};
  for_scores<T, form, kPassSize, kSpread>(args.in, tile, q_address, (visible + kTileKeys - 1) / kTileKeys,
                                          last, load, collect, [&](int key_tile, TileScores& score) {
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
  for (int part = 0; part < meanwhile_parts(kSpread); ++part) collect(part, last);
  collector.end_segment(shared, query);
  __syncwarp();
  collector.close(shared, query, lists, args.list, args.passed + number * kTileQueries);
#endif
}

template <class Kernel>
void launch(Kernel* kernel, const char* name, const LongArgs& args, const Context& context) {
  allow_shared_memory(kernel, kPassBytes, name);
  kernel<<<static_cast<unsigned>(args.tiles), kThreads, kPassBytes, stream_of(context.stream)>>>(args);
  check_launch(name);
}

}  // namespace

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
