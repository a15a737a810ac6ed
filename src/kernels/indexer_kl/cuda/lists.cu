// Packed lists of unions (cuda/lists.h). As in attention/union_plan.cu a block of threads walks twice over a
// tile's columns of mask words, a warp over a run of neighbouring ones: the first walk counts, for every tile
// of the call; then chunks are cut; the second walk, chunk by chunk, writes.
//
// Lists are in causal order (UnionOrder::causal), so that a query's sums do not depend on later queries.
// Parts of dk are stored in ascending order of keys instead: which row a key has follows from the words of
// the union, and whoever adds up the parts of a key needs no table with an entry for every key of every tile.
#include "kernels/indexer_kl/cuda/lists.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/attention/union_tiles.cuh"
#include "kernels/common/cuda_check.h"

namespace gsa::cuda::kl {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kQueries = kListQueries;
static_assert(kQueries == 32, "classes are lanes, and tiles begin where words do");

struct CountParams {
  MaskColumns mask;
  DeviceSequences sequences;
  int capacity;     // the most entries that the mask's bound allows
  UnionTile* tile;  // [tiles]
  int* counts;      // [tiles, kWarps, kQueries]: keys of each class in a warp's columns
};

struct ListParams {
  MaskColumns mask;
  const UnionTile* tile;
  const int* counts;
  const int* tile_slot;
  const ListRange* range;
  ListSlot* slot;
  int* keys;
  std::uint32_t* bits;
  int* row;  // may be null, with word
  ListWord* word;
  int max_tiles;
  int rows;  // of dk_part
};

// The columns of a warp, in groups of 32 lanes.
template <int columns>
struct WarpColumns {
  int end;  // columns that hold visible keys
  int group_begin, group_end;

  __device__ __forceinline__ WarpColumns(const UnionTile& tile, int warp)
      : end((tile.first_position + tile.queries - 1) / 32 + 1) {
    const int groups = (end + 32 * columns - 1) / (32 * columns);
    group_begin = static_cast<int>(static_cast<std::int64_t>(groups) * warp / kWarps);
    group_end = static_cast<int>(static_cast<std::int64_t>(groups) * (warp + 1) / kWarps);
  }
};

// Keys of class c in the lane's columns: those that query c is the first to select.
template <int columns>
__device__ __forceinline__ int count_class(const std::uint32_t (&m)[kQueries][columns],
                                           std::uint32_t (&seen)[columns], int c) {
  int count = 0;
#pragma unroll
  for (int x = 0; x < columns; ++x) {
    count += __popc(m[c][x] & ~seen[x]);
    seen[x] |= m[c][x];
  }
  return count;
}

// A block: a tile.
template <int columns>
__global__ __launch_bounds__(kThreads, 2) void count_kernel(CountParams p) {
  __shared__ UnionTile shared_tile;
  __shared__ int totals[kWarps];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (warp == 0) {
    const UnionTile found = find_tile(p.sequences, kQueries, static_cast<int>(blockIdx.x));
    if (lane == 0) shared_tile = found;
  }
  __syncthreads();
  const UnionTile tile = shared_tile;
  const WarpColumns<columns> own(tile, warp);
  int count[kQueries] = {};
  for (int group = own.group_begin; group < own.group_end; ++group) {
    std::uint32_t m[kQueries][columns];
    load_columns(p.mask, tile, (32 * group + lane) * columns, own.end, m);
    std::uint32_t seen[columns] = {};
#pragma unroll
    for (int c = 0; c < kQueries; ++c) count[c] += count_class(m, seen, c);
  }
  int mine = 0;  // of class `lane`
#pragma unroll
  for (int c = 0; c < kQueries; ++c) {
    const int sum = static_cast<int>(__reduce_add_sync(kAll, static_cast<unsigned>(count[c])));
    if (lane == c) mine = sum;
  }
  p.counts[static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x] = mine;
  const int total = static_cast<int>(__reduce_add_sync(kAll, static_cast<unsigned>(mine)));
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  if (threadIdx.x == 0) {
    UnionTile result = tile;
    result.count = 0;
    for (int w = 0; w < kWarps; ++w) result.count += totals[w];
    result.count = min(result.count, p.capacity);  // a mask that breaks its own bound loses keys
    p.tile[blockIdx.x] = result;
  }
}

// One block: the slots of the tiles before each tile, then the chunks. tile_slot has tiles + 1 places.
__global__ __launch_bounds__(1024) void cut_kernel(const UnionTile* tile, int tiles, int slots, int max_tiles,
                                                   int rounds, int* tile_slot, ListRange* ranges) {
  __shared__ int sums[32];
  __shared__ int carried;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  if (thread == 0) carried = 0;
  for (int r = thread; r < rounds; r += 1024) ranges[r] = ListRange{tiles, 0, 0, 0};
  for (int base = 0; base <= tiles; base += 1024) {
    const int t = base + thread;
    const int own = t < tiles ? (tile[t].count + kSlot - 1) / kSlot : 0;
    int sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAll, sum, static_cast<unsigned>(step));
      if (lane >= step) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    int before = carried;
    for (int w = 0; w < warp; ++w) before += sums[w];
    if (t <= tiles) tile_slot[t] = before + sum - own;
    __syncthreads();
    if (thread == 1023) carried = before + sum;
  }
  __syncthreads();
  if (warp != 0) return;
  int first = 0;
  for (int r = 0; r < rounds && first < tiles; ++r) {
    const int begin = tile_slot[first];
    // The last of first + 1 .. high where the chunk may end; one tile always fits.
    int low = first + 1, high = min(tiles, first + max_tiles);
    while (low < high) {
      const int step = (high - low + 31) / 32;
      const int probe = low + (lane + 1) * step;
      const bool fits = probe <= high && tile_slot[min(probe, tiles)] - begin <= slots;
      low += step * __popc(__ballot_sync(kAll, fits));
      high = min(high, low + step - 1);
    }
    if (lane == 0) ranges[r] = ListRange{first, low - first, begin, tile_slot[low] - begin};
    first = low;
  }
}

