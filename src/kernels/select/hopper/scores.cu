// Scores written out by wgmma (hopper/scores.cuh): a block takes 64 queries and a range of keys. Rows have
// room for whole tiles of keys, so nothing asks whether a query sees a key: who reads a row knows its end.
#include "kernels/select/hopper/scores.cuh"

namespace gsa::cuda::selecting {
namespace {

template <typename T, ScoreForm form, int kSize>
__global__ __launch_bounds__(kThreads, 3) void hopper_scores_kernel(const __grid_constant__ ScoreInput in,
                                                                    ScoreStore store, int first,
                                                                    int split_tiles) {
#ifdef GSA_HOPPER_CODE
  extern __shared__ __align__(1024) char memory[];
  // The last tiles see the most keys: they go first.
  const QueryTile tile = find_tile(in.sequences, first + static_cast<int>(gridDim.x - 1 - blockIdx.x));
  if (tile.count == 0) return;
  const int tiles = (tile.position + tile.count + kTileKeys - 1) / kTileKeys;
  const int begin = static_cast<int>(blockIdx.y) * split_tiles, end = min(tiles, begin + split_tiles);
  if (begin >= end) return;
  const int thread = static_cast<int>(threadIdx.x), query = thread / 32 * 16 + thread % 32 / 4;
  const std::uint32_t q_address = aligned_address(memory);
  KeyPanels<T, kSize> load(in, tile, q_address, begin);
  float* const row = store.scores + (tile.row + query - store.first_row) * store.stride + begin * kTileKeys +
                     2 * (thread % 4);
  const bool exists[2] = {query < tile.count, query + 8 < tile.count};
  TileScores last;
  for_scores<T, form, kSize>(
      in, tile, q_address, end - begin, last, load, [](int, const TileScores&) {},
      [&](int key_tile, const TileScores& score) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!exists[i]) continue;
          float* const to = row + 8 * i * store.stride + key_tile * kTileKeys;
#pragma unroll
          for (int n = 0; n < kTileKeys / 8; ++n) {
            *reinterpret_cast<float2*>(to + 8 * n) = make_float2(score[n][2 * i], score[n][2 * i + 1]);
          }
        }
      });
#endif
}

template <typename T, ScoreForm form, int kSize>
void launch(const ScoreInput& in, const ScoreStore& out, int first, int tiles, int longest,
            const Context& context) {
  const auto kernel = &hopper_scores_kernel<T, form, kSize>;
  allow_shared_memory(kernel, kPassBytes, "hopper_scores_kernel");
  // Splits of the keys: blocks for the device several times over, but not so short that filling the ring
  // of keys is the work.
  constexpr int kWaves = 8, kMinTiles = 16;
  const int key_tiles = (longest + kTileKeys - 1) / kTileKeys;
  const int wanted = std::max(1, kWaves * context.device.multiprocessors / std::max(1, tiles));
  const int split_tiles = std::max(kMinTiles, (key_tiles + wanted - 1) / wanted);
  const dim3 grid(static_cast<unsigned>(tiles),
                  static_cast<unsigned>((key_tiles + split_tiles - 1) / split_tiles));
  kernel<<<grid, kThreads, kPassBytes, stream_of(context.stream)>>>(in, out, first, split_tiles);
  check_launch("hopper_scores_kernel");
}

}  // namespace

void launch_hopper_scores(const ScoreInput& in, ScoreType type, const ScoreStore& out, int first, int tiles,
                          int longest, const Context& context) {
  const auto size = [&]<typename T, ScoreForm form>() {
    in.head_size == 32 ? launch<T, form, 32>(in, out, first, tiles, longest, context)
                       : launch<T, form, 64>(in, out, first, tiles, longest, context);
  };
  const auto form = [&]<typename T>() {
    type.form == ScoreForm::sigmoid ? size.template operator()<T, ScoreForm::sigmoid>()
                                    : size.template operator()<T, ScoreForm::relu>();
  };
  type.dtype == DType::bf16 ? form.template operator()<__nv_bfloat16>() : form.template operator()<__half>();
}

}  // namespace gsa::cuda::selecting
