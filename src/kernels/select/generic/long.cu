// Selection in one pass: plan and launch.
#include <algorithm>
#include <cmath>

#include "kernels/select/generic/long_kernel.cuh"

namespace gsa::cuda::selecting {

extern template void launch_long_type<__half>(const LongArgs&, ScoreType, std::size_t, int, const Context&);

namespace {

// Scratch of all tiles under way: what is aimed at, by a denser sample of the keys if need be, and the most.
constexpr std::int64_t kScratchBytes = 735'000'000;
constexpr std::int64_t kMaxScratchBytes = 1'090'000'000;

struct SharedSizes {
  int ring;   // bytes
  bool fits;  // else the stored way has to do
  bool query_in_shared;
  std::size_t bytes;
};

// Of the kernels for any shape and device. fallback_kernel's scratch takes the place of the keys.
SharedSizes shared_sizes(const ScoreInput& in, const Device& device) {
  const int ring = std::max(kStages * key_stage_bytes(in.steps), static_cast<int>(sizeof(RowShared)));
  const int query = fits_registers(in) ? 0 : kWarps * in.heads * in.steps * 512;
  SharedSizes sizes;
  sizes.ring = (ring + 127) / 128 * 128;
  const std::size_t limit = device.shared_memory - sizeof(PassShared) - 1024;
  const std::size_t base = static_cast<std::size_t>(sizes.ring);
  sizes.fits = base <= limit;
  sizes.query_in_shared = query > 0 && base + query <= limit;
  sizes.bytes = base + (sizes.query_in_shared ? query : 0);
  return sizes;
}

// As many tiles as blocks run at a time, or a few less where rounds of the same size are no more of them: on
// an H200 a tile of keys took Hopper's pass 1.88 us with 256 tiles at a time (a chunk of 16,384
// queries), 2.10 us with 264. Why is not known.
int tiles_at_once(const ScoreInput& in, int tiles, const Device& device) {
  const int each = hopper_pass(facts_of(in, device)) ? kHopperPassBlocks : kPassBlocks;
  const int slots = each * device.multiprocessors;
  const int rounds = (tiles + slots - 1) / slots;
  const int even = (tiles + rounds - 1) / rounds;
  return std::min(tiles, even >= slots - slots / 16 ? even : slots);
}

}  // namespace

LongPlan plan_long(const ScoreInput& in, const Budget& budget, int tiles, const Device& device) {
  if (!shared_sizes(in, device).fits) return {};
  const bool adaptive = budget.mode != BudgetMode::fixed &&
                        (budget.mean_variance >= 0 || budget.device_mean_variance != nullptr);
  const double most =
      static_cast<double>(adaptive ? budget.max : std::clamp(budget.base, budget.min, budget.max));
  LongPlan best;
  const int longest = in.sequences.longest_keys;
  if (most * 4 > longest) return best;
  const int wanted = tiles_at_once(in, tiles, device);
  int sparsest = 0;
  while (longest >> sparsest > 2048) ++sparsest;
  // The fewer samples, the longer the lists.
  for (const std::int64_t limit : {kScratchBytes, kMaxScratchBytes}) {
    for (int shift = sparsest; shift >= 0 && longest >> shift <= 16384; --shift) {
      const double stride = 1 << shift;
      // What reaches the bound, on average and at most, and the share of one list.
      const double rank = most / stride;
      const double reached = rank + kSampleMargin * std::sqrt(rank) + 3;
      const double total = stride * (reached + 3.5 * std::sqrt(reached));
      LongPlan plan;
      plan.shift = shift;
      plan.samples = ((longest >> shift) / kTileKeys + 1) * kTileKeys;
      plan.list = static_cast<int>((total / kLists + 4 * std::sqrt(total / kLists) + 32) / 32 + 1) * 32;
      plan.slot_bytes = std::max<long long>({static_cast<long long>(kTileQueries) * kLists * plan.list * 8,
                                             static_cast<long long>(kTileQueries) * plan.samples * 4,
                                             (longest + 64ll) * 4});
      plan.slot_bytes = (plan.slot_bytes + 255) / 256 * 256;
      plan.at_once = static_cast<int>(std::min<std::int64_t>(wanted, limit / plan.slot_bytes - 1));
      if (plan.at_once == wanted) return plan;
      if (plan.at_once > best.at_once) best = plan;
    }
  }
  return best;
}

void launch_long(const ScoreInput& in, ScoreType type, const Budget& budget, const RowOutputs& out,
                 const LongPlan& plan, int tiles, const Context& context) {
  const SharedSizes sizes = shared_sizes(in, context.device);
  const std::size_t at_once = static_cast<std::size_t>(plan.at_once);
  LongArgs args = {};
  args.in = in, args.budget = budget, args.out = out;
  args.slots = context.workspace->array<char>((at_once + 1) * plan.slot_bytes);
  args.slot_bytes = plan.slot_bytes;
  args.shift = plan.shift, args.samples = plan.samples, args.list = plan.list, args.tiles = tiles;
  args.multiprocessors = context.device.multiprocessors;
  args.ring_bytes = sizes.ring, args.query_in_shared = sizes.query_in_shared;
  const std::size_t queries = static_cast<std::size_t>(in.sequences.total_queries);
  args.bounds = context.workspace->array<Bound>(queries);
  args.passed = context.workspace->array<RowPassed>(at_once * kTileQueries);
  args.failed = context.workspace->array<int>(queries);
  args.failed_count = context.workspace->array<int>(1);
  check(cudaMemsetAsync(args.failed_count, 0, sizeof(int), stream_of(context.stream)), "cudaMemsetAsync");
  if (type.dtype == DType::bf16) {
    launch_long_type<__nv_bfloat16>(args, type, sizes.bytes, plan.at_once, context);
  } else {
    launch_long_type<__half>(args, type, sizes.bytes, plan.at_once, context);
  }
}

}  // namespace gsa::cuda::selecting
