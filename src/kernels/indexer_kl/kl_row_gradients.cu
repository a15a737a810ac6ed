// Backward pass of indexer_kl along the queries: dI, dq, dw and what each query adds to dbias.
#include "kernels/common/cuda_check.h"
#include "kernels/indexer_kl/kl_device.cuh"

namespace gsa::cuda::kl {
namespace {

// The transpose of 8 x 8 elements, a row of which four lanes hold.
__device__ __forceinline__ std::uint32_t transposed(std::uint32_t pair) {
  std::uint32_t to;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pair));
  return to;
}

// What the 16 queries of a warp add to dk of 16 entries, and the sum over the two warps of a tile.
template <typename T, int kSize>
struct KeySums {
  // What one warp hands to the other. Twice, so that one barrier a step is enough.
  using Exchange = float4[2][kSize / 8][32];

  float sum[kSize / 8][4] = {};

  // += f^T q for f [16 queries, 16 entries] in the layout of accumulators and the queries' rows of a head.
  __device__ __forceinline__ void add(const float (&f)[2][4], std::uint32_t head, int first_row, int lane) {
    std::uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = transposed(pack<T>(f[i % 2][i / 2 * 2], f[i % 2][i / 2 * 2 + 1]));
#pragma unroll
    for (int n = 0; n < kSize / 16; ++n) {
      std::uint32_t b[4];
      load_b_trans<kSize>(b, head, first_row, n, lane);
      mma_16x8x16<T>(sum[2 * n], a, b[0], b[1]);
      mma_16x8x16<T>(sum[2 * n + 1], a, b[2], b[3]);
    }
  }
  // Stores the sums of both warps for as many entries as there are, times factor; the warps take turns.
  __device__ __forceinline__ void store(Exchange& exchange, int step, int warp, int lane, float factor,
                                        float* to, int entries) const {
    float4* const others = exchange[step & 1][0] + lane;
    const bool gives = warp != (step & 1);
    if (gives) {
#pragma unroll
      for (int n = 0; n < kSize / 8; ++n) {
        others[n * 32] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
      }
    }
    __syncthreads();
    if (gives) return;
    const int row = lane >> 2;
    to += row * kSize + 2 * (lane & 3);
#pragma unroll
    for (int n = 0; n < kSize / 8; ++n) {
      const float4 other = others[n * 32];
      if (row < entries) {
        *reinterpret_cast<float2*>(to + 8 * n) =
            make_float2(factor * (sum[n][0] + other.x), factor * (sum[n][1] + other.y));
      }
      if (row + 8 < entries) {
        *reinterpret_cast<float2*>(to + 8 * kSize + 8 * n) =
            make_float2(factor * (sum[n][2] + other.z), factor * (sum[n][3] + other.w));
      }
    }
  }
};

