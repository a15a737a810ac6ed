// Backward pass of indexer_kl for lists and up to four small heads: dI, dq, dw, dbias and dk in one kernel.
//
// A block has a slot of a tile's list. Four warps: 16 queries x two heads each. A warp keeps the activations
// of its heads in registers; scores need all heads, so the two warps of the same queries exchange theirs. dx,
// rounded for the tensor cores, goes through shared memory too: afterwards each warp has 16 of the step's 64
// entries and multiplies dx of all queries and heads into dk, which needs no sum over warps.
#include "kernels/common/cuda_check.h"
#include "kernels/indexer_kl/cuda/device.cuh"

namespace gsa::cuda::kl {
namespace {

constexpr int kThreads = 128;
constexpr int kWarpHeads = 2;
// Entries of a warp at a time: what registers hold beside dq, with 12 warps a multiprocessor, 16 for small
// heads.
GSA_DEVICE constexpr int step_columns(int size) { return size == 32 ? 16 : 32; }

// Behind what the tile needs.
template <int kBlocks>
struct Exchange {
  // Elements of T: dx of [heads, queries] x 64 entries, as tile_offset<64> places them.
  alignas(128) unsigned char dx[kListHeads * kListQueries * 64 * 2];
  // Scores of a warp's heads; twice, so that one barrier a step is enough.
  float4 score[2][kThreads / 32][kBlocks][32];
};

// A barrier of the two warps that have the same queries.
__device__ __forceinline__ void pair_barrier(int pair) {
  if (pair == 0) {
    asm volatile("bar.sync 1, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 64;" ::: "memory");
  }
}

template <typename T, int kSize>
__global__ void __launch_bounds__(kThreads, kSize == 32 ? 4 : 3)
    list_gradients_kernel(const IndexerRows indexer, const Chunk chunk, const RowFacts facts,
                          const Gradients gradients) {
  using Tile = IndexTile<T, kSize, true, kThreads>;
  static_assert(Tile::kKeys == 64 && Tile::kQueries == 32);
  constexpr int kColumns = step_columns(kSize), kBlocks = kColumns / 8;
  extern __shared__ __align__(128) unsigned char shared[];
  auto& exchange =
      *reinterpret_cast<Exchange<kBlocks>*>(shared + (Tile::shared_bytes(indexer.heads) + 127) / 128 * 128);
  const std::uint32_t dx_at = shared_address(exchange.dx);
  const int warp = static_cast<int>(threadIdx.x) / 32, first_head = warp / 2 * kWarpHeads;

  for_each_split<true>(chunk, [&](const Split& split) {
    Tile at(indexer, chunk, split, &facts, shared);
    const SplitWalk<Tile> walk(at, warp % 2 * 16);
    walk.start(at);
    const int lane = walk.lane, row = walk.row, first_row = walk.first_row;
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
    if constexpr (!is_bf16<T>) key_factor = range_factor<T>(facts.sequence_exponent[at.tile.sequence]);
    float dq[kWarpHeads][kSize / 8][4] = {};
    float dw[kWarpHeads][2] = {}, dbias[kWarpHeads][2] = {};

    for (int block = 0; block < walk.end; ++block) {
      walk.next(at, block);
      const int slot = block & 1;
      const std::uint32_t keys = at.keys_at + slot * Tile::kKeyBytes;
#pragma unroll 1
      for (int step = 0; step < Tile::kKeys / kColumns; ++step) {
        const int column = step * kColumns, first = block * Tile::kKeys + column + 2 * (lane & 3);
        float d_score[kBlocks][4];  // p at first
        walk.load_p(d_score, chunk, first);
        float x[kWarpHeads][kBlocks][4], score[kBlocks][4] = {};
#pragma unroll
        for (int i = 0; i < kWarpHeads; ++i) {
          const int j = first_head + i;
          if (j < indexer.heads) {
            row_products<T, kSize>(x[i], at.heads_at + j * Tile::kHeadBytes, first_row, keys, column, lane);
            const Activation act(indexer, at.bias[j]);
            const float w[2] = {at.w[j * Tile::kQueries + row], at.w[j * Tile::kQueries + row + 8]};
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                x[i][n][r] = act(x[i][n][r]);
                score[n][r] = fmaf(w[r / 2], x[i][n][r], score[n][r]);
              }
            }
          }
        }
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
          exchange.score[step & 1][warp][n][lane] =
              make_float4(score[n][0], score[n][1], score[n][2], score[n][3]);
        }
        pair_barrier(warp % 2);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
          const float4 other = exchange.score[step & 1][warp ^ 2][n][lane];
          score[n][0] += other.x, score[n][1] += other.y, score[n][2] += other.z, score[n][3] += other.w;
        }
        const int at_column = slot * Tile::kKeys + column + 2 * (lane & 3);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const int c = at_column + 8 * n + r % 2;
            const bool inside = (at.bits[c] >> (row + r / 2 * 8) & 1u) != 0;
            float d = (power_of_two((score[n][r] - lse[r / 2]) * kLog2E) - d_score[n][r]) * weight[r / 2];
            if (bad_row[r / 2] || at.bad[c] != 0) d = not_a_number();
            d_score[n][r] = inside ? d : 0.0f;
          }
        }
#pragma unroll
        for (int i = 0; i < kWarpHeads; ++i) {
          const int j = first_head + i;
          if (j < indexer.heads) {
            const Activation act(indexer, at.bias[j]);
            const float w[2] = {at.w[j * Tile::kQueries + row], at.w[j * Tile::kQueries + row + 8]};
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                const float y = act.bounded(x[i][n][r]), d = d_score[n][r];
                dw[i][r / 2] = fmaf(d, y, dw[i][r / 2]);
                const float dx = d * w[r / 2] * act.slope(y);
                dbias[i][r / 2] += dx;
                x[i][n][r] = dx;
              }
              // Both rows of the lane, which differ by eight: the swizzle is the same.
              const std::uint32_t to =
                  dx_at + tile_offset<64>(j * Tile::kQueries + row, column / 8 + n) + 4 * (lane & 3);
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                const std::uint32_t pair =
                    pack<T>(key_factor * x[i][n][2 * r], key_factor * x[i][n][2 * r + 1]);
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + r * 8 * 128), "r"(pair) : "memory");
              }
            }
            if constexpr (!is_bf16<T>) {
#pragma unroll
              for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
                for (int r = 0; r < 4; ++r) x[i][n][r] *= factor[r / 2];
              }
            }
            add_products<T, kSize>(dq[i], x[i], keys, column, lane);
          }
        }
      }

      // dk of 16 entries: dx^T q over all queries, head by head. The next step's barrier frees dx again.
      __syncthreads();
      const int first_entry = block * Tile::kKeys + 16 * warp;
      if (first_entry < split.entries) {
        const int entry[2] = {first_entry + (lane >> 2), first_entry + (lane >> 2) + 8};
        int dk_row[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          dk_row[r] = entry[r] < split.entries ? chunk.row[split.list + entry[r]] : -1;
        float dk[kSize / 8][4] = {};
        for (int j = 0; j < indexer.heads; ++j) {
#pragma unroll
          for (int first_query = 0; first_query < Tile::kQueries; first_query += 16) {
            // Rows of dx are queries, and a's are entries: eight queries x eight entries, each transposed.
            const int query = first_query + (lane >> 4) * 8 + (lane & 7);
            std::uint32_t a[4];
            ldmatrix_x4_trans(
                a, dx_at + tile_offset<64>(j * Tile::kQueries + query, 2 * warp + (lane >> 3 & 1)));
#pragma unroll
            for (int n = 0; n < kSize / 16; ++n) {
              std::uint32_t b[4];
              load_b_trans<kSize>(b, at.heads_at + j * Tile::kHeadBytes, first_query, n, lane);
              mma_16x8x16<T>(dk[2 * n], a, b[0], b[1]);
              mma_16x8x16<T>(dk[2 * n + 1], a, b[2], b[3]);
            }
          }
        }
        const float back = 1.0f / key_factor;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (dk_row[r] < 0) continue;
          float* const to = gradients.dk_part + static_cast<std::int64_t>(dk_row[r]) * kSize + 2 * (lane & 3);
#pragma unroll
          for (int n = 0; n < kSize / 8; ++n) {
            *reinterpret_cast<float2*>(to + 8 * n) =
                make_float2(back * dk[n][2 * r], back * dk[n][2 * r + 1]);
          }
        }
      }
    }

    write_row_sums<kSize>(gradients, split, indexer.heads, first_head, row, lane, factor, dq, dw, dbias);
  });
}

