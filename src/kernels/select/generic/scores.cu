// Scores written out, and masks rebuilt from thresholds: one block takes 64 queries and a range of keys.
#include "gsa/error.h"
#include "kernels/common/cuda_check.h"
#include "kernels/select/cuda/tile.cuh"

namespace gsa::cuda::selecting {
namespace {

// One lane's part of 16 scores: rows lane / 4 and + 8, positions 2 (lane % 4) and + 1 of each eight.
struct Place {
  QueryTile tile;
  int query;  // of the tile: the lane's upper row

  __device__ __forceinline__ bool exists(int i) const { return query + 8 * i < tile.count; }
  __device__ __forceinline__ int row(int i) const { return tile.row + query + 8 * i; }
  __device__ __forceinline__ int last(int i) const { return tile.position + query + 8 * i; }  // visible
};

class ScoreWriter {
 public:
  using Store = ScoreStore;
  __device__ __forceinline__ ScoreWriter(const Store& store, const Place& place)
      : store_(store), place_(place) {}

  // Positions of the group begin at s.
  __device__ __forceinline__ void group(int, int s, const float (&score)[2][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!place_.exists(i)) continue;
      float* const row = store_.scores + (place_.row(i) - store_.first_row) * store_.stride;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int at = s + 8 * n + 2 * static_cast<int>(threadIdx.x % 4);
        if (store_.paired && at < place_.last(i)) {
          *reinterpret_cast<float2*>(row + at) = make_float2(score[n][2 * i], score[n][2 * i + 1]);
        } else {
          if (at <= place_.last(i)) row[at] = score[n][2 * i];
          if (at + 1 <= place_.last(i)) row[at + 1] = score[n][2 * i + 1];
        }
      }
    }
  }
  // After the last split of the tile: words (of 32 positions) from `word` on were not visited.
  __device__ __forceinline__ void rest(int) {}

 private:
  const Store& store_;
  const Place& place_;
};

class MaskWriter {
 public:
  using Store = MaskStore;
  __device__ __forceinline__ MaskWriter(const Store& store, const Place& place)
      : store_(store), place_(place) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      word_[i] = 0;
      threshold_[i] = 0;
      tie_cut_[i] = -1;
      if (!place.exists(i)) continue;
      threshold_[i] = store.threshold[place.row(i)];
      tie_cut_[i] = store.tie_cut[place.row(i)];
    }
  }

  __device__ __forceinline__ void group(int g, int s, const float (&score)[2][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = s + 8 * n + 2 * static_cast<int>(threadIdx.x % 4) + e;
          const float x = score[n][2 * i + e];
          const bool in =
              at <= place_.last(i) && (x > threshold_[i] || (x == threshold_[i] && at <= tie_cut_[i]));
          word_[i] |= static_cast<std::uint32_t>(in) << (at % 32);
        }
      }
    }
    if (g % 2 == 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      word_[i] |= __shfl_xor_sync(0xffffffffu, word_[i], 1);
      word_[i] |= __shfl_xor_sync(0xffffffffu, word_[i], 2);
      if (threadIdx.x % 4 == 0 && place_.exists(i) && s / 32 < store_.words_per_query) {
        store_.words[place_.row(i) * store_.words_per_query + s / 32] = word_[i];
      }
      word_[i] = 0;
    }
  }
  __device__ __forceinline__ void rest(int word) {
    for (int query = static_cast<int>(threadIdx.x / 32); query < place_.tile.count; query += kWarps) {
      std::uint32_t* const row = store_.words + (place_.tile.row + query) * store_.words_per_query;
      for (long long w = word + threadIdx.x % 32; w < store_.words_per_query; w += 32) row[w] = 0;
    }
  }

 private:
  const Store& store_;
  const Place& place_;
  std::uint32_t word_[2];
  float threshold_[2];
  int tie_cut_[2];
};

