// One block of threads makes the list of one tile, in two walks over the tile's columns of mask words. The
// first counts, the second writes: a warp owns a run of neighbouring columns, so what it has to know of the
// others is where its own keys begin. In causal order there is one such place for each query of the tile.
#include "kernels/attention/union_plan.h"

#include <algorithm>
#include <limits>

#include "kernels/attention/union_tiles.cuh"
#include "kernels/common/cuda_check.h"

namespace gsa::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

struct PlanParams {
  MaskColumns mask;
  DeviceSequences sequences;
  int first_tile;
  int capacity;
  UnionTile* tile;
  int* keys;
  std::uint64_t* bits;
  std::uint64_t* by_query;  // the plan's words; may be null
};

// Lists of keys begin where the classes before end. In causal order query i has class i: the keys that it
// selects first. In ascending order all keys are of class 0. A lane takes `columns` columns at a time.
template <int tile_queries, UnionOrder order, int columns>
__global__ __launch_bounds__(kThreads, tile_queries <= 32 ? 2 : 1) void plan_kernel(PlanParams p) {
  constexpr bool kCausal = order == UnionOrder::causal;
  constexpr int kClasses = kCausal ? tile_queries : 1;
  extern __shared__ int shared[];
  int* const counts = shared;                      // [kWarps, kClasses]
  int* const totals = counts + kWarps * kClasses;  // [kClasses]
  int* const places = totals + kClasses;           // [kWarps, kClasses, 32]: where a lane's next key goes
  __shared__ UnionTile shared_tile;

  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (warp == 0) {
    const UnionTile found = find_tile(p.sequences, tile_queries, p.first_tile + static_cast<int>(blockIdx.x));
    if (lane == 0) shared_tile = found;
  }
  __syncthreads();
  const UnionTile tile = shared_tile;
  const int end = (tile.first_position + tile.queries - 1) / 32 + 1;  // columns that hold visible keys
  const int groups = (end + 32 * columns - 1) / (32 * columns);       // what a warp takes at a time
  const int group_begin = static_cast<int>(static_cast<std::int64_t>(groups) * warp / kWarps);
  const int group_end = static_cast<int>(static_cast<std::int64_t>(groups) * (warp + 1) / kWarps);

  // Keys of class c in the lane's columns.
  const auto count_of = [](const std::uint32_t(&m)[tile_queries][columns], std::uint32_t(&seen)[columns],
                           int c) {
    int count = 0;
#pragma unroll
    for (int x = 0; x < columns; ++x) {
      if constexpr (kCausal) {
        count += __popc(m[c][x] & ~seen[x]);
        seen[x] |= m[c][x];
      } else {
#pragma unroll
        for (int i = 0; i < tile_queries; ++i) seen[x] |= m[i][x];
        count += __popc(seen[x]);
      }
    }
    return count;
  };

  int count[kClasses] = {};
  for (int group = group_begin; group < group_end; ++group) {
    std::uint32_t m[tile_queries][columns];
    load_columns(p.mask, tile, (32 * group + lane) * columns, end, m);
    std::uint32_t seen[columns] = {};
#pragma unroll
    for (int c = 0; c < kClasses; ++c) count[c] += count_of(m, seen, c);
  }
#pragma unroll
  for (int c = 0; c < kClasses; ++c) {
    const int sum = static_cast<int>(__reduce_add_sync(kAll, static_cast<unsigned>(count[c])));
    if (lane == 0) counts[warp * kClasses + c] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kClasses) {
    int sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      int& entry = counts[w * kClasses + static_cast<int>(threadIdx.x)];
      const int own = entry;
      entry = sum;
      sum += own;
    }
    totals[threadIdx.x] = sum;
  }
  __syncthreads();
  int next[kClasses];  // where the warp's next key of each class goes
  int total = 0;