template <typename T, int kSize>
void launch(const IndexerRows& indexer, const Chunk& chunk, const RowFacts& facts, const Gradients& gradients,
            const Context& context) {
  using Tile = IndexTile<T, kSize, true, kThreads>;
  const std::size_t bytes =
      (Tile::shared_bytes(indexer.heads) + 127) / 128 * 128 + sizeof(Exchange<step_columns(kSize) / 8>);
  const auto kernel = list_gradients_kernel<T, kSize>;
  allow_shared_memory(kernel, bytes, "indexer_kl list_gradients");
  kernel<<<split_grid(chunk, 1, context.device), kThreads, bytes, stream_of(context.stream)>>>(
      indexer, chunk, facts, gradients);
  check_launch("indexer_kl list_gradients");
}

}  // namespace

void list_gradients(DType dtype, const IndexerRows& indexer, const Chunk& chunk, const RowFacts& facts,
                    const Gradients& gradients, const Context& context) {
  const bool half = padded_index_size(indexer.q.size) == 32;
  if (dtype == DType::bf16) {
    half ? launch<__nv_bfloat16, 32>(indexer, chunk, facts, gradients, context)
         : launch<__nv_bfloat16, 64>(indexer, chunk, facts, gradients, context);
  } else {
    half ? launch<__half, 32>(indexer, chunk, facts, gradients, context)
         : launch<__half, 64>(indexer, chunk, facts, gradients, context);
  }
}

}  // namespace gsa::cuda::kl
