// Dense causal attention of a group of sequences, by the fastest kernel that serves it:
//
//   cuDNN, through torch   on a GPU, where all sequences have one length, a multiple of 128, and heads are of
//                          8 to 128 dimensions, in steps of 8
//   gsa::attend            everything else: any lengths, any device
//
// cuDNN prepares a plan for every shape it meets (some 0.06 s): lengths in steps of 128 keep text that grows
// token by token away from it. Its backward pass has no reproducible mode in torch (2.11, whatever
// torch.use_deterministic_algorithms says): where one is wanted, gsa::attend_backward takes over from cuDNN's
// forward pass.
#pragma once

#include "nn/sequence_plan.h"
#include "nn/torch.h"
#include "torch/ops.h"

namespace gsa::nn {

// q [T, heads, d], k and v [T, kv_heads, d]: the group's rows. deterministic: the backward pass gives the
// same bits every time. lse is not differentiable.
ops::Attention dense_attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const SequenceGroup& group, bool deterministic = true);

}  // namespace gsa::nn