template <typename T, ScoreForm form, int kHeads, int kSteps, class Writer>
__global__ __launch_bounds__(kThreads, kHeads > 0 ? 3 : 4) void score_kernel(ScoreInput in,
                                                                             typename Writer::Store store,
                                                                             int first, int split_tiles,
                                                                             bool query_in_shared) {
  extern __shared__ __align__(16) char shared[];
  const int steps = kSteps > 0 ? kSteps : in.steps;
  // The last tiles see the most keys: they go first.
  const QueryTile tile = find_tile(in.sequences, first + static_cast<int>(gridDim.x - 1 - blockIdx.x));
  if (tile.count == 0) return;
  const int warp_query = static_cast<int>(threadIdx.x / 32) * 16;
  const Place place = {tile, warp_query + static_cast<int>(threadIdx.x % 32) / 4};
  Writer writer(store, place);
  const int visible = tile.position + tile.count;  // keys that the last query sees
  const int tiles = (visible + kTileKeys - 1) / kTileKeys;
  if (blockIdx.y == gridDim.y - 1) writer.rest(tiles * (kTileKeys / 32));
  const int begin = static_cast<int>(blockIdx.y) * split_tiles, end = min(tiles, begin + split_tiles);
  if (begin >= end) return;
  const Scorer<T, form, kHeads, kSteps> scorer(
      in, tile, warp_query, query_in_shared ? shared + kStages * key_stage_bytes(steps) : nullptr);
  for_key_tiles<T, kSteps>(in, static_cast<const T*>(in.k) + tile.key * in.k_token, shared, begin, end,
                           visible, [&](int key_tile, const char* stage) {
                             if (warp_query >= tile.count) return;
                             const std::uint32_t address = group_address(stage, steps);
#pragma unroll
                             for (int g = 0; g < kTileKeys / kGroupKeys; ++g) {
                               float score[2][4];
                               scorer.score(
                                   in,
                                   [&](int s, std::uint32_t(&b)[4]) {
                                     ldmatrix_x4(b, address + g * kGroupKeys * key_pitch(steps) + 32 * s);
                                   },
                                   score);
                               writer.group(g, key_tile * kTileKeys + g * kGroupKeys, score);
                             }
                           });
}

__global__ void fill_kernel(float* scores, long long count) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count; i += step) {
    scores[i] = -INFINITY;
  }
}

template <typename T, ScoreForm form, int kHeads, int kSteps, class Writer>
void launch(const ScoreInput& in, const typename Writer::Store& out, int first, int tiles,
            const SelectScoresConfig& config, const Context& context) {
  if (config.shared_bytes > context.device.shared_memory) {
    bad_argument(in.op, "indexer.head_size",
                 concat("one whose keys fit in ", context.device.shared_memory, " bytes of shared memory"),
                 concat(in.head_size));
  }
  auto* const kernel = &score_kernel<T, form, kHeads, kSteps, Writer>;
  allow_shared_memory(kernel, config.shared_bytes, "score_kernel");
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(config.splits));
  kernel<<<grid, kThreads, config.shared_bytes, stream_of(context.stream)>>>(
      in, out, first, config.split_tiles, config.query_in_shared);
  check_launch("score_kernel");
}

template <class Writer, typename T, ScoreForm form>
void launch_shape(const ScoreInput& in, const typename Writer::Store& out, int first, int tiles,
                  const SelectScoresConfig& config, const Context& context) {
  if (config.kernel == SelectScoresConfig::Kernel::four_of_64) {
    launch<T, form, 4, 4, Writer>(in, out, first, tiles, config, context);
  } else if (config.kernel == SelectScoresConfig::Kernel::four_of_32) {
    launch<T, form, 4, 2, Writer>(in, out, first, tiles, config, context);
  } else {
    launch<T, form, 0, 0, Writer>(in, out, first, tiles, config, context);
  }
}

template <class Writer>
void launch_type(const ScoreInput& in, ScoreType type, const typename Writer::Store& out, int first,
                 int tiles, int longest, const Context& context) {
  const SelectScoresConfig config = choose_select_scores(facts_of(in, context.device), tiles, longest);
  print_scores_plan(in, type, config);
  const auto go = [&]<typename T>(T) {
    if (type.form == ScoreForm::sigmoid) {
      launch_shape<Writer, T, ScoreForm::sigmoid>(in, out, first, tiles, config, context);
    } else {
      launch_shape<Writer, T, ScoreForm::relu>(in, out, first, tiles, config, context);
    }
  };
  if (type.dtype == DType::bf16) {
    go(__nv_bfloat16());
  } else {
    go(__half());
  }
}

}  // namespace

void launch_scores(const ScoreInput& in, ScoreType type, const ScoreStore& out, int first, int tiles,
                   int longest, const Context& context) {
  launch_type<ScoreWriter>(in, type, out, first, tiles, longest, context);
}

void launch_mask(const ScoreInput& in, ScoreType type, const MaskStore& out, int first, int tiles,
                 int longest, const Context& context) {
  launch_type<MaskWriter>(in, type, out, first, tiles, longest, context);
}

void launch_fill(float* scores, long long count, const Context& context) {
  fill_kernel<<<static_cast<unsigned>(context.device.multiprocessors * 8), 256, 0,
                stream_of(context.stream)>>>(scores, count);
  check_launch("fill_kernel");
}

}  // namespace gsa::cuda::selecting
