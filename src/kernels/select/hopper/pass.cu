// Sample and pass over the keys with wgmma (hopper/scores.cuh), for 4 heads of 64. In the pass two groups of
// four warps share a tile of queries, as a chunk of 16,384 queries has only two tiles for each multiprocessor:
// with 16 warps there, some take sigmoids while others wait for products or collect.
#include "kernels/select/cuda/pass.cuh"
#include "kernels/select/hopper/scores.cuh"

namespace gsa::cuda::selecting {
namespace {

[[maybe_unused]] constexpr int kPassSize = 64;  // used by Hopper's code alone

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
  for_scores<T, form, kPassSize>(
      args.in, tile, q_address, (count + kTileKeys - 1) / kTileKeys, last, load,
      [](int, const TileScores&) {},
      [&](int key_tile, const TileScores& score) {
        store_sampled(scores, args.samples, query, key_tile * kTileKeys, score);
      });
#endif
}

// Shared memory of the pass: queries, a ring of keys for each group of warps, and the blocks of a segment.
constexpr int kPassGroups = 2;
constexpr int kPassThreads = kPassGroups * kThreads;
constexpr int kRing = 2;  // tiles of keys of a group
constexpr int kSegmentBlocks = kMomentSegment / kMomentBlock;
[[maybe_unused]] constexpr int kGroupBlocks = kSegmentBlocks / kPassGroups;
constexpr int kBlocksBytes = kSegmentBlocks * 2 * kThreads * static_cast<int>(sizeof(float2));
constexpr int kGroupsBytes = (kPassHeads + kPassGroups * kRing) * kPanelBytes + kBlocksBytes + 1024;
static_assert(kMomentBlock == kTileKeys && kPassGroups * kLaneLists == kMaxLists);

struct GroupsShared {
  PassShared row;
  float first[kTileQueries];  // scores of key 0
  // Of every query: the weights of its heads, and the start of their sum. Registers are short.
  float weight[kPassHeads + 1][kTileQueries];
};

[[maybe_unused]] __device__ __forceinline__ float load_shared_float(std::uint32_t from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}
[[maybe_unused]] __device__ __forceinline__ void store_shared(std::uint32_t to,
                                                              const ScoreSums<float>& sums) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(sums.sum), "f"(sums.square) : "memory");
}
[[maybe_unused]] __device__ __forceinline__ ScoreSums<float> load_shared(std::uint32_t from) {
  ScoreSums<float> sums;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(sums.sum), "=f"(sums.square) : "r"(from) : "memory");
  return sums;
}

// The blocks of a segment, from each group in turn, added up in their order: group i for row i of a lane.
[[maybe_unused]] __device__ __forceinline__ void add_blocks(std::uint32_t blocks, int count, int group,
                                                            int query, PassShared& shared) {
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  ScoreSums<float> chain;
#pragma unroll 4
  for (int b = 0; b < count; ++b) {
    add_sums(chain, load_shared(blocks + 8 * ((2 * b + group) * kThreads + thread)));
  }
  const ScoreSums<float> sums = join_chains(chain);
  if (thread % 4 == 0) {
    double(&to)[2] = shared.sums[query + 8 * group];
    ScoreSums<double> row = {to[0], to[1]};
    add_segment(row, sums);
    to[0] = row.sum, to[1] = row.square;
  }
}

// Brings tiles of keys to a group's ring: tile `group` first, then every kPassGroups-th. Rows beyond the last
// key that the tile of queries sees repeat it; their scores are hidden.
template <typename T>
class GroupKeys {
 public:
  __device__ __forceinline__ GroupKeys(const ScoreInput& in, const QueryTile& tile, std::uint32_t ring,
                                       int group)
      : keys_(reinterpret_cast<const char*>(static_cast<const T*>(in.k) + tile.key * in.k_token +
                                            8 * copy_.chunk)),
        k_bytes_(static_cast<std::uint32_t>(in.k_token * static_cast<long long>(sizeof(T)))),
        last_(tile.position + tile.count - 1),
        to_(ring + copy_.to(0)),
        row_(group * kTileKeys + copy_.row) {}
  __device__ __forceinline__ void operator()(int slot) {
#pragma unroll
    for (int i = 0; i < copy_.kTimes; ++i) {
      const std::uint32_t row = static_cast<std::uint32_t>(min(row_ + copy_.kRowsAtOnce * i, last_));
      cp_async_16(to_ + slot * kPanelBytes + (copy_.to(i) - copy_.to(0)),
                  keys_ + static_cast<std::uint64_t>(row) * k_bytes_);
    }
    row_ += kPassGroups * kTileKeys;
  }

