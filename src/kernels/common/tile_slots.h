// Tiles of queries that are found from their number alone, without a list of them: sequence n owns the slots from
// q_begin(n) / tile_queries + n on (spare = 1), or + 2 n (spare = 2), enough for its tiles; those left over are
// empty. One spare slot a sequence suffices where its first tile begins with its first query, two where tiles are
// cut at positions that are multiples of tile_queries.
#pragma once

#include "kernels/common/host_device.h"

namespace gsa::cuda {

// The first slot of sequence n, whose first query is q_begin. With n = the number of sequences, and q_begin that of
// all queries: how many slots there are.
template <int spare, typename Int>
GSA_DEVICE constexpr Int first_slot(Int q_begin, Int n, Int tile_queries) {
  return q_begin / tile_queries + spare * n;
}

// The sequence that owns a slot: the last one whose slots begin at or before it. q_begin(n): its first query.
template <int spare, typename Int, class QBegin>
GSA_DEVICE Int sequence_of_slot(Int slot, Int sequences, Int tile_queries, const QBegin& q_begin) {
  Int low = 0, high = sequences - 1;
  while (low < high) {
    const Int middle = (low + high + 1) / 2;
    if (first_slot<spare>(q_begin(middle), middle, tile_queries) <= slot) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace gsa::cuda