// A block: a tile of queries x a split of its entries x as many heads as its registers hold dq of; a warp has
// 16 queries. Scores need all heads, so each block goes through them first; where it has all of them it keeps
// the activations for the gradients in shared memory, else it computes those it needs again. kWithKeys: it
// has all heads, and makes its tile's part of dk on the way, in shorter steps: registers and shared memory
// are then those of six blocks a multiprocessor, which is faster than fewer.
template <typename T, int kSize, bool kListed, bool kWithKeys>
__global__ void __launch_bounds__(IndexTile<T, kSize, kListed>::kThreads, kWithKeys ? 6 : 0)
    row_gradients_kernel(const IndexerRows indexer, const Chunk chunk, const RowFacts facts,
                         const Gradients gradients) {
  using Tile = IndexTile<T, kSize, kListed>;
  constexpr int kColumns = kWithKeys ? 16 : 32, kBlocks = kColumns / 8;  // entries at a time
  constexpr int kHeads = gradient_heads(kSize);
  extern __shared__ __align__(128) unsigned char shared[];
  Tile at(indexer, chunk, &facts, shared);
  constexpr int kKept = kBlocks * Tile::kThreads;  // float4 of a head
  const bool keeps = gridDim.z == 1;
  float4* const kept = reinterpret_cast<float4*>(shared + Tile::shared_bytes(indexer.heads)) + threadIdx.x;
  using Keys = KeySums<T, kSize>;
  auto& exchange = *reinterpret_cast<typename Keys::Exchange*>(kept - threadIdx.x + indexer.heads * kKept);
  const int first_head = static_cast<int>(blockIdx.z) * kHeads;
  const SplitWalk<Tile> walk(at);
  if (walk.begin >= walk.end) return;
  walk.start(at);
  const int lane = walk.lane, row = walk.row, first_row = walk.first_row;
  const Support<kListed> support[2] = {{at.tile, row}, {at.tile, row + 8}};
  float* const d_rows[2] = {gradients.d_score + walk.chunk_row * chunk.stride,
                            gradients.d_score + (walk.chunk_row + 8) * chunk.stride};
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
  float key_factor = 1.0f;
  if constexpr (kWithKeys && !is_bf16<T>) {
    key_factor = range_factor<T>(facts.sequence_exponent[at.tile.sequence]);
  }
  float dq[kHeads][kSize / 8][4] = {};
  float dw[kHeads][2] = {}, dbias[kHeads][2] = {};

  for (int block = walk.begin; block < walk.end; ++block) {
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
          const bool inside = support[r / 2].has(first + 8 * n + r % 2, kListed ? at.bits[c] : 0u);
          float d = (power_of_two((score[n][r] - lse[r / 2]) * kLog2E) - d_score[n][r]) * weight[r / 2];
          if (bad_row[r / 2] || at.bad[c] != 0) d = not_a_number();
          d_score[n][r] = inside ? d : 0.0f;
        }
        if (!kWithKeys && blockIdx.z == 0) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            *reinterpret_cast<float2*>(d_rows[r] + first + 8 * n) =
                make_float2(d_score[n][2 * r], d_score[n][2 * r + 1]);
          }
        }
      }
      [[maybe_unused]] Keys dk;
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
          if constexpr (is_bf16<T>) {
            if constexpr (kWithKeys) dk.add(x, at.heads_at + j * Tile::kHeadBytes, first_row, lane);
          } else {
            float scaled[kBlocks][4];
            if constexpr (kWithKeys) {
#pragma unroll
              for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
                for (int r = 0; r < 4; ++r) scaled[n][r] = key_factor * x[n][r];
              }
              dk.add(scaled, at.heads_at + j * Tile::kHeadBytes, first_row, lane);
            }
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
              for (int r = 0; r < 4; ++r) x[n][r] *= factor[r / 2];
            }
          }
          add_products<T, kSize>(dq[i], x, keys, column, lane);
        }
      }
      if constexpr (kWithKeys) {
        const int entry = block * Tile::kKeys + column;
        float* const to =
            gradients.dk_part + (static_cast<std::int64_t>(blockIdx.x) * chunk.stride + entry) * kSize;
        dk.store(exchange, column / kColumns, first_row / 16, lane, 1.0f / key_factor, to,
                 at.tile.count - entry);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int j = first_head + i;
    if (j >= indexer.heads) break;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t part = ((walk.chunk_row + 8 * r) * chunk.splits() + walk.split) * indexer.heads + j;
      float* const to = gradients.dq_part + part * kSize + 2 * (lane & 3);
      const float back = 1.0f / factor[r];
#pragma unroll
      for (int n = 0; n < kSize / 8; ++n) {
        *reinterpret_cast<float2*>(to + 8 * n) =
            make_float2(back * dq[i][n][2 * r], back * dq[i][n][2 * r + 1]);
      }
#pragma unroll
      for (int lane_mask = 1; lane_mask <= 2; lane_mask *= 2) {
        dw[i][r] += __shfl_xor_sync(~0u, dw[i][r], lane_mask);
        dbias[i][r] += __shfl_xor_sync(~0u, dbias[i][r], lane_mask);
      }
      if ((lane & 3) == 0) {
        *reinterpret_cast<float2*>(gradients.dw_part + 2 * part) = make_float2(dw[i][r], dbias[i][r]);
      }
    }
  }
}

