// Backward pass of indexer_kl along the queries: dI, dq, dw and what each query adds to dbias.
#include "kernels/common/cuda_check.h"
#include "kernels/indexer_kl/cuda/device.cuh"

namespace gsa::cuda::kl {
namespace {

// A block: a tile of queries x a split of its entries x as many heads as its registers hold dq of; a warp has
// 16 queries. Scores need all heads, so each block goes through them first; where it has all of them it keeps
// the activations for the gradients in shared memory, else it computes those it needs again.
template <typename T, int kSize, bool kListed>
__global__ void __launch_bounds__(IndexTile<T, kSize, kListed>::kThreads)
    row_gradients_kernel(const IndexerRows indexer, const Chunk chunk, const RowFacts facts,
                         const Gradients gradients) {
  using Tile = IndexTile<T, kSize, kListed>;
  constexpr int kColumns = 32, kBlocks = kColumns / 8;  // entries at a time
  constexpr int kHeads = gradient_heads(kSize);
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kKept = kBlocks * Tile::kThreads;  // float4 of a head
  const bool keeps = gridDim.z == 1;
  float4* const kept = reinterpret_cast<float4*>(shared + Tile::shared_bytes(indexer.heads)) + threadIdx.x;
  const int first_head = static_cast<int>(blockIdx.z) * kHeads;
  for_each_split<kListed>(chunk, [&](const Split& split) {
    Tile at(indexer, chunk, split, &facts, shared);
    const SplitWalk<Tile> walk(at);
    walk.start(at);
    const int lane = walk.lane, row = walk.row, first_row = walk.first_row;
    const Support<kListed> support[2] = {{at.tile, row}, {at.tile, row + 8}};
    float* const d_rows[2] = {gradients.d_score + split.p + row * split.stride,
                              gradients.d_score + split.p + (row + 8) * split.stride};
    float lse[2] = {}, weight[2] = {}, factor[2] = {1.0f, 1.0f};
    bool bad_row[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r < at.tile.queries) {
        const int query = at.tile.first_query + row + 8 * r;
        lse[r] = gradients.index_lse[query];
        weight[r] = gradients.weight[query];
        bad_row[r] = facts.bad_query[query] != 0;
        if constexpr (!is_bf16<T>) factor[r] = range_factor<T>(facts.query_exponent[query]);
      }
    }
    float dq[kHeads][kSize / 8][4] = {};
    float dw[kHeads][2] = {}, dbias[kHeads][2] = {};

    for (int block = 0; block < walk.end; ++block) {
      walk.next(at, block);
      const int slot = block & 1;
      const std::uint32_t keys = at.keys_at + slot * Tile::kKeyBytes;
      for (int column = 0; column < Tile::kKeys; column += kColumns) {
        const int first = block * Tile::kKeys + column + 2 * (lane & 3);
        float d_score[kBlocks][4];  // p at first
        walk.load_p(d_score, chunk, first);
        float score[kBlocks][4] = {};
        for (int j = 0; j < indexer.heads; ++j) {
          const std::uint32_t head = at.head(j);
          float x[kBlocks][4];
          row_products<T, kSize>(x, head, first_row, keys, column, lane);
          const Activation act(indexer, at.bias[j]);
          const float w[2] = {at.w[j * Tile::kQueries + row], at.w[j * Tile::kQueries + row + 8]};
#pragma unroll
          for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              x[n][r] = act(x[n][r]);
              score[n][r] = fmaf(w[r / 2], x[n][r], score[n][r]);
            }
            if (keeps) kept[j * kKept + n * Tile::kThreads] = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
          }
        }
        const int at_column = slot * Tile::kKeys + column + 2 * (lane & 3);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const int c = at_column + 8 * n + r % 2;
            const bool inside =
                support[r / 2].has(split.first + first + 8 * n + r % 2, kListed ? at.bits[c] : 0u);
            float d = (power_of_two((score[n][r] - lse[r / 2]) * kLog2E) - d_score[n][r]) * weight[r / 2];
            if (bad_row[r / 2] || at.bad[c] != 0) d = not_a_number();
            d_score[n][r] = inside ? d : 0.0f;
          }
          if (blockIdx.z == 0) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              *reinterpret_cast<float2*>(d_rows[r] + first + 8 * n) =
                  make_float2(d_score[n][2 * r], d_score[n][2 * r + 1]);
            }
          }
        }
#pragma unroll
        for (int i = 0; i < kHeads; ++i) {
          const int j = first_head + i;
          if (j < indexer.heads) {
            const Activation act(indexer, at.bias[j]);
            float x[kBlocks][4];
            if (keeps) {
#pragma unroll
              for (int n = 0; n < kBlocks; ++n) {
                const float4 y = kept[j * kKept + n * Tile::kThreads];
                x[n][0] = y.x, x[n][1] = y.y, x[n][2] = y.z, x[n][3] = y.w;
              }
            } else {
              row_products<T, kSize>(x, at.head(j), first_row, keys, column, lane);
#pragma unroll
              for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
                for (int r = 0; r < 4; ++r) x[n][r] = act(x[n][r]);
              }
            }
            const float w[2] = {at.w[j * Tile::kQueries + row], at.w[j * Tile::kQueries + row + 8]};
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                const float y = act.bounded(x[n][r]), d = d_score[n][r];
                dw[i][r / 2] = fmaf(d, y, dw[i][r / 2]);
                const float dx = d * w[r / 2] * act.slope(y);
                dbias[i][r / 2] += dx;
                x[n][r] = dx;
              }
            }
            if constexpr (!is_bf16<T>) {
#pragma unroll
              for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
                for (int r = 0; r < 4; ++r) x[n][r] *= factor[r / 2];
              }
            }
            add_products<T, kSize>(dq[i], x, keys, column, lane);
          }
        }
      }
    }

    write_row_sums<kSize>(gradients, split, indexer.heads, first_head, row, lane, factor, dq, dw, dbias);
  });
}

