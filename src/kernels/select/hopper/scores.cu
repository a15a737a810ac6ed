// Scores written out by wgmma (hopper/scores.cuh): a block takes 64 queries and a range of keys. Rows have
// room for whole tiles of keys, so nothing asks whether a query sees a key: who reads a row knows its end.
// The sums behind the variance are taken on the way, while the scores are in registers: a range of keys is a
// number of whole segments.
#include "kernels/scores/moments.cuh"
#include "kernels/select/hopper/scores.cuh"

namespace gsa::cuda::selecting {
static_assert(kTileKeys == kMomentBlock && kSegmentTiles == kMomentSegment / kTileKeys);

// The sums of a lane's two queries over a segment: chains of the lane, as scores/moments.cuh has them.
class SegmentSums {
 public:
  __device__ __forceinline__ SegmentSums(const ScoreStore& store, const QueryTile& tile, int query)
      : last_(tile.position + query) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      exists_[i] = query + 8 * i < tile.count;
      shift_[i] = exists_[i] ? store.first_scores[tile.row + query + 8 * i] : 0.0f;
      to_[i] =
          store.sums + (tile.row + query + 8 * i - store.first_row) * static_cast<long long>(store.segments);
    }
  }

  // Scores of keys from position s on. masked: not every query sees all of them.
  template <bool masked>
  __device__ __forceinline__ void add(int s, const TileScores& score) {
    const int at = s + 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ScoreSums<float> block;
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool seen = !masked || at + 8 * n + e <= last_ + 8 * i;
          add_difference(block, seen ? score[n][2 * i + e] : shift_[i], shift_[i]);  // else adds zero
        }
      }
      add_sums(segment_[i], block);
    }
  }
  __device__ __forceinline__ void write(int segment) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const ScoreSums<float> sums = join_chains(segment_[i]);
      segment_[i] = {};
      if (threadIdx.x % 4 == 0 && exists_[i]) to_[i][segment] = make_float2(sums.sum, sums.square);
    }
  }

 private:
  const int last_;  // position that the upper query sees last
  bool exists_[2];
  float shift_[2];
  float2* to_[2];
  ScoreSums<float> segment_[2];
};

namespace {

template <typename T, ScoreForm form, int kSize>
__global__ __launch_bounds__(kThreads,
                             3) void hopper_first_scores_kernel(const __grid_constant__ ScoreInput in,
                                                                float* first_scores) {
#ifdef GSA_HOPPER_CODE
  extern __shared__ __align__(1024) char memory[];
  const QueryTile tile = find_tile(in.sequences, static_cast<int>(blockIdx.x));
  if (tile.count == 0) return;
  const int thread = static_cast<int>(threadIdx.x), query = thread / 32 * 16 + thread % 32 / 4;
  const std::uint32_t q_address = aligned_address(memory);
  KeyPanels<T, kSize> load(in, tile, q_address, 0);
  TileScores last;
  for_scores<T, form, kSize>(
      in, tile, q_address, 1, last, load, [](int, const TileScores&) {},
      [&](int, const TileScores& score) {
        if (thread % 4 != 0) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (query + 8 * i < tile.count) first_scores[tile.row + query + 8 * i] = score[0][2 * i];
        }
      });
#endif
}

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
  constexpr int kSampled = kTileKeys / kStoredSample;  // of a tile: score[1] of the even, score[5] of the odd
  static_assert(sample_position(0) == 8 * 1 && sample_position(1) == 8 * 5 + 1);
  float* const sample = store.sample + (tile.row + query - store.first_row) * store.sample_stride() +
                        begin * kSampled + 2 * (thread % 4);
  const bool exists[2] = {query < tile.count, query + 8 < tile.count};
  SegmentSums sums(store, tile, query);
  const int whole = (tile.position + thread / 32 * 16 + 1) / kTileKeys;  // tiles that the warp's queries see
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
          *reinterpret_cast<float2*>(sample + 8 * i * store.sample_stride() + key_tile * kSampled) =
              make_float2(score[1][2 * i], score[5][2 * i + 1]);
        }
        const int at = begin + key_tile;
        if (at < whole) {
          sums.template add<false>(at * kTileKeys, score);
        } else {
          sums.template add<true>(at * kTileKeys, score);
        }
        if ((at + 1) % kSegmentTiles == 0 || at + 1 == end) sums.write(at / kSegmentTiles);
      });
#endif
}

template <typename T, ScoreForm form, int kSize>
void launch(const ScoreInput& in, const ScoreStore& out, int first, int tiles,
            const SelectScoresConfig& config, const Context& context) {
  const auto kernel = &hopper_scores_kernel<T, form, kSize>;
  allow_shared_memory(kernel, kPassBytes, "hopper_scores_kernel");
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(config.splits));
  kernel<<<grid, kThreads, kPassBytes, stream_of(context.stream)>>>(in, out, first, config.split_tiles);
  check_launch("hopper_scores_kernel");
}

// go<T, form, kSize>() for the scores of a problem.
template <class Go>
void by_type(const ScoreInput& in, ScoreType type, const Go& go) {
  const auto size = [&]<typename T, ScoreForm form>() {
    in.head_size == 32 ? go.template operator()<T, form, 32>() : go.template operator()<T, form, 64>();
  };
  const auto form = [&]<typename T>() {
    type.form == ScoreForm::sigmoid ? size.template operator()<T, ScoreForm::sigmoid>()
                                    : size.template operator()<T, ScoreForm::relu>();
  };
  type.dtype == DType::bf16 ? form.template operator()<__nv_bfloat16>() : form.template operator()<__half>();
}

}  // namespace

void launch_hopper_first_scores(const ScoreInput& in, ScoreType type, float* first_scores, int tiles,
                                const Context& context) {
  by_type(in, type, [&]<typename T, ScoreForm form, int kSize>() {
    const auto kernel = &hopper_first_scores_kernel<T, form, kSize>;
    allow_shared_memory(kernel, kPassBytes, "hopper_first_scores_kernel");
    kernel<<<static_cast<unsigned>(tiles), kThreads, kPassBytes, stream_of(context.stream)>>>(in,
                                                                                              first_scores);
    check_launch("hopper_first_scores_kernel");
  });
}

void launch_hopper_scores(const ScoreInput& in, ScoreType type, const ScoreStore& out, int first, int tiles,
                          int longest, const Context& context) {
  const SelectScoresConfig config = choose_hopper_scores(facts_of(in, context.device), tiles, longest);
  print_scores_plan(in, type, config);
  by_type(in, type, [&]<typename T, ScoreForm form, int kSize>() {
    launch<T, form, kSize>(in, out, first, tiles, config, context);
  });
}

}  // namespace gsa::cuda::selecting
