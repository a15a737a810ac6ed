// Keys that tiles of neighbouring queries select together, counted in bit masks.
#pragma once

#include <array>

#include "eval/masks.h"
#include "nn/torch.h"

namespace gsa::eval {

// Adds those of consecutive queries, in whole tiles from the first query on. mask: int32 [queries, words], as
// mask_words() gives it; k_t: [queries].
void add_unions(const at::Tensor& mask, const at::Tensor& k_t,
                std::array<UnionTotals, kTiles.size()>& unions);

}  // namespace gsa::eval
