#include "kernels/indexer_kl/generic/target.cuh"

namespace gsa::cuda::kl {
namespace {

// Two stages where three do not fit.
template <typename T, int kSize, bool kListed>
void choose_stages(const Attention& attention, const Chunk& chunk, const Context& context) {
  using Shape = TargetShape<kSize, kListed>;
  if (Shape::shared_bytes(3) <= static_cast<int>(context.device.shared_memory)) {
    launch_target<T, kSize, kListed, 3>(attention, chunk, context);
  } else {
    launch_target<T, kSize, kListed, 2>(attention, chunk, context);
  }
}

}  // namespace

void target(DType dtype, const Attention& attention, const Chunk& chunk, const Context& context) {
  if (hopper_target_takes(target_facts(attention, context.device))) {
    hopper_target(dtype, attention, chunk, context);
    return;
  }
  with_type_and_size(dtype, attention.q.size, [&]<typename T, int kSize>() {
    chunk.listed() ? choose_stages<T, kSize, true>(attention, chunk, context)
                   : choose_stages<T, kSize, false>(attention, chunk, context);
  });
}

}  // namespace gsa::cuda::kl
