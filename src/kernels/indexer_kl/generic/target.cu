#include "kernels/indexer_kl/generic/target.cuh"

namespace gsa::cuda::kl {
namespace {

template <typename T, int kSize, bool kListed>
void launch_stages(int stages, const Attention& attention, const Chunk& chunk, const Context& context) {
  if (stages == 3) {
    launch_target<T, kSize, kListed, 3>(attention, chunk, context);
  } else {
    launch_target<T, kSize, kListed, 2>(attention, chunk, context);
  }
}

}  // namespace

void target(DType dtype, const Attention& attention, const Chunk& chunk, const IndexerKlConfig& config,
            const Context& context) {
  if (config.wgmma) {
    hopper_target(dtype, attention, chunk, context);
    return;
  }
  with_type_and_size(dtype, attention.q.size, [&]<typename T, int kSize>() {
    chunk.listed() ? launch_stages<T, kSize, true>(config.target_stages, attention, chunk, context)
                   : launch_stages<T, kSize, false>(config.target_stages, attention, chunk, context);
  });
}

}  // namespace gsa::cuda::kl