#pragma unroll
  for (int c = 0; c < kClasses; ++c) {
    next[c] = total + counts[warp * kClasses + c];
    total += totals[c];
  }
  total = min(total, p.capacity);

  int* const keys = p.keys + static_cast<std::size_t>(blockIdx.x) * p.capacity;
  std::uint64_t* const bits = p.bits + static_cast<std::size_t>(blockIdx.x) * p.capacity;
  int* const place = places + warp * kClasses * 32 + lane;
  for (int group = group_begin; group < group_end; ++group) {
    const int first = (32 * group + lane) * columns;
    std::uint32_t m[tile_queries][columns];
    load_columns(p.mask, tile, first, end, m);
    std::uint32_t seen[columns] = {};
    // Sums over the lanes before: two classes in one word, at most 2048 each.
#pragma unroll
    for (int c = 0; c < kClasses; c += 2) {
      std::uint32_t own = static_cast<std::uint32_t>(count_of(m, seen, c));
      if constexpr (kClasses > 1) own |= static_cast<std::uint32_t>(count_of(m, seen, c + 1)) << 16;
      std::uint32_t sum = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const std::uint32_t other = __shfl_up_sync(kAll, sum, static_cast<unsigned>(step));
        if (lane >= step) sum += other;
      }
      const std::uint32_t all = __shfl_sync(kAll, sum, 31);
      place[c * 32] = next[c] + static_cast<int>((sum - own) & 0xffff);
      next[c] += static_cast<int>(all & 0xffff);
      if constexpr (kClasses > 1) {
        place[(c + 1) * 32] = next[c + 1] + static_cast<int>((sum - own) >> 16);
        next[c + 1] += static_cast<int>(all >> 16);
      }
    }
#pragma unroll
    for (int x = 0; x < columns; ++x) {
      while (seen[x] != 0) {
        const std::uint32_t bit = seen[x] & (0u - seen[x]);
        seen[x] ^= bit;
        std::uint32_t who[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < tile_queries; ++i) {
          if ((m[i][x] & bit) != 0) who[i / 32] |= 1u << (i % 32);
        }
        int c = 0;
        if constexpr (kCausal) {
          c = tile_queries > 32 && who[0] == 0 ? 31 + __ffs(static_cast<int>(who[1]))
                                               : __ffs(static_cast<int>(who[0])) - 1;
        }
        const int at = place[c * 32]++;
        if (at < p.capacity) {  // a mask that breaks its own bound must not write beyond its list
          keys[at] = 32 * (first + x) + __ffs(static_cast<int>(bit)) - 1;
          bits[at] = static_cast<std::uint64_t>(who[1]) << 32 | who[0];
        }
      }
    }
  }

  const int padding = total + static_cast<int>(threadIdx.x);
  if (padding < (total + 63) / 64 * 64) {
    keys[padding] = 0;
    bits[padding] = 0;
  }
  if (threadIdx.x == 0) {
    UnionTile result = tile;
    result.count = total;
    p.tile[blockIdx.x] = result;
  }
  if (p.by_query == nullptr) return;

  // The same bits by query: one word for 64 keys, in the order that an accumulator's columns have in a warp.
  __syncthreads();
  std::uint64_t* const tile_words =
      p.by_query + static_cast<std::size_t>(blockIdx.x) * (p.capacity / 64) * tile_queries;
  for (int block = warp; block < (total + 63) / 64; block += kWarps) {
    const int key = 64 * block + lane % 16 / 2 * 8 + lane / 16 * 2 + lane % 2;
    const std::uint64_t low = bits[key], high = bits[key + 4];
#pragma unroll
    for (int begin = 0; begin < tile_queries; begin += 32) {
      std::uint64_t mine = 0;
#pragma unroll
      for (int i = begin; i < min(begin + 32, tile_queries); ++i) {
        const std::uint64_t word = static_cast<std::uint64_t>(__ballot_sync(kAll, high >> i & 1)) << 32 |
                                   __ballot_sync(kAll, low >> i & 1);
        if (lane == i - begin) mine = word;
      }
      if (begin + lane < tile_queries) tile_words[block * tile_queries + begin + lane] = mine;
    }
  }
}

template <int tile_queries, UnionOrder order, int columns>
void launch_columns(const PlanParams& params, int tiles, cudaStream_t stream) {
  constexpr int kClasses = order == UnionOrder::causal ? tile_queries : 1;
  constexpr std::size_t kShared = sizeof(int) * (kWarps * kClasses + kClasses + kWarps * kClasses * 32);
  const auto kernel = plan_kernel<tile_queries, order, columns>;
  if (kShared > 40 * 1024) allow_shared_memory(kernel, kShared, "union plan");
  kernel<<<static_cast<unsigned>(tiles), kThreads, kShared, stream>>>(params);
  check_launch("union plan");
}

// Long rows are read two words at a time; with short ones that would leave warps without work.
template <int tile_queries, UnionOrder order>
void launch(const PlanParams& params, int tiles, cudaStream_t stream) {
  constexpr int kColumns = tile_queries <= 32 ? 2 : 1;
  if (params.sequences.longest_keys >= 2 * kWarps * 32 * 32 * kColumns) {
    launch_columns<tile_queries, order, kColumns>(params, tiles, stream);
  } else {
    launch_columns<tile_queries, order, 1>(params, tiles, stream);
  }
}