// A block: a tile at a time. Lists of keys begin where the classes before end.
template <int columns>
__global__ __launch_bounds__(kThreads, 2) void list_kernel(ListParams p) {
  __shared__ int counts[kWarps * kQueries];
  __shared__ int totals[kQueries];
  __shared__ int warp_totals[kWarps];
  __shared__ int places[kWarps * kQueries * 32];  // where a lane's next key of a class goes
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const ListRange range = *p.range;
  for (int index = static_cast<int>(blockIdx.x); index < range.tiles; index += static_cast<int>(gridDim.x)) {
    const int t = range.first_tile + index;
    const UnionTile tile = p.tile[t];
    const int first_slot = p.tile_slot[t] - range.first_slot;
    for (int s = thread; s * kSlot < tile.count; s += kThreads) {
      p.slot[first_slot + s] = ListSlot{tile, t, s * kSlot};
    }
    __syncthreads();  // the tile before is done with shared memory
    {
      const int own = p.counts[static_cast<std::size_t>(t) * kThreads + threadIdx.x];
      counts[thread] = own;
      const int sum = static_cast<int>(__reduce_add_sync(kAll, static_cast<unsigned>(own)));
      if (lane == 0) warp_totals[warp] = sum;
    }
    __syncthreads();
    if (thread < kQueries) {
      int sum = 0;
      for (int w = 0; w < kWarps; ++w) {
        int& entry = counts[w * kQueries + thread];
        const int own = entry;
        entry = sum;
        sum += own;
      }
      totals[thread] = sum;
    }
    __syncthreads();
    int next[kQueries];  // where the warp's next key of each class goes
    int total = 0;
#pragma unroll
    for (int c = 0; c < kQueries; ++c) {
      next[c] = total + counts[warp * kQueries + c];
      total += totals[c];
    }
    int next_row = first_slot * kSlot;  // of the warp's next key, in ascending order
    for (int w = 0; w < warp; ++w) next_row += warp_totals[w];

    const std::size_t list = static_cast<std::size_t>(first_slot) * kSlot;
    int* const place = places + warp * kQueries * 32 + lane;
    const WarpColumns<columns> own(tile, warp);
    for (int group = own.group_begin; group < own.group_end; ++group) {
      const int first = (32 * group + lane) * columns;
      std::uint32_t m[kQueries][columns];
      load_columns(p.mask, tile, first, own.end, m);
      std::uint32_t seen[columns] = {};
      // Sums over the lanes before: two classes in one word, at most 2048 each.
#pragma unroll
      for (int c = 0; c < kQueries; c += 2) {
        std::uint32_t both = static_cast<std::uint32_t>(count_class(m, seen, c));
        both |= static_cast<std::uint32_t>(count_class(m, seen, c + 1)) << 16;
        std::uint32_t sum = both;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          const std::uint32_t other = __shfl_up_sync(kAll, sum, static_cast<unsigned>(step));
          if (lane >= step) sum += other;
        }
        const std::uint32_t all = __shfl_sync(kAll, sum, 31);
        place[c * 32] = next[c] + static_cast<int>((sum - both) & 0xffff);
        next[c] += static_cast<int>(all & 0xffff);
        place[(c + 1) * 32] = next[c + 1] + static_cast<int>((sum - both) >> 16);
        next[c + 1] += static_cast<int>(all >> 16);
      }
      int keys = 0;
#pragma unroll
      for (int x = 0; x < columns; ++x) keys += __popc(seen[x]);
      int sum = keys;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kAll, sum, static_cast<unsigned>(step));
        if (lane >= step) sum += other;
      }
      int row = next_row + sum - keys;
      next_row += __shfl_sync(kAll, sum, 31);
