// attend forward on the CPU.
//
// A task is a tile of queries x one key/value head; decoding, and where there are too few of those tasks to
// feed the threads, goes by cpu/wide-inl.h, with the same bits. Blocks of keys that fit into the L2 cache stream
// past the tile: the keys that any of its queries selected are packed (converted to float, or kept in bf16 where
// the processor multiplies it; padded), then each query visits its own keys only, all heads of its group together,
// so that a key row serves several products. Block borders are fixed positions of the sequence, so a query's
// arithmetic does not depend on the tile.

// Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend/cpu/forward.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/highway.h"
#include "kernels/attend/attend_cpu.h"
#include "kernels/attend/cpu/wide-inl.h"
#include "kernels/attention/blocks-inl.h"
#include "kernels/attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

// T: of sums and the softmax. P: of products, as keys are packed.
template <typename T, typename P>
class AttendTile {
 public:
  AttendTile(const AttendArgs& args, AttendScratch<T>& scratch)
      : a_(args),
        s_(scratch),
        group_(args.shape.heads / args.shape.kv_heads),
        width_(row_width<P>(args.shape.head_size)) {}

  void run(const QueryTile& tile, std::int64_t kv_head) {
    const TilePlace place(a_.sequences, tile);
    const std::int64_t rows = tile.count * group_;
    q_ = s_.q.template get<P>(rows * width_);
    out_ = s_.out.template get<T>(rows * width_);
    maximum_ = s_.maximum.template get<T>(rows * kGroup);
    sum_ = s_.sum.template get<T>(rows * kGroup);
    load_queries<T>(a_.q, a_.shape, place.query, tile.count, kv_head, group_, q_);
    std::fill_n(out_, rows * width_, T(0));
    std::fill_n(maximum_, rows * kGroup, -std::numeric_limits<T>::infinity());
    std::fill_n(sum_, rows * kGroup, T(0));
    const std::int64_t block = block_size<P>(width_, 2);
    P* k = s_.k.template get<P>(block * width_);
    P* v = s_.v.template get<P>(block * width_);
    tile_ = s_.tile.template get<T>(tile_size(block));
    const std::size_t element = size_of(a_.shape.dtype);
    const KeyRows k_rows(a_.k, a_.pages, tile.sequence, place.key, kv_head, element);
    const KeyRows v_rows(a_.v, a_.pages, tile.sequence, place.key, kv_head, element);
    for_blocks(a_.mask, place, tile.count, block, s_.blocks, [&](const KeyBlock& keys, const KeyBlock* next) {
      pack_rows(k_rows, a_.shape, keys, next, k);
      pack_rows(v_rows, a_.shape, keys, next, v);
      for_row_groups(a_.mask, place, tile.count, group_, keys, s_.slots,
                     [&](std::int64_t row, int count, const std::uint16_t* slots, std::int64_t n) {
                       visit(row, count, slots, n, k, v);
                     });
    });
    finish(place, tile.count, kv_head);
  }

 private:
  // Rows [row, row + count) meet the keys in `slots`.
  void visit(std::int64_t row, int count, const std::uint16_t* slots, std::int64_t n, const P* k,
             const P* v) {
    HWY_ALIGN T maximum[kGroupSize] = {};
    HWY_ALIGN T sum[kGroupSize] = {};
    HWY_ALIGN T factor[kGroupSize] = {};
    std::copy_n(maximum_ + row * kGroup, count * kGroup, maximum);
    std::copy_n(sum_ + row * kGroup, count * kGroup, sum);
    dot_logits(a_.shape, q_ + row * width_, count, k, slots, n, width_, tile_);
    softmax_update(tile_, n, count, maximum, sum, factor);
    combine(weights_of<P>(tile_, n), factor, count, v, slots, n, width_, out_ + row * width_);
    std::copy_n(maximum, count * kGroup, maximum_ + row * kGroup);
    std::copy_n(sum, count * kGroup, sum_ + row * kGroup);
  }