 private:
  const PanelCopy<kPassSize> copy_;
  const char* const keys_;
  const std::uint32_t k_bytes_;
  const int last_;
  const std::uint32_t to_;
  int row_;
};

// Two groups of four warps take turns at tiles of 64 keys, each with lists of its own. A group has one set of
// accumulators: while it waits for products, the three others of the multiprocessor take sigmoids.
template <typename T, ScoreForm form>
__global__ __launch_bounds__(kPassThreads, kHopperPassBlocks) void hopper_pass_kernel(
    const __grid_constant__ LongArgs args) {
#ifdef GSA_HOPPER_CODE
  using namespace hopper;
  using Head = ScoreHead<form>;
  extern __shared__ __align__(1024) char memory[];
  __shared__ GroupsShared shared;
  const int number = static_cast<int>(blockIdx.x);
  const QueryTile tile = tile_of(args, number);
  if (tile.count == 0) return;
  const ScoreInput& in = args.in;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The same in all lanes: the reduction lets the compiler know.
  const int group = static_cast<int>(__reduce_max_sync(kAll, threadIdx.x / kThreads));
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int first = thread / 32 * 16, query = first + lane / 4, visible = tile.position + tile.count;
  if (thread < kTileQueries) shared.row.sums[thread][group] = 0;

  const std::uint32_t q_address = aligned_address(memory);
  const std::uint32_t ring = q_address + (kPassHeads + group * kRing) * kPanelBytes;
  constexpr int kBlocksAt = (kPassHeads + kPassGroups * kRing) * kPanelBytes;
  const std::uint32_t blocks = q_address + kBlocksAt;
  const PanelCopy<kPassSize> copy;
#pragma unroll
  for (int i = 0; i < kPassHeads / kPassGroups; ++i) {
    const int h = i * kPassGroups + group;
#pragma unroll
    for (int j = 0; j < copy.kTimes; ++j) {
      const long long from = tile.row + min(copy.row + copy.kRowsAtOnce * j, tile.count - 1);
      cp_async_16(q_address + h * kPanelBytes + copy.to(j),
                  static_cast<const T*>(in.q) + from * in.q_token + h * in.q_head + 8 * copy.chunk);
    }
  }
  GroupKeys<T> load(in, tile, ring, group);
  load(0);
  cp_async_commit();

  const float factor = Head::factor(in.scale);
  float offset[kPassHeads];
#pragma unroll
  for (int h = 0; h < kPassHeads; ++h) offset[h] = Head::offset(bias_of<T>(in, h));
  if (group == 0) {
    const WarpQueries queries(tile, first);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float start = 0;
#pragma unroll
      for (int h = 0; h < kPassHeads; ++h) {
        const float weight = Head::weight(queries.weight<T>(in, i, h));
        start = Head::add_weight(start, weight);
        shared.weight[h][query + 8 * i] = weight;
      }
      shared.weight[kPassHeads][query + 8 * i] = start;
    }
  }
  const std::uint32_t weights = shared_address(&shared.weight[0][query]);

  float x[kTileKeys / 2];
  const std::uint64_t q_descriptor = k_major(q_address), ring_descriptor = k_major(ring);
  const auto multiply = [&](int h, std::uint64_t b) {
    keep(x);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kPassSize / 16; ++s) {
      wgmma<T, kTileKeys, Major::k, Major::k>(x, q_descriptor + (h * kPanelBytes + 32 * s) / 16,
                                              b + 32 * s / 16, s > 0);
    }
    wgmma_commit();
  };

  const int list = lane % kLaneLists + group * kLaneLists;
  const ListSpace space = lists_of(args, number);
  Collector collector(tile, query, list, space);
  const int tiles = (visible + kTileKeys - 1) / kTileKeys;
  const int steps = (tiles + kPassGroups - 1) / kPassGroups;  // the last of a group may lie beyond the keys
  const int whole = (tile.position + first + 1) / kTileKeys;  // tiles that all queries of the warp see
  int before = (group - kPassGroups) * kTileKeys;             // position of the first key of the tile before
  TileScores score = {};
  // Collects the scores of step `step`.
  const auto collect = [&](int step) {
    collector.template groups<false, 0, kTileKeys / 8>(before, space.base, score);
    collector.check_room(before, query, list, space);
    const std::uint32_t to =
        blocks + 16 * kThreads * (step % kGroupBlocks * kPassGroups + group) + 8 * thread;
#pragma unroll
    for (int i = 0; i < 2; ++i) store_shared(to + 8 * kThreads * i, collector.take_block(i));
  };
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<0>();
    fence_async_proxy();
    if (step == 0) {
      __syncthreads();
    } else {
      named_barrier(1 + group, kThreads);  // the tile has landed, and the group is done with the one before
    }
    const std::uint64_t b = ring_descriptor + step % kRing * (kPanelBytes / 16);
    multiply(0, b);
    if (step + 1 < steps) load((step + 1) % kRing);
    cp_async_commit();
    collect(step - 1 + kGroupBlocks);
    if (step % kGroupBlocks == 0 && step > 0) {
      __syncthreads();
      add_blocks(blocks, kSegmentBlocks, group, query, shared.row);
      __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < kTileKeys / 8; ++n) keep(score[n]);
