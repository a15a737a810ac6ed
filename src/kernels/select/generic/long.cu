// Selection in one pass: scratch memory and launch.
#include "kernels/select/generic/long_kernel.cuh"

namespace gsa::cuda::selecting {

extern template void launch_long_type<__half>(const LongArgs&, ScoreType, const LongPlan&, const Context&);

void launch_long(const ScoreInput& in, ScoreType type, const Budget& budget, const RowOutputs& out,
                 const LongPlan& plan, int tiles, const Context& context) {
  const std::size_t at_once = static_cast<std::size_t>(plan.at_once);
  LongArgs args = {};
  args.in = in, args.budget = budget, args.out = out;
  args.slots = context.workspace->array<char>((at_once + 1) * plan.slot_bytes);
  args.slot_bytes = plan.slot_bytes;
  args.shift = plan.shift, args.samples = plan.samples, args.list = plan.list, args.tiles = tiles;
  args.multiprocessors = context.device.multiprocessors;
  args.ring_bytes = plan.memory.ring_bytes, args.query_in_shared = plan.memory.query_in_shared;
  const std::size_t queries = static_cast<std::size_t>(in.sequences.total_queries);
  args.bounds = context.workspace->array<Bound>(queries);
  args.passed = context.workspace->array<RowPassed>(at_once * kTileQueries);
  args.failed = context.workspace->array<int>(queries);
  args.failed_count = context.workspace->array<int>(1);
  check(cudaMemsetAsync(args.failed_count, 0, sizeof(int), stream_of(context.stream)), "cudaMemsetAsync");
  if (type.dtype == DType::bf16) {
    launch_long_type<__nv_bfloat16>(args, type, plan, context);
  } else {
    launch_long_type<__half>(args, type, plan, context);
  }
}

}  // namespace gsa::cuda::selecting
