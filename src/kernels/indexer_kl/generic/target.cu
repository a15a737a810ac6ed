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
  constexpr std::int64_t kLargestStride = 1 << 24;  // so that offsets within a tile fit in 32 bits
  if (context.device.hopper() && attention.q.aligned && attention.k.aligned && attention.q.size <= 128 &&
      attention.q.token_stride < kLargestStride && attention.k.token_stride < kLargestStride) {
    hopper_target(dtype, attention, chunk, context);
    return;
  }
  with_type_and_size(dtype, attention.q.size, [&]<typename T, int kSize>() {
    chunk.listed() ? choose_stages<T, kSize, true>(attention, chunk, context)
                   : choose_stages<T, kSize, false>(attention, chunk, context);
  });
}

}  // namespace gsa::cuda::kl
