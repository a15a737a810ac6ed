// attend_lse on CUDA: the sampled tiles, parts of their sums by split of the keys, and their sum.
#include "kernels/attend_lse/attend_lse_cuda.h"

#include <algorithm>
#include <vector>

#include "kernels/attend_lse/attend_lse_checks.h"
#include "kernels/attend_lse/attend_lse_kernels.h"
#include "kernels/attend_lse/attend_lse_plan.h"
#include "kernels/attention/query_tiles.h"
#include "kernels/common/aligned_rows.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/device_sequences.h"
#include "kernels/common/log2e.h"
#include "kernels/common/plans.h"

namespace gsa::cuda {
namespace {

using lse::kQueries;
using lse::Params;
using lse::Tile;

// A thread: a head of a query.
__global__ void combine_kernel(const Params p, int tiles, float* result) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long row = i / p.heads;
  if (row >= static_cast<long long>(tiles) * kQueries) return;
  const Tile tile = p.tile[row / kQueries];
  const int query = static_cast<int>(row % kQueries), head = static_cast<int>(i % p.heads);
  if (query >= tile.queries) return;
  const float2* const part = p.part + i * p.splits;
  const int splits = (tile.visible() + lse::kSplitKeys - 1) / lse::kSplitKeys;
  float maximum = -INFINITY;
  for (int s = 0; s < splits; ++s) maximum = fmaxf(maximum, part[s].x);
  double sum = 0;
  for (int s = 0; s < splits; ++s) {
    sum += static_cast<double>(part[s].y) * static_cast<double>(exp2f(part[s].x - maximum));
  }
  constexpr double kLn2 = 0.69314718055994531;
  result[static_cast<long long>(tile.first_query + query) * p.heads + head] =
      static_cast<float>((static_cast<double>(maximum) + log2(sum)) * kLn2);
}

}  // namespace

void attend_lse(const AttendLseArgs& args, const Context& context) {
  constexpr const char* kOp = "attend_lse";
  if (!check_attend_lse(args)) return;
  const AttendShape& shape = args.shape;
  if (shape.dtype != DType::bf16 && shape.dtype != DType::f16) {
    bad_argument(kOp, "dtype", "bfloat16 or float16 on a CUDA device", name_of(shape.dtype));
  }
  check_device(kOp, context.device);
  std::vector<Tile> tiles;
  int longest = 0;
  for (const SampledTile& tile : sampled_tiles(args.sequences, args.tiles)) {
    tiles.push_back({static_cast<int>(tile.first_query), static_cast<int>(tile.queries),
                     static_cast<int>(tile.first_position),
                     static_cast<int>(args.sequences.k_begin[tile.sequence])});
    longest = std::max(longest, static_cast<int>(tile.first_position + tile.queries));
  }
  // The last tiles see the most keys: they go first.
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const Tile& a, const Tile& b) { return a.first_position > b.first_position; });
  float* const result = static_cast<float*>(args.lse);
  if (args.tiles.number != nullptr) {
    const std::size_t bytes =
        static_cast<std::size_t>(args.sequences.total_queries() * shape.heads) * sizeof(float);
    check(cudaMemsetAsync(result, 0, bytes, stream_of(context.stream)), "attend_lse zeros");
  }
  if (tiles.empty()) return;

  Params p;
  p.q = args.q.data, p.q_token = args.q.token_stride, p.q_head = args.q.head_stride;
  p.k = args.k.data, p.k_token = args.k.token_stride, p.k_head = args.k.head_stride;
  p.heads = static_cast<int>(shape.heads);
  p.group = static_cast<int>(shape.heads / shape.kv_heads);
  p.size = static_cast<int>(shape.head_size);
  p.scale = static_cast<float>(shape.scale * kLog2EDouble);
  p.aligned = aligned_rows(args.q) && aligned_rows(args.k) && shape.head_size % 8 == 0;
  AttendLseFacts facts;
  facts.device = context.device;
  facts.heads = shape.heads;
  facts.head_size = shape.head_size;
  facts.aligned = p.aligned;
  facts.tiles = static_cast<std::int64_t>(tiles.size());
  facts.longest = longest;
  const AttendLseConfig config = choose_attend_lse(facts);
  if (prints_plans()) {
    print_plan(kOp, concat(describe(shape), ", ", describe(args.sequences), ", ", tiles.size(), " tiles"),
               to_string(config));
  }
  p.splits = config.splits;
  const std::size_t at_once = static_cast<std::size_t>(config.at_once), each = config.tile_bytes;
  p.part = reinterpret_cast<float2*>(context.workspace->allocate(at_once * each));
  static_assert(sizeof(Tile) == 4 * sizeof(int));
  const auto* const all = reinterpret_cast<const Tile*>(
      upload_words(reinterpret_cast<const int*>(tiles.data()), tiles.size() * 4, context));
  for (std::size_t first = 0; first < tiles.size(); first += at_once) {
    const int count = static_cast<int>(std::min(at_once, tiles.size() - first));
    p.tile = all + first;
    if (config.kernel == AttendLseConfig::Kernel::hopper) {
      lse::launch_hopper(shape.dtype, p, count, context);
    } else {
      lse::launch_generic(shape.dtype, p, count, context);
    }
    constexpr int kThreads = 256;
    const long long rows = static_cast<long long>(count) * kQueries * p.heads;
    combine_kernel<<<static_cast<unsigned>((rows + kThreads - 1) / kThreads), kThreads, 0,
                     stream_of(context.stream)>>>(p, count, result);
    check_launch("attend_lse combine");
  }
}

}  // namespace gsa::cuda
