// With which weights a query attended to keys of a paged cache: what gsa::decode has used and does not tell. In torch's
// operators, for a look at one query: nothing of it is on the way of decoding.
#pragma once

#include <cstdint>
#include <vector>

#include "infer/core/look.h"
#include "nn/torch.h"
#include "torch/ops.h"

namespace gsa::infer {

struct HeadWeights {
  at::Tensor weights;    // float64 [heads, k_t]: of softmax over the keys at `positions`
  at::Tensor kept_mass;  // float64 [heads]: of softmax over all keys, what these have
};
// q: [heads, head_size] of the newest query. slots: int64 [keys], where the keys lie in the pages of the cache
// (page * page_size + row). positions: int64 [k_t] on the CPU, ascending. The results lie on the CPU.
HeadWeights head_weights(const at::Tensor& q, const ops::PagedCache& pages, const at::Tensor& slots,
                         const at::Tensor& positions);

// The means over heads. k_t positions; gates stay 1.
LayerLook layer_look(const HeadWeights& heads, const at::Tensor& positions);

}  // namespace gsa::infer
