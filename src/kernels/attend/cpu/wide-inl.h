// Attention of few queries: decoding.
//
// A task of cpu/forward.cc walks over all keys of a query for one key/value head. With few queries there are
// not enough of those to feed the threads, and with one query memory is what counts: the heads of a token lie
// side by side and want to be read together. Here the same arithmetic is cut across its independent parts:
//
//   1. logits       blocks of keys, all heads             every dot product stands for itself
//   2. softmax      (key/value head, query, four rows)    block after block, as the maximum grows: cheap
//   3. values       neighbouring columns of heads         every column of out is a sum of its own
//
// so that the results are those bits, whatever the cut. Logits lie in memory between the steps. Included once
// per Highway target.
#if defined(GSA_KERNELS_ATTEND_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GSA_KERNELS_ATTEND_WIDE_INL_H_
#undef GSA_KERNELS_ATTEND_WIDE_INL_H_
#else
#define GSA_KERNELS_ATTEND_WIDE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/attend/attend.h"
#include "kernels/attention/blocks-inl.h"
#include "kernels/attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

// T and P as in cpu/forward.cc.
template <typename T, typename P>
class WideAttend {
 public:
  // scratch: one for each worker.
  WideAttend(const AttendArgs& args, AttendScratch<T>* scratch, const Parallel& parallel)
      : a_(args),
        scratch_(scratch),
        parallel_(parallel),
        kv_heads_(args.shape.kv_heads),
        group_(args.shape.heads / args.shape.kv_heads),
        quads_((group_ + kTileRows - 1) / kTileRows),
        width_(row_width<P>(args.shape.head_size)),
        block_(block_size<P>(width_, 2)) {}

  // Queries of a tile whose logits stay below 64 MiB of floats, where that is possible.
  std::int64_t queries_at_once() const {
    const std::int64_t longest = std::max<std::int64_t>(a_.sequences.longest_keys(), 1);
    return std::clamp<std::int64_t>((std::int64_t{1} << 24) / (a_.shape.heads * longest), 1, 64);
  }

  void run(const QueryTile& tile) {
    const TilePlace place(a_.sequences, tile);
    prepare(place, tile);
    const std::int64_t workers = parallel_.workers();
    const std::int64_t parts = std::min(4 * workers, blocks_);
    const std::int64_t share = (blocks_ + parts - 1) / parts * block_;
    parallel_.run(parts, [&](std::int64_t task, int worker) {
      logits(place, task * share, (task + 1) * share, scratch_[worker]);
    });
    parallel_.run(kv_heads_ * tile.count * quads_, [&](std::int64_t task, int) {
      softmax(place, task / quads_ / tile.count, task / quads_ % tile.count, task % quads_);
    });
    const std::vector<Columns> columns = cut_columns(workers);
    parallel_.run(static_cast<std::int64_t>(columns.size()), [&](std::int64_t task, int worker) {
      values(place, columns[static_cast<std::size_t>(task)], scratch_[worker]);
    });
  }

 private:
  static constexpr std::int64_t kPanel = 32;  // keys that stay in the L1 cache between packing and use

  // Columns [first, first + size) of the values of key/value heads [head, head_end).
  struct Columns {
    std::int64_t head, head_end, first, size;
  };

  // One for each worker, as far as there are columns: neighbouring heads, or parts of a head.
  std::vector<Columns> cut_columns(std::int64_t workers) const {
    const std::int64_t heads = std::max<std::int64_t>(1, kv_heads_ / workers);
    const std::int64_t slices =
        std::clamp<std::int64_t>((workers + kv_heads_ - 1) / kv_heads_, 1, width_ / row_width<P>(1));
    const std::int64_t size = row_width<P>((width_ + slices - 1) / slices);
    std::vector<Columns> columns;
    for (std::int64_t h = 0; h < kv_heads_; h += heads) {
      for (std::int64_t c = 0; c < a_.shape.head_size; c += size) {
        columns.push_back({h, std::min(h + heads, kv_heads_), c, std::min(size, a_.shape.head_size - c)});
      }
    }
    return columns;
  }

  // Loads queries, counts the keys of each query in each block, and finds room for their logits.
  void prepare(const TilePlace& place, const QueryTile& tile) {
    queries_ = tile.count;
    blocks_ = (place.position + tile.count + block_ - 1) / block_;
    q_ = q_memory_.get<P>(kv_heads_ * queries_ * group_ * width_);
    k_rows_.clear();
    v_rows_.clear();
    for (std::int64_t h = 0; h < kv_heads_; ++h) {
      load_queries<T>(a_.q, a_.shape, place.query, queries_, h, group_, q_ + h * queries_ * group_ * width_);
      k_rows_.emplace_back(a_.k, a_.pages, tile.sequence, place.key, h, size_of(a_.shape.dtype));
      v_rows_.emplace_back(a_.v, a_.pages, tile.sequence, place.key, h, size_of(a_.shape.dtype));
    }
    counts_.assign(static_cast<std::size_t>(queries_ * blocks_), 0);
    begins_.assign(static_cast<std::size_t>(queries_ * blocks_), 0);
    logits_of_quad_ = 0;
    for (std::int64_t i = 0; i < queries_; ++i) {
      for (std::int64_t b = 0; b < blocks_; ++b) {
        const std::size_t at_block = static_cast<std::size_t>(i * blocks_ + b);
        counts_[at_block] = count(place, i, b);
        begins_[at_block] = logits_of_quad_;
        logits_of_quad_ += tile_size(counts_[at_block]);
      }
    }
    const std::int64_t quads = kv_heads_ * quads_;
    logits_ = logits_memory_.get<T>(quads * logits_of_quad_);
    factors_ = factors_memory_.get<T>(quads * queries_ * blocks_ * kGroupSize);
    totals_ = totals_memory_.get<T>(queries_ * a_.shape.heads);
  }