// A block: a query; adds up its splits in their order. Dense.
template <typename T>
__global__ void combine_rows_kernel(const IndexerRows indexer, const Chunk chunk, const Gradients gradients,
                                    int padded) {
  constexpr int kQueries = kDenseQueries;
  const int i = static_cast<int>(blockIdx.x);
  const UnionTile tile = chunk.tile[i / kQueries];
  if (i % kQueries >= tile.queries) return;
  const int query = tile.first_query + i % kQueries;
  const int splits = (tile.count + chunk.split - 1) / chunk.split;
  const int row = indexer.heads * padded;
  // A query with an empty support gave NaN; so do the gradients of what is its own, and of the bias, unless
  // nobody asks for its loss.
  const float lse = gradients.index_lse[query];
  const float factor = isnan(lse) && gradients.weight[query] != 0 ? lse : 1.0f;
  const float* const dq_part = gradients.dq_part + static_cast<std::int64_t>(i) * chunk.splits() * row;
  T* const dq = static_cast<T*>(gradients.dq.data) + query * gradients.dq.token_stride;
  for (int e = static_cast<int>(threadIdx.x); e < row; e += static_cast<int>(blockDim.x)) {
    const int j = e / padded, c = e % padded;
    if (c >= indexer.q.size) continue;
    float sum = 0;
    for (int s = 0; s < splits; ++s) sum += dq_part[static_cast<std::int64_t>(s) * row + e];
    dq[j * gradients.dq.head_stride + c] = from_float<T>(factor * indexer.scale * sum);
  }
  const float* const dw_part =
      gradients.dw_part + static_cast<std::int64_t>(i) * chunk.splits() * indexer.heads * 2;
  T* const dw = static_cast<T*>(gradients.dw.data) + query * gradients.dw.token_stride;
  for (int j = static_cast<int>(threadIdx.x); j < indexer.heads; j += static_cast<int>(blockDim.x)) {
    float sum = 0, bias = 0;
    for (int s = 0; s < splits; ++s) {
      sum += dw_part[(s * indexer.heads + j) * 2];
      bias += dw_part[(s * indexer.heads + j) * 2 + 1];
    }
    dw[j * gradients.dw.head_stride] = from_float<T>(factor * sum);
    gradients.dbias_rows[static_cast<std::int64_t>(query) * indexer.heads + j] = factor * bias;
  }
}

template <typename T, int kSize, bool kListed>
void launch_row_gradients(const IndexerRows& indexer, const Chunk& chunk, const RowFacts& facts,
                          const Gradients& gradients, const Context& context) {
  using Tile = IndexTile<T, kSize, kListed>;
  constexpr int kHeads = gradient_heads(kSize);
  std::size_t bytes = Tile::shared_bytes(indexer.heads);
  if (indexer.heads <= kHeads) {  // activations, 16 of a thread and head
    bytes += static_cast<std::size_t>(indexer.heads) * Tile::kThreads * 64;
  }
  const auto kernel = row_gradients_kernel<T, kSize, kListed>;
  allow_shared_memory(kernel, bytes, "indexer_kl row_gradients");
  const dim3 grid = split_grid(chunk, (indexer.heads + kHeads - 1) / kHeads, context.device);
  kernel<<<grid, Tile::kThreads, bytes, stream_of(context.stream)>>>(indexer, chunk, facts, gradients);
  check_launch("indexer_kl row_gradients");
}

}  // namespace

void row_gradients(DType dtype, const IndexerRows& indexer, const Chunk& chunk, const RowFacts& facts,
                   const Gradients& gradients, const Context& context) {
  with_type_and_index_size(dtype, indexer.q.size, [&]<typename T, int kSize>() {
    chunk.listed() ? launch_row_gradients<T, kSize, true>(indexer, chunk, facts, gradients, context)
                   : launch_row_gradients<T, kSize, false>(indexer, chunk, facts, gradients, context);
  });
}

void combine_rows(DType dtype, const IndexerRows& indexer, const Chunk& chunk, const Gradients& gradients,
                  const Context& context) {
  const auto kernel = dtype == DType::bf16 ? combine_rows_kernel<__nv_bfloat16> : combine_rows_kernel<__half>;
  kernel<<<static_cast<unsigned>(chunk.tiles * kDenseQueries), 256, 0, stream_of(context.stream)>>>(
      indexer, chunk, gradients, padded_index_size(indexer.q.size));
  check_launch("indexer_kl combine_rows");
}

}  // namespace gsa::cuda::kl