template <int tile_queries>
void launch(const PlanParams& params, UnionOrder order, int tiles, cudaStream_t stream) {
  if (order == UnionOrder::causal) {
    launch<tile_queries, UnionOrder::causal>(params, tiles, stream);
  } else {
    launch<tile_queries, UnionOrder::ascending>(params, tiles, stream);
  }
}

// Entries a tile may need, whole blocks of 64.
int capacity_of(const ConstMask& mask, const DeviceSequences& sequences, int tile_queries) {
  std::int64_t bound = sequences.longest_keys;
  if (mask.max_selected > 0) bound = std::min(bound, mask.max_selected * tile_queries);
  return static_cast<int>(std::max<std::int64_t>((bound + 63) / 64 * 64, 64));
}

}  // namespace

int union_tiles(const Sequences& sequences, int tile_queries) {
  std::int64_t tiles = 0;
  for (std::int64_t n = 0; n < sequences.count; ++n) {
    tiles += tile_count(static_cast<int>(sequences.first_position(n)), static_cast<int>(sequences.queries(n)),
                        tile_queries);
  }
  return static_cast<int>(tiles);
}

UnionPlan make_union_plan(const ConstMask& mask, const Sequences& host_sequences,
                          const DeviceSequences& sequences, int tile_queries, UnionOrder order,
                          int first_tile, int tiles, const Context& context, const UnionPlan* reuse,
                          bool words) {
  if (tile_queries < 1 || tile_queries > 64 || (tile_queries & (tile_queries - 1)) != 0) {
    bad_argument("union plan", "tile_queries", "a power of two up to 64", concat(tile_queries));
  }
  const int all = union_tiles(host_sequences, tile_queries);
  if (first_tile < 0 || tiles < 0 || tiles > all - first_tile) {
    bad_argument("union plan", "tiles", concat("a range within ", all, " tiles"),
                 concat(first_tile, " and ", tiles, " more"));
  }
  UnionPlan plan;
  plan.tile_queries = tile_queries;
  plan.tiles = tiles;
  plan.capacity = capacity_of(mask, sequences, tile_queries);
  if (tiles == 0) return plan;
  PlanParams params;
  params.mask = columns_of(mask);
  params.sequences = sequences;
  params.first_tile = first_tile;
  params.capacity = plan.capacity;
  if (reuse != nullptr) {
    if (reuse->capacity != plan.capacity || reuse->tiles < tiles || (words && reuse->words == nullptr)) {
      bad_argument(
          "union plan", "reuse",
          concat("room for ", tiles, " tiles of ", plan.capacity, " keys", words ? " and their words" : ""),
          concat(reuse->tiles, " of ", reuse->capacity));
    }
    params.tile = const_cast<UnionTile*>(reuse->tile);
    params.keys = const_cast<int*>(reuse->keys);
    params.bits = const_cast<std::uint64_t*>(reuse->bits);
    params.by_query = words ? const_cast<std::uint64_t*>(reuse->words) : nullptr;
  } else {
    const std::size_t entries = static_cast<std::size_t>(tiles) * static_cast<std::size_t>(plan.capacity);
    params.tile = context.workspace->array<UnionTile>(static_cast<std::size_t>(tiles));
    params.keys = context.workspace->array<int>(entries);
    params.bits = context.workspace->array<std::uint64_t>(entries);
    params.by_query =
        words ? context.workspace->array<std::uint64_t>(entries / 64 * static_cast<std::size_t>(tile_queries))
              : nullptr;
  }
  plan.tile = params.tile;
  plan.keys = params.keys;
  plan.bits = params.bits;
  plan.words = params.by_query;

  const cudaStream_t stream = stream_of(context.stream);
  switch (tile_queries) {
    case 1:
      launch<1>(params, order, tiles, stream);
      break;
    case 2:
      launch<2>(params, order, tiles, stream);
      break;
    case 4:
      launch<4>(params, order, tiles, stream);
      break;
    case 8:
      launch<8>(params, order, tiles, stream);
      break;
    case 16:
      launch<16>(params, order, tiles, stream);
      break;
    case 32:
      launch<32>(params, order, tiles, stream);
      break;
    default:
      launch<64>(params, order, tiles, stream);
      break;
  }
  return plan;
}

int union_tiles_at_once(const ConstMask& mask, const DeviceSequences& sequences, int tile_queries) {
  constexpr std::int64_t kBytes = std::int64_t(512) << 20;
  const std::int64_t each = std::int64_t(12) * capacity_of(mask, sequences, tile_queries);
  return static_cast<int>(std::clamp<std::int64_t>(kBytes / each, 1, std::numeric_limits<int>::max()));
}

}  // namespace gsa::cuda
