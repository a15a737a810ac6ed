// Which keys of a paged cache a query attended to, and with which weights: what gsa::decode has used and does not
// tell. In torch's operators, for a look at one query: nothing of it is on the way of decoding.
#pragma once

#include <cstdint>
#include <vector>

#include "infer/core/look.h"
#include "nn/torch.h"
#include "torch/ops.h"

namespace gsa::infer {

// Positions of the k_t keys that gsa::decode selects for the newest query, ascending: int64 [k_t], on the CPU.
// indexer: of that query, q [1, H_I, d_I], w [1, H_I]. slots: int64 [keys], where the keys lie in the pages of the
// cache (page * page_size + row). k_t: as gsa::decode gave it.
//
// Bits are those of gsa::decode, with one exception: 8-bit keys of a cache on a GPU are scored on the CPU, in the same
// numbers but another order of sums, so that keys whose scores differ by rounding alone may change places.
at::Tensor selected_positions(const ops::IndexerInputs& indexer, const ops::PagedCache& pages,
                              const at::Tensor& slots, std::int64_t k_t);

struct HeadWeights {
  at::Tensor weights;    // float64 [heads, k_t]: of softmax over the keys at `positions`
  at::Tensor kept_mass;  // float64 [heads]: of softmax over all keys, what these have
};
// q: [heads, head_size] of the newest query. All on the CPU.
HeadWeights head_weights(const at::Tensor& q, const ops::PagedCache& pages, const at::Tensor& slots,
                         const at::Tensor& positions);

// The means over heads. k_t positions; gates stay 1.
LayerLook layer_look(const HeadWeights& heads, const at::Tensor& positions);

}  // namespace gsa::infer
