// What the forward pass, the backward pass and indexer_kl share: loading query rows, packing key rows,
// walking over blocks of keys and over groups of rows that visit the same keys. Included once per Highway
// target.
#if defined(GSA_KERNELS_ATTEND_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GSA_KERNELS_ATTEND_BLOCKS_INL_H_
#undef GSA_KERNELS_ATTEND_BLOCKS_INL_H_
#else
#define GSA_KERNELS_ATTEND_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "hwy/cache_control.h"
#include "kernels/attention/attend_shape.h"
#include "kernels/common/bf16_tile-inl.h"
#include "kernels/common/key_block.h"
#include "kernels/common/key_rows.h"
#include "kernels/common/scratch.h"
#include "kernels/common/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
struct AttendScratch {
  Scratch q, out, dout, dq, maximum, sum, k, v, dk, dv, tile, tile2;
  KeyBlock blocks[2];
  std::uint16_t slots[KeyBlock::kMaxSize + kGroup];
};

// Keys of a block such that `arrays` packed arrays of P take half of a 1 MiB L2 cache (double counts as float). A
// function of P and the head size alone: block borders are part of a query's arithmetic.
template <typename P = float>
HWY_INLINE std::int64_t block_size(std::int64_t width, std::int64_t arrays) {
  constexpr std::int64_t kBytes = std::min(sizeof(P), sizeof(float));
  const std::int64_t keys = (std::int64_t{1} << 19) / (kBytes * width * arrays) / 32 * 32;
  return std::clamp<std::int64_t>(keys, 64, KeyBlock::kMaxSize);
}

// dst[query, head of the group, width] = scale * rows of the group of kv_head.
template <typename T>
HWY_INLINE void load_rows(const ConstRows& src, const AttendShape& shape, std::int64_t query,
                          std::int64_t count, std::int64_t kv_head, std::int64_t group, T scale, T* dst) {
  const std::int64_t width = padded(shape.head_size);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t g = 0; g < group; ++g) {
      load_row<T>(
          dst + (i * group + g) * width,
          at(src.data, shape.dtype, (query + i) * src.token_stride + (kv_head * group + g) * src.head_stride),
          shape.dtype, shape.head_size, scale);
    }
  }
}

// dst[query, head of the group, width] = rows of the group of kv_head, ready for dot_logits(): as products are taken,
// scaled where these are of floats.
template <typename T, typename P>
HWY_INLINE void load_queries(const ConstRows& src, const AttendShape& shape, std::int64_t query,
                             std::int64_t count, std::int64_t kv_head, std::int64_t group, P* dst) {
  if constexpr (std::is_same_v<T, P>) {
    load_rows(src, shape, query, count, kv_head, group, static_cast<T>(shape.scale), dst);
  } else {
    const std::int64_t width = row_width<P>(shape.head_size);
    for (std::int64_t row = 0; row < count * group; ++row) {
      const std::int64_t head = kv_head * group + row % group;
      pack_row(dst + row * width,
               at(src.data, shape.dtype, (query + row / group) * src.token_stride + head * src.head_stride),
               shape.dtype, shape.head_size);
    }
  }
}

// dot_tile() of scaled queries.
template <typename T, typename P>
HWY_INLINE void dot_logits(const AttendShape& shape, const P* q, int row_count, const P* packed,
                           const std::uint16_t* slots, std::int64_t count, std::int64_t width, T* tile) {
  if constexpr (std::is_same_v<T, P>) {
    dot_tile(q, row_count, packed, slots, count, width, tile);
  } else {
    dot_tile(q, row_count, packed, slots, count, width, static_cast<T>(shape.scale), tile);
  }
}

// The weights of a tile as combine() takes them; those of another type than T take the tile's memory.
template <typename P, typename T>
HWY_INLINE const P* weights_of(T* tile, std::int64_t count) {
  if constexpr (std::is_same_v<T, P>) {
    return tile;
  } else {
    return rounded_weights(tile, count);
  }
}

// A row that combine() has written, with its columns in their order.
template <typename P, typename T>
HWY_INLINE const T* combined_row(T* row, std::int64_t width) {
  if constexpr (!std::is_same_v<T, P>) in_order(row, width);
  return row;
}

