// A start of the indexer from the attention of its layer, whose own products are the best first guess of what
// the indexer has to predict.
//
//   indexer key            mean over the key/value heads of k_proj
//   indexer query head j   mean over a run of consecutive query heads of q_proj: heads are cut into H_I runs,
//                          as equal as can be; where H_I > heads, head j mod heads
//
// Dimensions are taken by pairs of RoPE, so that both rotate alike. Of the indexer's rotated pairs and the
// attention's the fewer choose, from the highest frequency on, the nearest frequency that is still free
// (exact where one size divides the other). Dimensions of the indexer that are not rotated take the
// attention's pairs of lowest frequency that are left. Whatever finds no partner keeps what it has, which is
// the random start.
//
// The products keep their size: with heads of one size, one query head and one key/value head, the indexer's
// q . k / sqrt(d_I) is attention's logit (without YaRN's attention factor). Means over heads make it smaller,
// so sigmoids start in their steep part.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "nn/torch.h"

namespace gsa::nn {

// For each dimension of an indexer head the dimension of an attention head that it starts from; -1: none.
std::vector<std::int64_t> dimensions_from_attention(const AttentionConfig& config);

// Writes into the indexer's weights (wq [H_I d_I, d_model], wk [d_I, d_model]) from the attention's (q_proj
// [heads head_size, d_model], k_proj [kv_heads head_size, d_model]), all of one type.
void start_from_attention(const AttentionConfig& config, const at::Tensor& q_proj, const at::Tensor& k_proj,
                          at::Tensor wq, at::Tensor wk);

}  // namespace gsa::nn
