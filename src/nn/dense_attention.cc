#include "nn/dense_attention.h"

#include <tuple>

#include "torch/gradient.h"
#include "torch/ops.h"

namespace gsa::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool by_cudnn(const Tensor& q, const SequenceGroup& group) {
  constexpr std::int64_t kStep = 128;
  const std::int64_t size = q.size(2), length = group.common_length;
  const bool narrow = q.scalar_type() == torch::kBFloat16 || q.scalar_type() == torch::kFloat16;
  return q.is_cuda() && narrow && size % 8 == 0 && size <= 128 && length > 0 && length % kStep == 0;
}

Tensor heads_first(const Tensor& x) { return x.transpose(1, 2); }

class CudnnAttention : public torch::autograd::Function<CudnnAttention> {
 public:
  struct Saved {
    Tensor q, k, v, out, lse, seed, offset;
    auto slots() { return std::tie(q, k, v, out, lse, seed, offset); }
  };

  // q, k, v: [B, L, heads, d]. Returns out as q, and lse [B, L, heads].
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               bool deterministic) {
    auto [out, raw_lse, cum_seq_q, cum_seq_k, max_q, max_k, seed, offset, debug_mask] =
        at::_scaled_dot_product_cudnn_attention(heads_first(q), heads_first(k), heads_first(v),
                                                /*attn_bias=*/{},
                                                /*compute_log_sumexp=*/true, /*dropout_p=*/0.0,
                                                /*is_causal=*/true, /*return_debug_mask=*/false);
    const Tensor rows = heads_first(out).contiguous();
    const Tensor lse = heads_first(raw_lse.squeeze(-1)).contiguous();
    binding::save(context, Saved{.q = q,
                                 .k = k,
                                 .v = v,
                                 .out = rows,
                                 .lse = deterministic ? lse : raw_lse,
                                 .seed = seed,
                                 .offset = offset});
    context->saved_data["deterministic"] = deterministic;
    context->mark_non_differentiable({lse});
    context->set_materialize_grads(false);
    return {rows, lse};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (!gradients[0].defined()) return variable_list(4);
    const auto [q, k, v, out, lse, seed, offset] = binding::load<Saved>(context);
    if (context->saved_data["deterministic"].toBool()) {
      auto [dq, dk, dv] = ops::attend_backward(gradients[0], q, k, v, {out, lse});
      return {dq, dk, dv, Tensor()};
    }
    auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
        heads_first(gradients[0]), heads_first(q), heads_first(k), heads_first(v), heads_first(out), lse,
        seed, offset, /*attn_bias=*/Tensor(), /*cum_seq_q=*/Tensor(), /*cum_seq_k=*/Tensor(), q.size(1),
        k.size(1), /*dropout_p=*/0.0, /*is_causal=*/true);
    return {heads_first(dq), heads_first(dk), heads_first(dv), Tensor()};
  }
};

}  // namespace

ops::Attention dense_attend(const Tensor& q, const Tensor& k, const Tensor& v, const SequenceGroup& group,
                            bool deterministic) {
  if (!by_cudnn(q, group)) {
    return ops::attend(q, k, v, {}, {}, group.layout(), deterministic ? "ordered" : "atomic");
  }
  const auto batched = [&](const Tensor& x) {
    return x.reshape({-1, group.common_length, x.size(1), x.size(2)});
  };
  const variable_list results = CudnnAttention::apply(batched(q), batched(k), batched(v), deterministic);
  return {results[0].view(q.sizes()), results[1].view({q.size(0), q.size(1)})};
}

}  // namespace gsa::nn