// dst[slot - begin, row_width(size)] = columns [column, column + size) of the block's keys in slots [begin,
// end). next: the block that comes after it, if any; its first rows are asked for ahead.
template <typename T>
HWY_INLINE void pack_panel(const KeyRows& rows, DType type, const KeyBlock& keys, const KeyBlock* next,
                           std::int64_t begin, std::int64_t end, std::int64_t column, std::int64_t size,
                           T* dst) {
  constexpr std::int64_t kAhead = 8;  // rows; a union of selected keys has no pattern that hardware foresees
  const std::int64_t width = row_width<T>(size), element = static_cast<std::int64_t>(size_of(type));
  const std::int64_t bytes = size * element, offset = column * element;
  const auto fetch = [&](std::int64_t position) {
    const char* row = rows.at(position) + offset;
    for (std::int64_t b = 0; b < bytes; b += 64) hwy::Prefetch(row + b);
  };
  const std::int64_t following = next == nullptr ? 0 : next->count();
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t ahead = i + kAhead;
    if (ahead < keys.count()) {
      fetch(keys.position(ahead));
    } else if (ahead - keys.count() < following) {
      fetch(next->position(ahead - keys.count()));
    }
    pack_row(dst + (i - begin) * width, rows.at(keys.position(i)) + offset, type, size);
  }
}

// dst[slot, row_width(size)]: those columns of all keys of the block.
template <typename T>
HWY_INLINE void pack_columns(const KeyRows& rows, DType type, const KeyBlock& keys, const KeyBlock* next,
                             std::int64_t column, std::int64_t size, T* dst) {
  pack_panel(rows, type, keys, next, 0, keys.count(), column, size, dst);
}

// dst[slot, width] = the block's keys.
template <typename T>
HWY_INLINE void pack_rows(const KeyRows& rows, const AttendShape& shape, const KeyBlock& keys,
                          const KeyBlock* next, T* dst) {
  pack_columns(rows, shape.dtype, keys, next, 0, shape.head_size, dst);
}

// Contiguous rows.
HWY_INLINE KeyRows rows_of(const ConstRows& rows, const AttendShape& shape, const TilePlace& place,
                           std::int64_t kv_head) {
  return {rows, {}, 0, place.key, kv_head, size_of(shape.dtype)};
}

// Calls body(keys, next) for each block of keys in positions [begin, end) that the tile needs, in ascending
// order; next is the block that the following call will get, or null. begin: a multiple of `block`.
template <class Body>
HWY_INLINE void for_blocks(const ConstMask& mask, const TilePlace& place, std::int64_t queries,
                           std::int64_t block, std::int64_t begin, std::int64_t end, KeyBlock (&keys)[2],
                           const Body& body) {
  end = std::min(end, place.position + queries);  // what the last query sees
  const auto find = [&](KeyBlock& found) {
    for (; begin < end; begin += block) {
      const std::int64_t size = std::min(block, end - begin);
      if (mask.words == nullptr) {
        found.fill(begin, size);
      } else {
        found.unite(begin, size, mask.words + place.query * mask.words_per_query, mask.words_per_query,
                    queries);
      }
      if (found.count() == 0) continue;
      begin += block;
      return true;
    }
    return false;
  };
  bool more = find(keys[0]);
  for (int i = 0; more; i = 1 - i) {
    more = find(keys[1 - i]);
    body(keys[i], more ? &keys[1 - i] : nullptr);
  }
}

// The same for all positions.
template <class Body>
HWY_INLINE void for_blocks(const ConstMask& mask, const TilePlace& place, std::int64_t queries,
                           std::int64_t block, KeyBlock (&keys)[2], const Body& body) {
  for_blocks(mask, place, queries, block, 0, place.position + queries, keys, body);
}

// Calls body(first row, rows, slots, keys) for groups of at most four rows (query-major, `group` heads a
// query) that visit the same keys.
template <class Body>
HWY_INLINE void for_row_groups(const ConstMask& mask, const TilePlace& place, std::int64_t queries,
                               std::int64_t group, const KeyBlock& keys, std::uint16_t* slots,
                               const Body& body) {
  const auto rows = [&](std::int64_t begin, std::int64_t end, std::int64_t n) {
    for (std::int64_t row = begin; row < end; row += kTileRows) {
      body(row, static_cast<int>(std::min<std::int64_t>(kTileRows, end - row)), slots, n);
    }
  };
  if (mask.words != nullptr) {
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::int64_t n = keys.list(mask.words + (place.query + i) * mask.words_per_query, slots);
      if (n > 0) rows(i * group, (i + 1) * group, n);
    }
    return;
  }
  for (std::int64_t i = 0; i < keys.count(); ++i) slots[i] = static_cast<std::uint16_t>(i);
  // Queries that see a part of the block go alone, those that see all of it go together.
  std::int64_t i = std::max<std::int64_t>(0, keys.begin() - place.position);
  for (; i < queries && place.position + i + 1 < keys.begin() + keys.count(); ++i) {
    rows(i * group, (i + 1) * group, place.position + i + 1 - keys.begin());
  }
  rows(i * group, queries * group, keys.count());
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#endif  // GSA_KERNELS_ATTEND_BLOCKS_INL_H_