  // How many keys of block b query i attends to.
  std::int64_t count(const TilePlace& place, std::int64_t i, std::int64_t b) const {
    if (a_.mask.words == nullptr) {
      return std::clamp<std::int64_t>(place.position + i + 1 - b * block_, 0, block_);
    }
    const std::int64_t size = std::min(place.position + queries_ - b * block_, block_);
    const std::uint32_t* words =
        a_.mask.words + (place.query + i) * a_.mask.words_per_query + b * block_ / 32;
    std::int64_t n = 0;
    for (std::int64_t w = 0; w < size / 32; ++w) n += std::popcount(words[w]);
    if (size % 32 != 0) n += std::popcount(words[size / 32] & ((1u << (size % 32)) - 1u));
    return n;
  }

  std::size_t index(std::int64_t i, const KeyBlock& keys) const {
    return static_cast<std::size_t>(i * blocks_ + keys.begin() / block_);
  }
  T* logits_at(std::int64_t kv_head, std::int64_t quad, std::size_t block) const {
    return logits_ + (kv_head * quads_ + quad) * logits_of_quad_ + begins_[block];
  }
  // The same place after the softmax.
  const P* weights_at(std::int64_t kv_head, std::int64_t quad, std::size_t block) const {
    return reinterpret_cast<const P*>(logits_at(kv_head, quad, block));
  }
  T* factor_at(std::int64_t kv_head, std::int64_t quad, std::size_t block) const {
    return factors_ +
           ((kv_head * quads_ + quad) * queries_ * blocks_ + static_cast<std::int64_t>(block)) * kGroupSize;
  }
  int rows_of_quad(std::int64_t quad) const {
    return static_cast<int>(std::min<std::int64_t>(kTileRows, group_ - quad * kTileRows));
  }

  // Calls body(i, slots, n) for each query with n > 0 keys in the block.
  template <class Body>
  void for_queries(const TilePlace& place, const KeyBlock& keys, std::uint16_t* slots, const Body& body) {
    if (a_.mask.words == nullptr) {
      for (std::int64_t j = 0; j < keys.count(); ++j) slots[j] = static_cast<std::uint16_t>(j);
    }
    for (std::int64_t i = 0; i < queries_; ++i) {
      const std::int64_t n = counts_[index(i, keys)];
      if (n == 0) continue;
      if (a_.mask.words != nullptr) {
        keys.list(a_.mask.words + (place.query + i) * a_.mask.words_per_query, slots);
      }
      body(i, slots, n);
    }
  }

  // Calls body(head, i, slots, n, first) for the keys of a block, packed in `packed`: n of the block's keys
  // for query i, the first of which is the first-th of that query. A single query wants every key of its
  // block, so they are packed a few at a time, all heads of the same tokens one after another.
  template <class Body>
  void for_keys(const TilePlace& place, const std::vector<KeyRows>& rows, const Columns& c,
                const KeyBlock& keys, const KeyBlock* next, AttendScratch<T>& s, P* packed,
                const Body& body) {
    if (queries_ == 1) {
      for (std::int64_t j = 0; j < kPanel; ++j) s.slots[j] = static_cast<std::uint16_t>(j);
      for (std::int64_t first = 0; first < keys.count(); first += kPanel) {
        const std::int64_t n = std::min(kPanel, keys.count() - first);
        for (std::int64_t h = c.head; h < c.head_end; ++h) {
          pack_panel(rows[static_cast<std::size_t>(h)], a_.shape.dtype, keys, next, first, first + n, c.first,
                     c.size, packed);
          body(h, 0, s.slots, n, first);
        }
      }
      return;
    }
    for (std::int64_t h = c.head; h < c.head_end; ++h) {
      pack_columns(rows[static_cast<std::size_t>(h)], a_.shape.dtype, keys, next, c.first, c.size, packed);
      for_queries(place, keys, s.slots, [&](std::int64_t i, const std::uint16_t* slots, std::int64_t n) {
        body(h, i, slots, n, 0);
      });
    }
  }

