#include "dense.h"

namespace gsa::bench {

DenseInputs dense_inputs(const Inputs& inputs) {
  const auto heads_first = [](const at::Tensor& x) { return x.transpose(1, 2).contiguous(); };
  return {heads_first(inputs.q), heads_first(inputs.k), heads_first(inputs.v)};
}

at::Tensor dense_causal(const DenseInputs& inputs) {
  return at::scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, /*attn_mask=*/{}, /*dropout_p=*/0,
                                          /*is_causal=*/true, /*scale=*/{}, /*enable_gqa=*/true);
}

at::Tensor dense_decode(const DenseInputs& inputs) {
  return at::scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, /*attn_mask=*/{}, /*dropout_p=*/0,
                                          /*is_causal=*/false, /*scale=*/{}, /*enable_gqa=*/true);
}

at::Tensor dense_decode_grouped(const DenseInputs& inputs) {
  const at::Tensor q = inputs.q.view({1, kKvHeads, kHeads / kKvHeads, kHeadSize});
  return at::scaled_dot_product_attention(q, inputs.k, inputs.v).view(inputs.q.sizes());
}

}  // namespace gsa::bench