#pragma unroll
      for (int x = 0; x < columns; ++x) {
        if (p.word != nullptr && first + x < own.end) {
          p.word[static_cast<std::size_t>(first + x) * static_cast<std::size_t>(p.max_tiles) +
                 static_cast<std::size_t>(index)] = ListWord{seen[x], row};
        }
        while (seen[x] != 0) {
          const std::uint32_t bit = seen[x] & (0u - seen[x]);
          seen[x] ^= bit;
          std::uint32_t who = 0;
#pragma unroll
          for (int i = 0; i < kQueries; ++i) {
            if ((m[i][x] & bit) != 0) who |= 1u << i;
          }
          const int at = place[(__ffs(static_cast<int>(who)) - 1) * 32]++;
          if (at < tile.count) {
            const std::size_t to = list + static_cast<std::size_t>(at);
            p.keys[to] = 32 * (first + x) + __ffs(static_cast<int>(bit)) - 1;
            p.bits[to] = who;
            if (p.row != nullptr) p.row[to] = min(row, p.rows - 1);
          }
          ++row;
        }
      }
    }
  }
}

// Long rows are read two words at a time; with short ones that would leave warps without work.
bool two_columns(const DeviceSequences& sequences) {
  return sequences.longest_keys >= 2 * kWarps * 32 * 32 * 2;
}

}  // namespace

static_assert(sizeof(ListWord) == kListWordBytes);

Lists::Lists(const ConstMask& mask, const Sequences& host_sequences, const DeviceSequences& sequences,
             const ListSizes& sizes, bool backward, const Context& context)
    : mask_(mask), sequences_(sequences), sizes_(sizes), context_(context) {
  Workspace& workspace = *context.workspace;
  const auto tiles = static_cast<std::size_t>(sizes.tiles), slots = static_cast<std::size_t>(sizes.slots);
  const auto rounds = static_cast<std::size_t>(sizes.rounds);
  tile_ = workspace.array<UnionTile>(tiles);
  counts_ = workspace.array<int>(tiles * kThreads);
  tile_slot_ = workspace.array<int>(tiles + 1);
  ranges_ = workspace.array<ListRange>(rounds);
  tickets_ = workspace.array<int>(rounds * kTickets);
  slot_ = workspace.array<ListSlot>(slots);
  keys_ = workspace.array<int>(slots * kSlot);
  bits_ = workspace.array<std::uint32_t>(slots * kSlot);
  if (backward) {
    row_ = workspace.array<int>(slots * kSlot);
    const auto words = static_cast<std::size_t>((sequences.longest_keys + 31) / 32);
    word_ = workspace.array<ListWord>(words * static_cast<std::size_t>(sizes.max_tiles));
    std::vector<int> first{0};
    for (std::int64_t n = 0; n < host_sequences.count; ++n) {
      const std::int64_t begin = host_sequences.first_position(n), end = begin + host_sequences.queries(n);
      const std::int64_t own = end > begin ? (end - 1) / kQueries - begin / kQueries + 1 : 0;
      first.push_back(first.back() + static_cast<int>(own));
    }
    sequence_tile_ = upload_words(first.data(), first.size(), context);
  }

  const cudaStream_t stream = stream_of(context.stream);
  check(cudaMemsetAsync(tickets_, 0, rounds * kTickets * sizeof(int), stream), "indexer_kl tickets");
  const CountParams params{columns_of(mask), sequences, static_cast<int>(list_bound(mask)), tile_, counts_};
  const auto kernel = two_columns(sequences) ? count_kernel<2> : count_kernel<1>;
  kernel<<<static_cast<unsigned>(sizes.tiles), kThreads, 0, stream>>>(params);
  check_launch("indexer_kl count");
  cut_kernel<<<1, 1024, 0, stream>>>(tile_, sizes.tiles, sizes.slots, sizes.max_tiles, sizes.rounds,
                                     tile_slot_, ranges_);
  check_launch("indexer_kl cut");
}

Chunk Lists::make(int round) const {
  const ListParams params{.mask = columns_of(mask_),
                          .tile = tile_,
                          .counts = counts_,
                          .tile_slot = tile_slot_,
                          .range = ranges_ + round,
                          .slot = slot_,
                          .keys = keys_,
                          .bits = bits_,
                          .row = row_,
                          .word = word_,
                          .max_tiles = sizes_.max_tiles,
                          .rows = static_cast<int>(sizes_.entries())};
  const int blocks = std::min(sizes_.max_tiles, 2 * context_.device.multiprocessors);
  const auto kernel = two_columns(sequences_) ? list_kernel<2> : list_kernel<1>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(context_.stream)>>>(params);
  check_launch("indexer_kl lists");
  return {.tile = tile_,
          .range = ranges_ + round,
          .slot = slot_,
          .tile_slot = tile_slot_,
          .keys = keys_,
          .bits = bits_,
          .slots = sizes_.slots,
          .ticket = tickets_ + static_cast<std::ptrdiff_t>(round) * kTickets,
          .row = row_,
          .word = word_,
          .max_tiles = sizes_.max_tiles};
}

}  // namespace gsa::cuda::kl
