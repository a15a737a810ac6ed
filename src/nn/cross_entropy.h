// The output projection and its cross-entropy in one, so that logits exist for a chunk of tokens at a time:
//
//   sum over t of  logsumexp(W h_t) - (W h_t)[target_t]        over the t whose target counts
//
// With a vocabulary of 151,936, the logits of 16K tokens would take 10 GB in fp32. Here each chunk's
// gradient is formed while its logits are at hand; the backward pass only multiplies by the gradient of the
// sum.
#pragma once

#include "nn/torch.h"

namespace gsa::nn {

// A target of this value does not count.
constexpr std::int64_t kIgnoredTarget = -100;

// hidden [T, d] and weight [V, d] of one type (under autocast: any, computed in autocast's type); targets
// int64 [T], each 0 .. V - 1 or kIgnoredTarget. Products in the type of hidden, the rest in float32 (float64
// for float64); weight's gradient is added up in float32 over the chunks. Returns a 0-dim float32 or
// float64.
at::Tensor cross_entropy_sum(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets);

}  // namespace gsa::nn