  // Step 1, for positions [begin, end).
  void logits(const TilePlace& place, std::int64_t begin, std::int64_t end, AttendScratch<T>& s) {
    P* k = s.k.template get<P>(block_ * width_);
    const Columns all = {0, kv_heads_, 0, a_.shape.head_size};
    for_blocks(a_.mask, place, queries_, block_, begin, end, s.blocks,
               [&](const KeyBlock& keys, const KeyBlock* next) {
                 for_keys(place, k_rows_, all, keys, next, s, k,
                          [&](std::int64_t h, std::int64_t i, const std::uint16_t* slots, std::int64_t n,
                              std::int64_t first) {
                            const P* q = q_ + (h * queries_ + i) * group_ * width_;
                            for (std::int64_t quad = 0; quad < quads_; ++quad) {
                              dot_logits(a_.shape, q + quad * kTileRows * width_, rows_of_quad(quad), k,
                                         slots, n, width_,
                                         logits_at(h, quad, index(i, keys)) + first * kTileRows);
                            }
                          });
               });
  }

  // Step 2, for up to four rows of query i.
  void softmax(const TilePlace& place, std::int64_t kv_head, std::int64_t i, std::int64_t quad) {
    HWY_ALIGN T maximum[kGroupSize];
    HWY_ALIGN T sum[kGroupSize] = {};
    std::fill_n(maximum, kGroupSize, -std::numeric_limits<T>::infinity());
    const int rows = rows_of_quad(quad);
    for (std::int64_t b = 0; b < blocks_; ++b) {
      const std::size_t block = static_cast<std::size_t>(i * blocks_ + b);
      if (counts_[block] == 0) continue;
      softmax_update(logits_at(kv_head, quad, block), counts_[block], rows, maximum, sum,
                     factor_at(kv_head, quad, block));
      weights_of<P>(logits_at(kv_head, quad, block), counts_[block]);
    }
    for (int r = 0; r < rows; ++r) {
      const std::int64_t head = kv_head * group_ + quad * kTileRows + r;
      const T total = row_sum(sum + r * kGroup);
      totals_[i * a_.shape.heads + head] = total;
      if (a_.lse != nullptr) {
        static_cast<T*>(a_.lse)[(place.query + i) * a_.shape.heads + head] =
            log_sum(maximum[r * kGroup], total);
      }
    }
  }

  // Step 3.
  void values(const TilePlace& place, const Columns& c, AttendScratch<T>& s) {
    const std::int64_t width = row_width<P>(c.size), rows = queries_ * group_;
    P* v = s.v.template get<P>(block_ * width);
    T* out = s.out.template get<T>((c.head_end - c.head) * rows * width);
    std::fill_n(out, (c.head_end - c.head) * rows * width, T(0));
    T unchanged[kGroupSize];
    std::fill_n(unchanged, kGroupSize, T(1));
    for_blocks(a_.mask, place, queries_, block_, s.blocks, [&](const KeyBlock& keys, const KeyBlock* next) {
      for_keys(place, v_rows_, c, keys, next, s, v,
               [&](std::int64_t h, std::int64_t i, const std::uint16_t* slots, std::int64_t n,
                   std::int64_t first) {
                 T* to = out + ((h - c.head) * rows + i * group_) * width;
                 const std::size_t block = index(i, keys);
                 for (std::int64_t quad = 0; quad < quads_; ++quad) {
                   combine(weights_at(h, quad, block) + first * kTileRows,
                           first == 0 ? factor_at(h, quad, block) : unchanged, rows_of_quad(quad), v, slots,
                           n, width, to + quad * kTileRows * width);
                 }
               });
    });
    for (std::int64_t row = 0; row < (c.head_end - c.head) * rows; ++row) {
      const std::int64_t i = row % rows / group_, head = (c.head + row / rows) * group_ + row % group_;
      // An empty selection leaves a total of 0, and 0 * (1 / 0) is the NaN that the contract asks for.
      store_row<T>(at(a_.out.data, a_.shape.dtype,
                      (place.query + i) * a_.out.token_stride + head * a_.out.head_stride + c.first),
                   a_.shape.dtype, combined_row<P>(out + row * width, width), c.size,
                   T(1) / totals_[i * a_.shape.heads + head]);
    }
  }

  const AttendArgs& a_;
  AttendScratch<T>* const scratch_;
  const Parallel& parallel_;
  const std::int64_t kv_heads_, group_;
  const std::int64_t quads_;  // groups of up to four rows, of one query and key/value head
  const std::int64_t width_, block_;

  Scratch q_memory_, logits_memory_, factors_memory_, totals_memory_;
  std::int64_t queries_ = 0, blocks_ = 0;      // of the tile
  std::vector<KeyRows> k_rows_, v_rows_;       // [key/value head]
  std::vector<std::int64_t> counts_, begins_;  // [query, block]: keys, and where logits begin
  std::int64_t logits_of_quad_ = 0;
  P* q_ = nullptr;
  T *logits_ = nullptr, *factors_ = nullptr, *totals_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#endif  // GSA_KERNELS_ATTEND_WIDE_INL_H_
