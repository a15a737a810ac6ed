// Forward pass of indexer_kl after p: the log-sum-exp of the scores, and the sums of p (log p - I) and of p.
#include "kernels/common/cuda_check.h"
#include "kernels/indexer_kl/cuda/device.cuh"

namespace gsa::cuda::kl {
namespace {

// What a lane, and then a row, has seen: maximum and sum of e^(I - maximum), sums of p (log p - I) and of p.
struct RowSum {
  float maximum = -INFINITY, sum = 0, gap = 0, mass = 0;

  __device__ __forceinline__ void raise(float to) {
    if (to > maximum) {
      sum *= power_of_two((maximum - to) * kLog2E);
      maximum = to;
    }
  }
  // A pair outside the support adds zeros, whatever its score and p are.
  __device__ __forceinline__ void add(bool inside, float score, float p) {
    sum += power_of_two(inside ? (score - maximum) * kLog2E : -INFINITY);
    score = inside ? score : 0.0f;
    p = inside ? p : 0.0f;
    // p log p is 0 at 0; the smallest normal number keeps the logarithm finite there.
    gap = fmaf(p, fmaf(log_two(fmaxf(p, FLT_MIN)), kLn2, -score), gap);
    mass += p;
  }
  __device__ __forceinline__ void join(int lane_mask) {
    const float other_maximum = __shfl_xor_sync(~0u, maximum, lane_mask);
    float other_sum = __shfl_xor_sync(~0u, sum, lane_mask);
    raise(other_maximum);
    if (other_maximum < maximum) other_sum *= power_of_two((other_maximum - maximum) * kLog2E);
    sum += other_sum;
    gap += __shfl_xor_sync(~0u, gap, lane_mask);
    mass += __shfl_xor_sync(~0u, mass, lane_mask);
  }
};

// What keeps as many threads on a multiprocessor as its registers could hold. 0: no bound.
GSA_DEVICE constexpr int min_blocks(int size, int threads) {
  return size == 32 ? 512 / threads : size == 64 ? 384 / threads : 0;
}

// A block: a tile of queries x a split of its entries; a warp has 16 queries.
template <typename T, int kSize, bool kListed>
__global__ void __launch_bounds__(IndexTile<T, kSize, kListed>::kThreads,
                                  min_blocks(kSize, IndexTile<T, kSize, kListed>::kThreads))
    row_sums_kernel(const IndexerRows indexer, const Chunk chunk, float4* sums) {
  using Tile = IndexTile<T, kSize, kListed>;
  constexpr int kBlocks = Tile::kKeys / 8;
  extern __shared__ __align__(128) unsigned char shared[];
  for_each_split<kListed>(chunk, [&](const Split& split) {
    Tile at(indexer, chunk, split, nullptr, shared);
    const SplitWalk<Tile> walk(at);
    walk.start(at);
    const int lane = walk.lane, row = walk.row;
    const Support<kListed> support[2] = {{at.tile, row}, {at.tile, row + 8}};
    RowSum row_sum[2];
    for (int block = 0; block < walk.end; ++block) {
      walk.next(at, block);
      const int first = block * Tile::kKeys + 2 * (lane & 3);
      float p[kBlocks][4];
      walk.load_p(p, chunk, first);
      float score[kBlocks][4] = {};
      for (int j = 0; j < indexer.heads; ++j) {
        const std::uint32_t head = at.head(j);
        float x[kBlocks][4];
        row_products<T, kSize>(x, head, walk.first_row, at.keys_at + (block & 1) * Tile::kKeyBytes, 0, lane);
        const Activation act(indexer, at.bias[j]);
        const float w[2] = {at.w[j * Tile::kQueries + row], at.w[j * Tile::kQueries + row + 8]};
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
          for (int r = 0; r < 4; ++r) score[n][r] = fmaf(w[r / 2], act(x[n][r]), score[n][r]);
        }
      }
      const std::uint32_t* const bits = at.bits + (block & 1) * Tile::kKeys + 2 * (lane & 3);
      std::uint32_t inside[2] = {};  // bit 2 n + c: column c of block n is in the row's support
      float high[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int c = r % 2;
          const bool has =
              support[r / 2].has(split.first + first + 8 * n + c, kListed ? bits[8 * n + c] : 0u);
          inside[r / 2] |= static_cast<std::uint32_t>(has) << (2 * n + c);
          high[r / 2] = fmaxf(high[r / 2], has ? score[n][r] : -INFINITY);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) row_sum[r].raise(high[r]);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          row_sum[r / 2].add((inside[r / 2] >> (2 * n + r % 2) & 1u) != 0, score[n][r], p[n][r]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_sum[r].join(1);
      row_sum[r].join(2);
      if ((lane & 3) == 0) {
        sums[split.part_of(row + 8 * r)] =
            make_float4(row_sum[r].maximum, row_sum[r].sum, row_sum[r].gap, row_sum[r].mass);
      }
    }
  });
}

// The sums over the splits of a query: the first, how far apart, how many.
struct SplitSums {
  std::int64_t first = 0, step = 1;
  int count = 0;
};

// A warp: a query. Lane i has every 32nd split; lanes are joined in a fixed order.
__device__ __forceinline__ void combine_query(const SplitSums& splits, const float4* sums, int lane,
                                              float* loss, float* index_lse) {
  const auto part_of = [&](int s) { return sums[splits.first + s * splits.step]; };
  float highest = -INFINITY;
  for (int s = lane; s < splits.count; s += 32) highest = fmaxf(highest, part_of(s).x);
  for (int step = 16; step > 0; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
  const double maximum = static_cast<double>(highest);
  double sum = 0, gap = 0, mass = 0;
  for (int s = lane; s < splits.count; s += 32) {
    const float4 part = part_of(s);
    // A split without a key of this query has the sum 0 (and no maximum).
    if (part.y != 0.0f) sum += static_cast<double>(part.y) * exp(static_cast<double>(part.x) - maximum);
    gap += static_cast<double>(part.z);
    mass += static_cast<double>(part.w);
  }
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_down_sync(~0u, sum, step);
    gap += __shfl_down_sync(~0u, gap, step);
    mass += __shfl_down_sync(~0u, mass, step);
  }
  if (lane != 0) return;
  // An empty support (the selection of a query with NaN scores) gives NaN.
  const double lse = sum == 0 ? static_cast<double>(not_a_number()) : maximum + log(sum);
  *index_lse = static_cast<float>(lse);
  const double divergence = gap + lse * mass;  // below 0 only in rounding
  *loss = divergence < 0 ? 0.0f : static_cast<float>(divergence);
}

template <bool kListed>
__global__ void combine_loss_kernel(const Chunk chunk, const float4* sums, float* loss, float* index_lse) {
  constexpr int kQueries = tile_queries(kListed);
  const int warps = static_cast<int>(blockDim.x / 32), lane = static_cast<int>(threadIdx.x) & 31;
  const int rows = kQueries * (kListed ? chunk.range->tiles : chunk.tiles);
  for (int i = static_cast<int>(blockIdx.x) * warps + static_cast<int>(threadIdx.x) / 32; i < rows;
       i += static_cast<int>(gridDim.x) * warps) {
    const int tile_index = (kListed ? chunk.range->first_tile : 0) + i / kQueries, row = i % kQueries;
    const UnionTile tile = chunk.tile[tile_index];
    if (row >= tile.queries) continue;
    SplitSums splits;
    if constexpr (kListed) {
      const int first = chunk.tile_slot[tile_index];
      splits = {static_cast<std::int64_t>(first - chunk.range->first_slot) * kQueries + row, kQueries,
                chunk.tile_slot[tile_index + 1] - first};
    } else {
      splits = {static_cast<std::int64_t>(i) * chunk.splits(), 1,
                (tile.count + chunk.split - 1) / chunk.split};
    }
    const int query = tile.first_query + row;
    combine_query(splits, sums, lane, loss + query, index_lse + query);
  }
}

template <typename T, int kSize, bool kListed>
void launch_row_sums(const IndexerRows& indexer, const Chunk& chunk, float4* sums, const Context& context) {
  using Tile = IndexTile<T, kSize, kListed>;
  const std::size_t bytes = Tile::shared_bytes(indexer.heads);
  const auto kernel = row_sums_kernel<T, kSize, kListed>;
  allow_shared_memory(kernel, bytes, "indexer_kl row_sums");
  kernel<<<split_grid(chunk, 1, context.device), Tile::kThreads, bytes, stream_of(context.stream)>>>(
      indexer, chunk, sums);
  check_launch("indexer_kl row_sums");
}

}  // namespace

void row_sums(DType dtype, const IndexerRows& indexer, const Chunk& chunk, float4* sums,
              const Context& context) {
  with_type_and_index_size(dtype, indexer.q.size, [&]<typename T, int kSize>() {
    chunk.listed() ? launch_row_sums<T, kSize, true>(indexer, chunk, sums, context)
                   : launch_row_sums<T, kSize, false>(indexer, chunk, sums, context);
  });
}

void combine_loss(const Chunk& chunk, const float4* sums, float* loss, float* index_lse,
                  const Context& context) {
  constexpr int kWarps = 4;
  const int blocks = chunk.listed() ? 8 * context.device.multiprocessors
                                    : (chunk.tiles * kDenseQueries + kWarps - 1) / kWarps;
  const auto kernel = chunk.listed() ? combine_loss_kernel<true> : combine_loss_kernel<false>;
  kernel<<<static_cast<unsigned>(blocks), 32 * kWarps, 0, stream_of(context.stream)>>>(chunk, sums, loss,
                                                                                       index_lse);
  check_launch("indexer_kl combine_loss");
}

}  // namespace gsa::cuda::kl