// A block: a query; adds up its splits in their order.
template <typename T, bool kListed>
__global__ void combine_rows_kernel(const IndexerRows indexer, const Chunk chunk, const Gradients gradients,
                                    int padded) {
  constexpr int kQueries = tile_queries(kListed);
  const int i = static_cast<int>(blockIdx.x);
  const UnionTile tile = chunk.tile[i / kQueries];
  if (i % kQueries >= tile.queries) return;
  const int query = tile.first_query + i % kQueries;
  const int splits = (tile.count + chunk.split - 1) / chunk.split;
  const int row = indexer.heads * padded;
  // A query with an empty support gave NaN; so do the gradients of what is its own, and of the bias.
  const float lse = gradients.index_lse[query];
  const float factor = isnan(lse) ? lse : 1.0f;
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

template <typename T, int kSize, bool kListed, bool kWithKeys>
void launch_row_gradients(const IndexerRows& indexer, const Chunk& chunk, const RowFacts& facts,
                          const Gradients& gradients, const Context& context) {
  using Tile = IndexTile<T, kSize, kListed>;
  constexpr int kHeads = gradient_heads(kSize);
  std::size_t bytes = Tile::shared_bytes(indexer.heads);
  if (indexer.heads <= kHeads) {  // activations, 16 or 8 of a thread and head
    bytes += static_cast<std::size_t>(indexer.heads) * Tile::kThreads * (kWithKeys ? 32 : 64);
  }
  if (kWithKeys) bytes += sizeof(typename KeySums<T, kSize>::Exchange);
  const auto kernel = row_gradients_kernel<T, kSize, kListed, kWithKeys>;
  allow_shared_memory(kernel, bytes, "indexer_kl row_gradients");
  const dim3 grid(static_cast<unsigned>(chunk.tiles), static_cast<unsigned>(chunk.splits()),
                  static_cast<unsigned>((indexer.heads + kHeads - 1) / kHeads));
  kernel<<<grid, Tile::kThreads, bytes, stream_of(context.stream)>>>(indexer, chunk, facts, gradients);
  check_launch("indexer_kl row_gradients");
}

template <typename T>
void launch_combine_rows(const IndexerRows& indexer, const Chunk& chunk, const Gradients& gradients,
                         const Context& context) {
  const auto kernel = chunk.listed() ? combine_rows_kernel<T, true> : combine_rows_kernel<T, false>;
  kernel<<<static_cast<unsigned>(chunk.tiles * tile_queries(chunk.listed())), 256, 0,
           stream_of(context.stream)>>>(indexer, chunk, gradients, padded_index_size(indexer.q.size));
  check_launch("indexer_kl combine_rows");
}

}  // namespace

void row_gradients(DType dtype, const IndexerRows& indexer, const Chunk& chunk, const RowFacts& facts,
                   const Gradients& gradients, const Context& context) {
  with_type_and_index_size(dtype, indexer.q.size, [&]<typename T, int kSize>() {
    if constexpr (with_keys(kSize)) {
      if (gradients.with_keys) {
        return launch_row_gradients<T, kSize, true, true>(indexer, chunk, facts, gradients, context);
      }
    }
    chunk.listed() ? launch_row_gradients<T, kSize, true, false>(indexer, chunk, facts, gradients, context)
                   : launch_row_gradients<T, kSize, false, false>(indexer, chunk, facts, gradients, context);
  });
}

void combine_rows(DType dtype, const IndexerRows& indexer, const Chunk& chunk, const Gradients& gradients,
                  const Context& context) {
  dtype == DType::bf16 ? launch_combine_rows<__nv_bfloat16>(indexer, chunk, gradients, context)
                       : launch_combine_rows<__half>(indexer, chunk, gradients, context);
}

}  // namespace gsa::cuda::kl
