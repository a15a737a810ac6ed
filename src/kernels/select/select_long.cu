// Selection in one pass: plan and launch.
#include <algorithm>
#include <cmath>

#include "kernels/select/select_long_kernel.cuh"

namespace gsa::cuda::selecting {

extern template void launch_long_type<__half>(const LongArgs&, ScoreType, std::size_t, int, const Context&);

namespace {

constexpr std::int64_t kScratchBytes = 985'000'000;  // of all blocks
constexpr int kBlocksEach = 3;                       // of a multiprocessor, at most

struct SharedSizes {
  int warp_words;
  bool fits;  // else the stored way has to do
  bool query_in_shared;
  std::size_t bytes;
};

SharedSizes shared_sizes(const ScoreInput& in, const Device& device) {
  const int ring = kStages * key_stage_bytes(in.steps);
  const bool usual = fits_registers(in);
  const int query = usual ? 0 : kWarps * in.heads * in.steps * 512;
  // Room for the mask of 128K positions, for the keys, and for what again() needs.
  constexpr int kMaskWords = 4096 + static_cast<int>(offsetof(WarpShared, bins)) / 4;
  const int words = std::max({kMaskWords, (ring + 15) / 16, (static_cast<int>(sizeof(RowShared)) + 15) / 16});
  SharedSizes sizes;
  sizes.warp_words = (words + 31) / 32 * 32;
  const std::size_t base = static_cast<std::size_t>(kWarps) * sizes.warp_words * 4;
  const std::size_t limit = device.shared_memory - sizeof(PassShared) - 1024;
  sizes.fits = base <= limit;
  sizes.query_in_shared = query > 0 && base + query <= limit;
  sizes.bytes = base + (sizes.query_in_shared ? query : 0);
  return sizes;
}

}  // namespace

LongPlan plan_long(const ScoreInput& in, const Budget& budget, const Device& device) {
  if (!shared_sizes(in, device).fits) return {};
  const bool adaptive = budget.mode != BudgetMode::fixed &&
                        (budget.mean_variance >= 0 || budget.device_mean_variance != nullptr);
  const double most =
      static_cast<double>(adaptive ? budget.max : std::clamp(budget.base, budget.min, budget.max));
  LongPlan best;
  if (most * 4 > in.sequences.longest_keys) return best;
  const int wanted = kBlocksEach * device.multiprocessors;
  int shift = 0;
  while (in.sequences.longest_keys >> shift > 2048) ++shift;
  // The fewer samples, the longer the lists.
  for (; shift >= 0 && in.sequences.longest_keys >> shift <= 16384; --shift) {
    const double stride = 1 << shift;
    // What reaches the bound, on average and at most, and the share of one list.
    const double rank = most / stride;
    const double reached = rank + kSampleMargin * std::sqrt(rank) + 3;
    const double total = stride * (reached + 3.5 * std::sqrt(reached));
    LongPlan plan;
    plan.shift = shift;
    plan.samples = ((in.sequences.longest_keys >> shift) / kTileKeys + 1) * kTileKeys;
    plan.list = static_cast<int>((total / kLists + 4 * std::sqrt(total / kLists) + 32) / 32 + 1) * 32;
    plan.slot_bytes = std::max<long long>({static_cast<long long>(kTileQueries) * kLists * plan.list * 8,
                                           static_cast<long long>(kTileQueries) * plan.samples * 4,
                                           (in.sequences.longest_keys + 64ll) * 4});
    plan.slot_bytes = (plan.slot_bytes + 255) / 256 * 256;
    plan.blocks = static_cast<int>(std::min<std::int64_t>(wanted, kScratchBytes / plan.slot_bytes - 1));
    if (plan.blocks > best.blocks) best = plan;
    if (best.blocks == wanted) break;
  }
  return best;
}

void launch_long(const ScoreInput& in, ScoreType type, const Budget& budget, const RowOutputs& out,
                 const LongPlan& plan, int tiles, const Context& context) {
  const SharedSizes sizes = shared_sizes(in, context.device);
  const int blocks = std::min(plan.blocks, tiles);
  LongArgs args = {};
  args.in = in, args.budget = budget, args.out = out;
  args.slots = context.workspace->array<char>((static_cast<std::size_t>(blocks) + 1) * plan.slot_bytes);
  args.slot_bytes = plan.slot_bytes;
  args.shift = plan.shift, args.samples = plan.samples, args.list = plan.list, args.tiles = tiles;
  args.warp_words = sizes.warp_words, args.query_in_shared = sizes.query_in_shared;
  const std::size_t queries = static_cast<std::size_t>(in.sequences.total_queries);
  args.bounds = context.workspace->array<Bound>(queries);
  args.failed = context.workspace->array<int>(queries);
  int* const counters = context.workspace->array<int>(3);
  args.next_sample = counters, args.next_tile = counters + 1, args.failed_count = counters + 2;
  check(cudaMemsetAsync(counters, 0, 3 * sizeof(int), stream_of(context.stream)), "cudaMemsetAsync");
  if (type.dtype == DType::bf16) {
    launch_long_type<__nv_bfloat16>(args, type, sizes.bytes, blocks, context);
  } else {
    launch_long_type<__half>(args, type, sizes.bytes, blocks, context);
  }
}

}  // namespace gsa::cuda::selecting
