// Rows of stored scores, one block each: one that holds them in registers, or, where they are too long for
// that, one that reads them again and again.
#include "kernels/common/cuda_check.h"
#include "kernels/select/cuda/held.cuh"

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
template <int kWarps>
__global__ __launch_bounds__(32 * kWarps, 32 / kWarps) void held_rows_kernel(DeviceSequences sequences,
                                                                             ScoreStore scores, Budget budget,
                                                                             RowOutputs out, int first) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<HeldShared<kWarps>*>(memory);
  const StoredQuery query(sequences, scores, first);
  HeldRow<kWarps>(shared, query.scores, query.visible).run(budget, out, query.row);
}

}  // namespace

void launch_rows(const DeviceSequences& sequences, const ScoreStore& scores, const Budget& budget,
                 const RowOutputs& out, int first, int rows, int longest, const Context& context) {
  const auto go = [&](auto* kernel, int threads) {
    kernel<<<static_cast<unsigned>(rows), threads, 0, stream_of(context.stream)>>>(sequences, scores, budget,
                                                                                   out, first);
    check_launch("rows_kernel");
  };
  const auto held = [&]<int kWarps>() {
    const auto kernel = &held_rows_kernel<kWarps>;
    const std::size_t bytes = sizeof(HeldShared<kWarps>);
    allow_shared_memory(kernel, bytes, "held_rows_kernel");
    kernel<<<static_cast<unsigned>(rows), 32 * kWarps, bytes, stream_of(context.stream)>>>(
        sequences, scores, budget, out, first);
    check_launch("held_rows_kernel");
  };
  const int segments = (longest + kMomentSegment - 1) / kMomentSegment;
  if (segments <= 1) {
    held.template operator()<1>();
  } else if (segments <= 2) {
    held.template operator()<2>();
  } else if (segments <= 4) {
    held.template operator()<4>();
  } else if (segments <= 8) {
    held.template operator()<8>();
  } else if (segments <= 16) {
    held.template operator()<16>();
  } else if (segments <= 32) {
    held.template operator()<32>();
  } else if (rows <=
             2 * context.device.multiprocessors) {  // few rows: all threads of a multiprocessor for each
    go(&rows_kernel<512>, 512);
  } else {
    go(&rows_kernel<256>, 256);
  }
}

}  // namespace gsa::cuda::selecting
