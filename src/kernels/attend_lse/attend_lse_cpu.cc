// attend_lse on the CPU: the first half of attend, with the same blocks of keys in the same order, so that
// lse has the bits that attend without a mask would give it. A task is a tile of queries x one key/value
// head.
// Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend_lse/attend_lse_cpu.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "kernels/attend_lse/attend_lse_cpu.h"
#include "hwy/highway.h"
#include "kernels/attention/blocks-inl.h"
#include "kernels/attention/query_tiles.h"
#include "kernels/attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

// T: of sums and the softmax. P: of products, as keys are packed.
template <typename T, typename P>
void lse_of_tile(const AttendLseArgs& a, const SampledTile& sampled, std::int64_t kv_head,
                 AttendScratch<T>& scratch) {
  const AttendShape& shape = a.shape;
  const std::int64_t n = sampled.sequence, queries = sampled.queries;
  const QueryTile tile{n, sampled.first_query - a.sequences.q_begin[n], queries};
  const TilePlace place(a.sequences, tile);
  const std::int64_t group = shape.heads / shape.kv_heads, width = row_width<P>(shape.head_size);
  const std::int64_t rows = queries * group, block = block_size<P>(width, 2);
  P* q = scratch.q.template get<P>(rows * width);
  T* maximum = scratch.maximum.template get<T>(rows * kGroup);
  T* sum = scratch.sum.template get<T>(rows * kGroup);
  P* k = scratch.k.template get<P>(block * width);
  T* logits = scratch.tile.template get<T>(tile_size(block));
  load_queries<T>(a.q, shape, place.query, queries, kv_head, group, q);
  std::fill_n(maximum, rows * kGroup, -std::numeric_limits<T>::infinity());
  std::fill_n(sum, rows * kGroup, T(0));
  const KeyRows k_rows = rows_of(a.k, shape, place, kv_head);
  for_blocks({}, place, queries, block, scratch.blocks, [&](const KeyBlock& keys, const KeyBlock* next) {
    pack_rows(k_rows, shape, keys, next, k);
    for_row_groups({}, place, queries, group, keys, scratch.slots,
                   [&](std::int64_t row, int count, const std::uint16_t* slots, std::int64_t visible) {
                     HWY_ALIGN T row_maximum[kGroupSize] = {};
                     HWY_ALIGN T row_sums[kGroupSize] = {};
                     HWY_ALIGN T factor[kGroupSize] = {};
                     std::copy_n(maximum + row * kGroup, count * kGroup, row_maximum);
                     std::copy_n(sum + row * kGroup, count * kGroup, row_sums);
                     dot_logits(shape, q + row * width, count, k, slots, visible, width, logits);
                     softmax_update(logits, visible, count, row_maximum, row_sums, factor);
                     std::copy_n(row_maximum, count * kGroup, maximum + row * kGroup);
                     std::copy_n(row_sums, count * kGroup, sum + row * kGroup);
                   });
  });
  for (std::int64_t i = 0; i < queries; ++i) {
    for (std::int64_t g = 0; g < group; ++g) {
      const std::int64_t row = i * group + g;
      static_cast<T*>(a.lse)[(place.query + i) * shape.heads + kv_head * group + g] =
          log_sum(maximum[row * kGroup], row_sum(sum + row * kGroup));
    }
  }
}

template <typename T, typename P = T>
void attend_lse_typed(const AttendLseArgs& a, const Parallel& parallel) {
  const std::vector<SampledTile> tiles = sampled_tiles(a.sequences, a.tiles);
  if (a.tiles.number != nullptr) {
    std::fill_n(static_cast<T*>(a.lse), a.sequences.total_queries() * a.shape.heads, T(0));
  }
  std::vector<AttendScratch<T>> scratch(static_cast<std::size_t>(parallel.workers()));
  const std::int64_t kv_heads = a.shape.kv_heads;
  const std::int64_t tasks = static_cast<std::int64_t>(tiles.size()) * kv_heads;
  parallel.run(tasks, [&](std::int64_t task, int worker) {
    // The last tiles see the most keys: they go first.
    const std::int64_t from_last = tasks - 1 - task;
    lse_of_tile<T, P>(a, tiles[static_cast<std::size_t>(from_last / kv_heads)], from_last % kv_heads,
                      scratch[static_cast<std::size_t>(worker)]);
  });
}

void attend_lse_target(const AttendLseArgs& args, const Parallel& parallel) {
  if (args.shape.dtype == DType::f64) return attend_lse_typed<double>(args, parallel);
#if GSA_BF16_PRODUCTS
  if (args.shape.dtype == DType::bf16 && bf16_products())
    return attend_lse_typed<float, Bf16>(args, parallel);
#endif
  attend_lse_typed<float>(args, parallel);
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(attend_lse_target);
void attend_lse_cpu(const AttendLseArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(attend_lse_target)(args, parallel);
}
}  // namespace gsa
#endif
