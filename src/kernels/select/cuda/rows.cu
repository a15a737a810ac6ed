// Rows of stored scores, one block each: one that walks over them once (cuda/stored_row.cuh), or, where they
// are too long for that, one that reads them again and again. And the sums of their segments, where the
// kernel that wrote the scores did not take them.
#include <algorithm>

#include "kernels/common/cuda_check.h"
#include "kernels/common/plans.h"
#include "kernels/select/cuda/stored_row.cuh"

namespace gsa::cuda::selecting {
namespace {

// Row `row` of all queries, and how many keys it sees.
struct StoredQuery {
  int row, visible;
  const float* scores;

  // The last queries see the most keys: they go first.
  __device__ __forceinline__ StoredQuery(const DeviceSequences& sequences, const ScoreStore& store, int first)
      : row(first + static_cast<int>(gridDim.x - 1 - blockIdx.x)) {
    const int n = sequences.sequence_of(row);
    visible = sequences.first_position(n) + row - sequences.q_begin(n) + 1;
    scores = store.scores + (row - store.first_row) * store.stride;
  }
};

template <int kThreads>
__global__ __launch_bounds__(kThreads, 768 / kThreads) void rows_kernel(DeviceSequences sequences,
                                                                        ScoreStore scores, Budget budget,
                                                                        RowOutputs out, int first) {
  __shared__ RowShared shared;
  const StoredQuery query(sequences, scores, first);
  RowSelection<kThreads>(shared, query.scores, query.visible).run(budget, out, query.row);
}

// 64 registers a thread.
template <class Shared>
__global__ __launch_bounds__(Shared::kThreads,
                             Shared::kBlocks) void stored_rows_kernel(DeviceSequences sequences,
                                                                      ScoreStore scores, Budget budget,
                                                                      RowOutputs out, int first, int room) {
  extern __shared__ __align__(16) unsigned char memory[];
  const StoredQuery query(sequences, scores, first);
  const float2* const sums = scores.sums + (query.row - scores.first_row) * scores.segments;
  const float* const sample = scores.sample + (query.row - scores.first_row) * scores.sample_stride();
  StoredRow<Shared> row(*reinterpret_cast<Shared*>(memory), query.scores, sample, sums, query.visible, room);
  row.run(budget, out, query.row);
}

// Candidates of a lane that there is room for: twice as many as expected, and some more.
template <class Shared>
int room_for(const Budget& budget, int longest) {
  const auto k = std::min<std::int64_t>(budget.mode == BudgetMode::fixed ? budget.base : budget.max, longest);
  const float margin = sample_margin(static_cast<float>(k) / Shared::kStep);
  const float expected = std::min(2 * margin * Shared::kStep, static_cast<float>(longest)) / Shared::kThreads;
  return std::max(Shared::kMinRoom, static_cast<int>(2 * expected) + 24);
}

// A warp takes a segment of a row.
constexpr int kSumWarps = 4;
__global__ __launch_bounds__(32 * kSumWarps) void sums_kernel(DeviceSequences sequences, ScoreStore scores,
                                                              int first) {
  const StoredQuery query(sequences, scores, first);
  const int segment = static_cast<int>(blockIdx.y * kSumWarps + threadIdx.x / 32);
  const int begin = segment * kMomentSegment;
  if (begin >= query.visible) return;
  const auto sums = segment_sums<float>(query.scores, begin, query.visible, query.scores[0]);
  float* const sample = scores.sample + (query.row - scores.first_row) * scores.sample_stride();
  const auto sampled = static_cast<int>(scores.sample_stride());
  for (int i = begin / kStoredSample + static_cast<int>(threadIdx.x % 32);
       i < min(sampled, (begin + kMomentSegment) / kStoredSample); i += 32) {
    const int at = sample_position(i);
    sample[i] = at < query.visible ? query.scores[at] : 0.0f;
  }
  if (threadIdx.x % 32 == 0) {
    scores.sums[(query.row - scores.first_row) * scores.segments + segment] = {sums.sum, sums.square};
  }
}

}  // namespace

void launch_rows(const DeviceSequences& sequences, const ScoreStore& scores, const Budget& budget,
                 const RowOutputs& out, int first, int rows, int longest, const Context& context) {
  const auto go = [&](auto* kernel, int threads) {
    kernel<<<static_cast<unsigned>(rows), threads, 0, stream_of(context.stream)>>>(sequences, scores, budget,
                                                                                   out, first);
    check_launch("rows_kernel");
  };
  const auto once = [&]<class Shared>() {
    if (!scores.summed) {
      const int segments = (longest + kMomentSegment - 1) / kMomentSegment;
      const dim3 grid(static_cast<unsigned>(rows),
                      static_cast<unsigned>((segments + kSumWarps - 1) / kSumWarps));
      sums_kernel<<<grid, 32 * kSumWarps, 0, stream_of(context.stream)>>>(sequences, scores, first);
      check_launch("sums_kernel");
    }
    const auto kernel = &stored_rows_kernel<Shared>;
    const int room = room_for<Shared>(budget, longest);
    const std::size_t bytes =
        sizeof(Shared) + static_cast<std::size_t>(room + 1) * Shared::kThreads * sizeof(float);
    allow_shared_memory(kernel, bytes, "stored_rows_kernel");
    kernel<<<static_cast<unsigned>(rows), Shared::kThreads, bytes, stream_of(context.stream)>>>(
        sequences, scores, budget, out, first, room);
    check_launch("stored_rows_kernel");
  };
  const SelectRowsConfig config =
      choose_select_rows({.device = context.device, .rows = rows, .longest_keys = longest});
  if (prints_plans()) print_plan("select", "its rows of stored scores", to_string(config));
  static_assert(StoredShared<2, 2>::kKeys == kShortRow && StoredShared<4, 2>::kKeys == 2 * kShortRow);
  static_assert(StoredShared<4, 4>::kKeys == 4 * kShortRow && StoredShared<8, 4>::kKeys == 8 * kShortRow);
  switch (config.keys) {
    case StoredShared<2, 2>::kKeys:
      return once.template operator()<StoredShared<2, 2>>();
    case StoredShared<4, 2>::kKeys:
      return once.template operator()<StoredShared<4, 2>>();
    case StoredShared<4, 4>::kKeys:
      return once.template operator()<StoredShared<4, 4>>();
    case StoredShared<8, 4>::kKeys:
      return once.template operator()<StoredShared<8, 4>>();
    default:
      return config.threads == 512 ? go(&rows_kernel<512>, 512) : go(&rows_kernel<256>, 256);
  }
}

}  // namespace gsa::cuda::selecting
