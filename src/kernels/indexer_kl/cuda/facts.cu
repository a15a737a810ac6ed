// Facts about single rows for the backward pass of indexer_kl, and the sum of dbias over all queries.
#include "kernels/common/cuda_check.h"
#include "kernels/indexer_kl/cuda/device.cuh"

namespace gsa::cuda::kl {
namespace {

template <typename T>
__device__ __forceinline__ bool row_is_bad(const T* row, int size, int lane) {
  bool bad = false;
  for (int c = lane; c < size; c += 32) bad = bad || !isfinite(to_float(row[c]));
  return bad;
}

// A warp: a key, or (beyond the keys) a query: of all, or of the tiles of a sample.
template <typename T>
__global__ void row_facts_kernel(const IndexerRows indexer, const DeviceSequences sequences,
                                 const UnionTile* sample, int sampled, const float* weight,
                                 std::uint8_t* bad_key, std::uint8_t* bad_query, int* query_exponent,
                                 int* sequence_exponent) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int row = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  if (row < sequences.total_keys) {
    const bool bad = row_is_bad(row_of<T>(indexer.k, row, 0), indexer.k.size, lane);
    const bool any = __any_sync(~0u, bad);
    if (lane == 0) bad_key[row] = any ? 1 : 0;
    return;
  }
  int query = row - sequences.total_keys;
  if (sample != nullptr) {
    if (query >= sampled * kDenseQueries) return;
    const UnionTile tile = sample[query / kDenseQueries];
    if (query % kDenseQueries >= tile.queries) return;
    query = tile.first_query + query % kDenseQueries;
  }
  if (query >= sequences.total_queries) return;
  bool bad = false;
  float largest = 0;
  for (int j = 0; j < indexer.heads; ++j) {
    bad = bad || row_is_bad(row_of<T>(indexer.q, query, j), indexer.q.size, lane);
    const float w = to_float(
        static_cast<const T*>(indexer.w.data)[query * indexer.w.token_stride + j * indexer.w.head_stride]);
    bad = bad || !isfinite(w);
    largest = fmaxf(largest, fabsf(w));
  }
  const bool any = __any_sync(~0u, bad);
  if (lane != 0) return;
  bad_query[query] = any ? 1 : 0;
  const float bound = largest * fabsf(weight[query]);
  int exponent = kMinExponent;
  if (isfinite(bound) && bound > 0) frexpf(bound, &exponent);
  query_exponent[query] = exponent;
  atomicMax(sequence_exponent + sequences.sequence_of(query), exponent);
}

// A block: a head. Thread i adds up every blockDim.x-th query, then the threads are added in pairs.
__global__ void combine_bias_kernel(const float* rows, int queries, int heads, float* dbias) {
  __shared__ double sums[1024];
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int q = thread; q < queries; q += static_cast<int>(blockDim.x)) {
    sum += static_cast<double>(rows[static_cast<std::int64_t>(q) * heads + blockIdx.x]);
  }
  sums[thread] = sum;
  for (int half = static_cast<int>(blockDim.x) / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread == 0) dbias[blockIdx.x] += static_cast<float>(sums[0]);
}

__global__ void zero_rows_kernel(const Rows rows, long long count, int heads, int size) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const long long row = i / size, query = row / heads;
  static_cast<std::uint16_t*>(
      rows.data)[query * rows.token_stride + row % heads * rows.head_stride + i % size] = 0;
}

}  // namespace

void set_zero(void* to, std::size_t bytes, const Context& context) {
  check(cudaMemsetAsync(to, 0, bytes, stream_of(context.stream)), "indexer_kl zeros");
}

void zero_rows(const Rows& rows, int queries, int heads, int size, const Context& context) {
  const long long count = static_cast<long long>(queries) * heads * size;
  if (rows.head_stride == size && rows.token_stride == static_cast<std::int64_t>(heads) * size) {
    set_zero(rows.data, static_cast<std::size_t>(count) * 2, context);
    return;
  }
  constexpr int kThreads = 256;
  zero_rows_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
                     stream_of(context.stream)>>>(rows, count, heads, size);
  check_launch("indexer_kl zero_rows");
}

void row_facts(DType dtype, const IndexerRows& indexer, const DeviceSequences& sequences,
               const UnionTile* sample, int sampled, const float* weight, std::uint8_t* bad_key,
               std::uint8_t* bad_query, int* query_exponent, int* sequence_exponent, const Context& context) {
  constexpr int kWarps = 8;
  const cudaStream_t stream = stream_of(context.stream);
  // Every byte 0x80: far below the least exponent, which is where readers stop.
  check(cudaMemsetAsync(sequence_exponent, 0x80, static_cast<std::size_t>(sequences.count) * sizeof(int),
                        stream),
        "indexer_kl exponents");
  const int queries = sample == nullptr ? sequences.total_queries : sampled * kDenseQueries;
  const int rows = sequences.total_keys + queries;
  const auto kernel = dtype == DType::bf16 ? row_facts_kernel<__nv_bfloat16> : row_facts_kernel<__half>;
  kernel<<<static_cast<unsigned>((rows + kWarps - 1) / kWarps), 32 * kWarps, 0, stream>>>(
      indexer, sequences, sample, sampled, weight, bad_key, bad_query, query_exponent, sequence_exponent);
  check_launch("indexer_kl row_facts");
}

void combine_bias(const float* dbias_rows, int queries, int heads, float* dbias, const Context& context) {
  combine_bias_kernel<<<static_cast<unsigned>(heads), 1024, 0, stream_of(context.stream)>>>(
      dbias_rows, queries, heads, dbias);
  check_launch("indexer_kl combine_bias");
}

}  // namespace gsa::cuda::kl