#pragma unroll
    for (int h = 0; h < kPassHeads; ++h) {
      float weight[2], start[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        weight[i] = load_shared_float(weights + 4 * (kTileQueries * h + 8 * i));
        if (h == 0) start[i] = load_shared_float(weights + 4 * (kTileQueries * kPassHeads + 8 * i));
      }
      wgmma_wait<0>();
      keep(x);
#pragma unroll
      for (int i = 0; i < kTileKeys / 2; ++i) {
        score[i / 4][i % 4] = Head::add_head(h == 0 ? start[i % 4 / 2] : score[i / 4][i % 4],
                                             weight[i % 4 / 2], factor, offset[h], x[i]);
      }
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) keep(score[n]);
      if (h + 1 < kPassHeads) multiply(h + 1, b);
    }
    before += kPassGroups * kTileKeys;
    if (step == 0) {
      if (group == 0 && lane % 4 == 0) {
        shared.first[query] = score[0][0], shared.first[query + 8] = score[0][2];
      }
      __syncthreads();
      collector.start(tile, query, args.bounds, shared.first[query], shared.first[query + 8]);
    }
    if (before >= whole * kTileKeys) collector.hide(before, score);
  }
  cp_async_wait<0>();
  collect(steps - 1);
  __syncthreads();
  add_blocks(blocks, ((steps - 1) % kGroupBlocks + 1) * kPassGroups, group, query, shared.row);
  __syncthreads();
  collector.close(shared.row, query, list, space, args.passed + number * kTileQueries);
#endif
}

template <class Kernel>
void launch(Kernel* kernel, const char* name, int threads, int bytes, const LongArgs& args,
            const Context& context) {
  allow_shared_memory(kernel, bytes, name);
  kernel<<<static_cast<unsigned>(args.tiles), threads, bytes, stream_of(context.stream)>>>(args);
  check_launch(name);
}

}  // namespace

void launch_hopper_sample(const LongArgs& args, ScoreType type, const Context& context) {
  constexpr ScoreForm kSigmoid = ScoreForm::sigmoid, kRelu = ScoreForm::relu;
  const auto go = [&](auto* kernel) {
    launch(kernel, "hopper_sample_kernel", kThreads, kPassBytes, args, context);
  };
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
  const auto go = [&](auto* kernel) {
    launch(kernel, "hopper_pass_kernel", kPassThreads, kGroupsBytes, args, context);
  };
  if (type.dtype == DType::bf16) {
    type.form == kSigmoid ? go(&hopper_pass_kernel<__nv_bfloat16, kSigmoid>)
                          : go(&hopper_pass_kernel<__nv_bfloat16, kRelu>);
  } else {
    type.form == kSigmoid ? go(&hopper_pass_kernel<__half, kSigmoid>)
                          : go(&hopper_pass_kernel<__half, kRelu>);
  }
}

}  // namespace gsa::cuda::selecting