  void finish(const TilePlace& place, std::int64_t queries, std::int64_t kv_head) {
    for (std::int64_t i = 0; i < queries; ++i) {
      for (std::int64_t g = 0; g < group_; ++g) {
        const std::int64_t row = i * group_ + g;
        const std::int64_t head = kv_head * group_ + g;
        const T total = row_sum(sum_ + row * kGroup);
        // An empty selection leaves total = 0, and 0 * (1 / 0) is the NaN that the contract asks for.
        store_row<T>(at(a_.out.data, a_.shape.dtype,
                        (place.query + i) * a_.out.token_stride + head * a_.out.head_stride),
                     a_.shape.dtype, combined_row<P>(out_ + row * width_, width_), a_.shape.head_size,
                     T(1) / total);
        if (a_.lse != nullptr) {
          static_cast<T*>(a_.lse)[(place.query + i) * a_.shape.heads + head] =
              log_sum(maximum_[row * kGroup], total);
        }
      }
    }
  }

  const AttendArgs& a_;
  AttendScratch<T>& s_;
  const std::int64_t group_;
  const std::int64_t width_;
  P* q_ = nullptr;
  T *out_ = nullptr, *maximum_ = nullptr, *sum_ = nullptr, *tile_ = nullptr;
};

// Sequences with one query each: decoding.
template <typename T, typename P>
void attend_singly(const AttendArgs& args, std::vector<AttendScratch<T>>& scratch, const Parallel& parallel) {
  const std::vector<QueryTile> tiles = make_tiles(args.sequences, 1);
  const std::int64_t count = static_cast<std::int64_t>(tiles.size());
  if (count < 2 * std::int64_t{parallel.workers()}) {
    WideAttend<T, P> wide(args, scratch.data(), parallel);
    for (const QueryTile& tile : tiles) wide.run(tile);
    return;
  }
  parallel.run(count, [&](std::int64_t task, int worker) {
    WideAttend<T, P>(args, &scratch[static_cast<std::size_t>(worker)], serial())
        .run(tiles[static_cast<std::size_t>(task)]);
  });
}

template <typename T, typename P = T>
void attend_typed(const AttendArgs& args, const Parallel& parallel) {
  constexpr std::int64_t kTile = 256, kMinTile = 32;
  const std::int64_t kv_heads = args.shape.kv_heads, workers = parallel.workers();
  std::vector<AttendScratch<T>> scratch(static_cast<std::size_t>(workers));
  // Large tiles pack keys once for many queries; smaller ones where threads would have nothing to do.
  std::int64_t size = kTile;
  std::vector<QueryTile> tiles = make_tiles(args.sequences, size);
  if (std::all_of(tiles.begin(), tiles.end(), [](const QueryTile& tile) { return tile.count == 1; })) {
    return attend_singly<T, P>(args, scratch, parallel);
  }
  const auto tasks = [&] { return static_cast<std::int64_t>(tiles.size()) * kv_heads; };
  while (tasks() < 4 * workers && size > kMinTile) tiles = make_tiles(args.sequences, size /= 2);
  if (tasks() < 2 * workers) {
    WideAttend<T, P> wide(args, scratch.data(), parallel);
    for (const QueryTile& tile : make_tiles(args.sequences, wide.queries_at_once())) wide.run(tile);
    return;
  }
  parallel.run(tasks(), [&](std::int64_t task, int worker) {
    // The last tiles see the most keys: they go first, so that no thread is left alone with one at the end.
    const std::int64_t from_last = tasks() - 1 - task;
    AttendTile<T, P>(args, scratch[static_cast<std::size_t>(worker)])
        .run(tiles[static_cast<std::size_t>(from_last / kv_heads)], from_last % kv_heads);
  });
}

void attend_target(const AttendArgs& args, const Parallel& parallel) {
  if (args.shape.dtype == DType::f64) {
    attend_typed<double>(args, parallel);
#if GSA_BF16_PRODUCTS
  } else if (args.shape.dtype == DType::bf16 && bf16_products()) {
    attend_typed<float, Bf16>(args, parallel);
#endif
  } else {
    attend_typed<float>(args, parallel);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(attend_target);
void attend_cpu(const AttendArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(attend_target)(args, parallel);
}
}  // namespace gsa
#endif
