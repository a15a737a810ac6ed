// The operators that a training step calls between its matrix products, each one pass over memory. As those
// of ops.h, every function calls the registered operator of its name through the dispatcher. Schemas are in
// fused.cc; docs/kernels/fused.md says what they replace.
#pragma once

#include <torch/torch.h>

#include <optional>

namespace gsa::ops {

using at::Tensor;

struct Normed {
  Tensor y;    // as x: normalised
  Tensor sum;  // as x: the residual stream, x + branch (x itself where there is no branch)
};
// x [..., d], branch as x, weight [d]. Differentiable in all three; the gradient that reaches sum is added
// where the norm's own is formed.
Normed rms_norm(const Tensor& x, const std::optional<Tensor>& branch, const Tensor& weight, double eps);

struct Rotated {
  Tensor q, k, v;  // [T, heads, head_size]; v has no heads where v_heads is 0
};
// x [T, (q_heads + k_heads + v_heads) head_size], cos and sin Real [T, pairs]. Differentiable in x.
Rotated rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t q_heads,
               std::int64_t k_heads, std::int64_t v_heads);

// silu(g) u for x = [g | u], [..., 2 n] -> [..., n]. Differentiable.
Tensor swiglu(const Tensor& x);

// The loss of each row of logits [T, classes], Real [T], for targets int64 [T]; a row whose target is
// `ignored` counts 0. With gradient, logits become the loss's derivative. No autograd.
Tensor cross_entropy_(Tensor& logits, const Tensor& targets, std::int64_t ignored, bool gradient);

struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0;
  double factor = 1;        // of the gradient
  std::int64_t number = 1;  // of the parameter's steps, this one included
};
// One step of AdamW in one pass: master, mean and square (float32) in place; weight, where there is one apart
// from the master, gets the result rounded. gradient: float32, bfloat16 or float16.
void adamw_(const Tensor& master, const Tensor& mean, const Tensor& square,
            const std::optional<Tensor>& weight, const Tensor& gradient, const AdamWStep& step);

}  // namespace gsa::ops
