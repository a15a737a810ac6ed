#include "kernels/indexer_kl/hopper/target.cuh"

namespace gsa::cuda::kl {
namespace {

template <typename T, int kSize>
void launch(const Attention& attention, const Chunk& chunk, const Context& context) {
  chunk.listed() ? launch_hopper_target<T, kSize, true>(attention, chunk, context)
                 : launch_hopper_target<T, kSize, false>(attention, chunk, context);
}

template <typename T>
void choose_size(const Attention& attention, const Chunk& chunk, const Context& context) {
  padded_size(attention.q.size) == 64 ? launch<T, 64>(attention, chunk, context)
                                      : launch<T, 128>(attention, chunk, context);
}

}  // namespace

void hopper_target(DType dtype, const Attention& attention, const Chunk& chunk, const Context& context) {
  dtype == DType::bf16 ? choose_size<__nv_bfloat16>(attention, chunk, context)
                       : choose_size<__half>(attention, chunk, context);
}

}  // namespace gsa::cuda::kl
