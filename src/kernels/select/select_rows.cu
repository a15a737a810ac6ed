// Rows of stored scores: one block takes one query, or one warp where there are many short ones.
#include <cstddef>

#include "kernels/common/cuda_check.h"
#include "kernels/select/select_warp.cuh"

namespace gsa::cuda::selecting {
namespace {

template <int kThreads>
__global__ __launch_bounds__(kThreads, 768 / kThreads) void rows_kernel(DeviceSequences sequences,
                                                                        ScoreStore scores, Budget budget,
                                                                        RowOutputs out, int first) {
  __shared__ RowShared shared;
  // The last queries see the most keys: they go first.
  const int row = first + static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int n = sequences.sequence_of(row);
  const int visible = sequences.first_position(n) + row - sequences.q_begin(n) + 1;
  RowSelection<kThreads>(shared, scores.scores + (row - scores.first_row) * scores.stride, visible)
      .run(budget, out, row);
}

constexpr int kRowWarps = 4;
constexpr int kWarpKeys = 32768;  // a longer row is too much for one warp

// Sums and range of a row, by one warp.
template <typename Real>
__device__ __forceinline__ ScoreSums<double> row_sums(const float* scores, int visible, float& low,
                                                      float& high) {
  ScoreSums<double> sums;
  low = INFINITY, high = -INFINITY;
#pragma unroll 1
  for (int s = 0; s < visible; s += kMomentSegment) {
    add_segment(sums, segment_sums<Real>(scores, s, visible, scores[0], [&](float score) {
                  low = fminf(low, score);
                  high = fmaxf(high, score);
                }));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    low = fminf(low, __shfl_xor_sync(kAll, low, step));
    high = fmaxf(high, __shfl_xor_sync(kAll, high, step));
  }
  return sums;
}

__global__ __launch_bounds__(32 * kRowWarps, 6) void warp_rows_kernel(DeviceSequences sequences,
                                                                      ScoreStore scores, Budget budget,
                                                                      RowOutputs out, int first, int rows) {
  __shared__ WarpShared shared[kRowWarps];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int index = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRowWarps + warp;
  if (index >= rows) return;
  const int row = first + index;
  const int n = sequences.sequence_of(row);
  const int visible = sequences.first_position(n) + row - sequences.q_begin(n) + 1;
  const float* const stored = scores.scores + (row - scores.first_row) * scores.stride;
  float low, high;
  ScoreSums<double> sums = row_sums<float>(stored, visible, low, high);
  if (!isnan(sums.square) && !isfinite(variance_of(sums, visible))) {
    sums = row_sums<double>(stored, visible, low, high);
  }
  const float nan = __int_as_float(0x7fc00000);
  const double variance = variance_of(sums, visible);
  RowChoice choice = {-INFINITY, visible - 1};
  int k = 0;
  if (isnan(sums.square) || !isfinite(variance) || !isfinite(low) || !isfinite(high)) {
    choice.threshold = nan;
  } else {
    k = budget_for(budget, variance, visible);
  }
  const StoredRow all(stored, visible);
  WarpShared& scratch = shared[warp];
  const MaskWindow window = {scratch.bins, 0, min(kListBins, (visible + 31) / 32)};
  if (k > 0 && k < visible) {
    const float scale = static_cast<float>(kListBins - 1) / (high - low);
    choice = search(all, k, visible, {low, scale}, scratch, window);
  }
  if (threadIdx.x % 32 == 0) write_row(out, row, k, k == 0 ? nan : static_cast<float>(variance), choice);
  if (out.words != nullptr) write_mask(out, all, k, visible, choice, window, row);
}

}  // namespace

void launch_rows(const DeviceSequences& sequences, const ScoreStore& scores, const Budget& budget,
                 const RowOutputs& out, int first, int rows, const Context& context) {
  const auto go = [&](auto* kernel, int threads) {
    kernel<<<static_cast<unsigned>(rows), threads, 0, stream_of(context.stream)>>>(sequences, scores, budget,
                                                                                   out, first);
    check_launch("rows_kernel");
  };
  if (sequences.longest_keys <= kWarpKeys && rows >= 8 * context.device.multiprocessors) {
    const int blocks = (rows + kRowWarps - 1) / kRowWarps;
    warp_rows_kernel<<<static_cast<unsigned>(blocks), 32 * kRowWarps, 0, stream_of(context.stream)>>>(
        sequences, scores, budget, out, first, rows);
    check_launch("warp_rows_kernel");
  } else if (rows <=
             2 * context.device.multiprocessors) {  // few rows: all threads of a multiprocessor for each
    go(&rows_kernel<512>, 512);
  } else {
    go(&rows_kernel<256>, 256);
  }
}

}  // namespace gsa::cuda::selecting
