// A tile of queries against a block of keys for indexer_kl: the target p of each query, the indexer's
// activations and scores, all over the query's own keys of the block. Forward and backward are built from
// these. Included once per Highway target.
#if defined(GSA_KERNELS_KL_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GSA_KERNELS_KL_TILE_INL_H_
#undef GSA_KERNELS_KL_TILE_INL_H_
#else
#define GSA_KERNELS_KL_TILE_INL_H_
#endif

#include "kernels/attention/blocks-inl.h"
#include "kernels/attention/softmax-inl.h"
#include "kernels/common/sigmoid-inl.h"
#include "kernels/indexer_kl/indexer_kl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// p[i] += sum over the tile's rows of e^(tile[r, i] - lse[r]); lse holds four equal lanes a row.
HWY_INLINE void add_probabilities(float* HWY_RESTRICT tile, std::int64_t count, int row_count,
                                  const float* HWY_RESTRICT lse, float* HWY_RESTRICT p) {
  const FloatTag d;
  const hn::FixedTag<float, 4> d4;
  for (std::int64_t lane = 0; lane < row_count * kGroup; lane += kLanes) {
    const FloatVec lse_row = hn::Load(d, lse + lane);
    for (std::int64_t g = lane; g < tile_size(count); g += kGroupSize) {
      hn::Store(softmax_weight(hn::Load(d, tile + g), lse_row), d, tile + g);
    }
  }
  for (std::int64_t i = 0; i < count; i += kGroup) {
    auto sum = hn::Load(d4, p + i);
    for (int r = 0; r < row_count; ++r) sum = hn::Add(sum, hn::Load(d4, tile + i * kTileRows + r * kGroup));
    hn::Store(sum, d4, p + i);
  }
}

HWY_INLINE void add_probabilities(double* tile, std::int64_t count, int row_count, const double* lse,
                                  double* p) {
  for (int r = 0; r < row_count; ++r) {
    for (std::int64_t i = 0; i < count; ++i) p[i] += softmax_weight(tile[tile_index(r, i)], lse[r * kGroup]);
  }
}

// tile <- act(scale * tile + bias); bias holds four equal lanes a row. The scale comes after the product, so
// that one that is exactly 0 stays so: ReLU and its slope depend on it.
HWY_INLINE void activate(float* HWY_RESTRICT tile, std::int64_t count, int row_count, float scale,
                         const float* HWY_RESTRICT bias, bool is_sigmoid) {
  const FloatTag d;
  for (std::int64_t lane = 0; lane < row_count * kGroup; lane += kLanes) {
    const FloatVec b = hn::Load(d, bias + lane);
    for (std::int64_t g = lane; g < tile_size(count); g += kGroupSize) {
      const FloatVec x = hn::MulAdd(hn::Load(d, tile + g), hn::Set(d, scale), b);
      hn::Store(is_sigmoid ? sigmoid(x) : at_least(d, 0.0f, x), d, tile + g);
    }
  }
}

HWY_INLINE void activate(double* tile, std::int64_t count, int row_count, double scale, const double* bias,
                         bool is_sigmoid) {
  for (int r = 0; r < row_count; ++r) {
    for (std::int64_t i = 0; i < count; ++i) {
      double& x = tile[tile_index(r, i)];
      x = x * scale + bias[r * kGroup];
      x = is_sigmoid ? 1 / (1 + std::exp(-x)) : (x < 0 ? 0 : x);
    }
  }
}

// x <- e^x for x <= 0 but for rounding.
HWY_INLINE void exp_row(float* HWY_RESTRICT x, std::int64_t n) {
  const FloatTag d;
  for (std::int64_t i = 0; i < n; i += kLanes) hn::Store(exp_of(hn::Load(d, x + i)), d, x + i);
}
HWY_INLINE void exp_row(double* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = std::exp(x[i]);
}

// The same, and returns the sum. x has room for padded(n) values.
template <typename T>
HWY_INLINE double exp_sum(T* x, std::int64_t n) {
  exp_row(x, n);
  T lanes[kPad] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i % kPad] += x[i];
  double sum = 0;
  for (const T lane : lanes) sum += static_cast<double>(lane);
  return sum;
}

template <typename T>
struct KlScratch {
  Scratch q, lse, index_q, index_w, k, index_k, index_dk, index_dq, dw, p, tile, act, score, grad;
  KeyBlock blocks[2];
  std::uint16_t slots[KeyBlock::kMaxSize + kGroup];
};

template <typename T>
class KlTile {
 public:
  static constexpr std::int64_t kQueries = 128;  // of a tile

  KlTile(const IndexerKlInputs& in, KlScratch<T>& scratch, const QueryTile& tile)
      : x(in.indexer),
        groups((x.heads + kTileRows - 1) / kTileRows),
        index_width(padded(x.head_size)),
        place(in.sequences, tile),
        queries(tile.count),
        in_(in),
        s_(scratch),
        heads_per_kv_(in.shape.heads / in.shape.kv_heads),
        width_(padded(in.shape.head_size)),
        block_(block_size(width_, 2)) {
    const std::int64_t rows = queries * in.shape.heads;
    q_ = s_.q.template get<T>(rows * width_);
    lse_ = s_.lse.template get<T>(rows * kGroup);
    index_q = s_.index_q.template get<T>(queries * groups * kTileRows * index_width);
    index_w = s_.index_w.template get<T>(queries * groups * kTileRows);
    index_k = s_.index_k.template get<T>(block_ * index_width);
    act = s_.act.template get<T>(groups * tile_size(block_));
    score = s_.score.template get<T>(block_);
    load();
  }

  // Calls body(i, slots, n, p, score) for each query i that has n > 0 keys in the block, for each block.
  // p is its target, score its I, act (group by group of four heads) its activations on those keys.
  // begin(keys) and end(keys) frame each block; index_k holds its packed indexer keys.
  template <class Begin, class Body, class End>
  void for_each(const Begin& begin, const Body& body, const End& end) {
    T* k = s_.k.template get<T>(block_ * width_);
    T* tile = s_.tile.template get<T>(tile_size(block_));
    T* p = s_.p.template get<T>(queries * block_);
    for_blocks(in_.mask, place, queries, block_, s_.blocks, [&](const KeyBlock& keys, const KeyBlock*) {
      std::fill_n(p, queries * block_, T(0));
      for (std::int64_t kv_head = 0; kv_head < in_.shape.kv_heads; ++kv_head) {
        pack_rows(rows_of(in_.k, in_.shape, place, kv_head), in_.shape, keys, nullptr, k);
        for (std::int64_t i = 0; i < queries; ++i) {
          const std::int64_t n = list(keys, i);
          for (std::int64_t g = 0; n > 0 && g < heads_per_kv_; g += kTileRows) {
            const int rows = static_cast<int>(std::min<std::int64_t>(kTileRows, heads_per_kv_ - g));
            const std::int64_t row = (i * in_.shape.kv_heads + kv_head) * heads_per_kv_ + g;
            HWY_ALIGN T lse[kGroupSize] = {};
            std::copy_n(lse_ + row * kGroup, rows * kGroup, lse);
            dot_tile(q_ + row * width_, rows, k, s_.slots, n, width_, tile);
            add_probabilities(tile, n, rows, lse, p + i * block_);
          }
        }
      }
      pack_index_keys(keys);
      begin(keys);
      const T share = T(1) / static_cast<T>(in_.shape.heads);
      for (std::int64_t i = 0; i < queries; ++i) {
        const std::int64_t n = list(keys, i);
        if (n == 0) continue;
        T* target = p + i * block_;
        for (std::int64_t j = 0; j < n; ++j) target[j] *= share;
        score_keys(i, n);
        body(i, static_cast<const std::uint16_t*>(s_.slots), n, static_cast<const T*>(target));
      }
      end(keys);
    });
  }

  const Indexer& x;
  const std::int64_t groups;  // of four indexer heads; absent heads have w = 0
  const std::int64_t index_width;
  const TilePlace place;
  const std::int64_t queries;
  T* index_q;  // [queries, groups * 4, index_width]
  T* index_w;  // [queries, groups * 4]
  T* index_k;  // [keys of the block, index_width]
  T* act;      // [groups, tile]
  T* score;    // [keys of the query]

  T* group_act(std::int64_t g) { return act + g * tile_size(block_); }
  int group_rows(std::int64_t g) const {
    return static_cast<int>(std::min<std::int64_t>(kTileRows, x.heads - g * kTileRows));
  }
  std::int64_t block() const { return block_; }

 private:
  void load() {
    const AttendShape& shape = in_.shape;
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::int64_t query = place.query + i;
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        load_row<T>(q_ + (i * shape.heads + h) * width_,
                    at(in_.q.data, shape.dtype, query * in_.q.token_stride + h * in_.q.head_stride),
                    shape.dtype, shape.head_size, static_cast<T>(shape.scale));
        const T lse = static_cast<const T*>(in_.lse)[query * shape.heads + h];
        std::fill_n(lse_ + (i * shape.heads + h) * kGroup, kGroup, lse);
      }
      for (std::int64_t j = 0; j < groups * kTileRows; ++j) {
        T* row = index_q + (i * groups * kTileRows + j) * index_width;
        T& w = index_w[i * groups * kTileRows + j];
        w = T(0);
        std::fill_n(row, index_width, T(0));
        if (j >= x.heads) continue;
        load_row<T>(row, at(x.q.data, shape.dtype, query * x.q.token_stride + j * x.q.head_stride),
                    shape.dtype, x.head_size, T(1));
        w = load_value<T>(at(x.w.data, shape.dtype, query * x.w.token_stride + j * x.w.head_stride),
                          shape.dtype);
      }
    }
  }

  // Lists query i's keys of the block in s_.slots; returns how many.
  std::int64_t list(const KeyBlock& keys, std::int64_t i) {
    if (in_.mask.words != nullptr) {
      return keys.list(in_.mask.words + (place.query + i) * in_.mask.words_per_query, s_.slots);
    }
    const std::int64_t n = std::clamp<std::int64_t>(place.position + i + 1 - keys.begin(), 0, keys.count());
    for (std::int64_t j = 0; j < n; ++j) s_.slots[j] = static_cast<std::uint16_t>(j);
    return n;
  }

  void pack_index_keys(const KeyBlock& keys) {
    for (std::int64_t i = 0; i < keys.count(); ++i) {
      load_row<T>(index_k + i * index_width,
                  at(x.k.data, in_.shape.dtype, (place.key + keys.position(i)) * x.k.token_stride),
                  in_.shape.dtype, x.head_size, T(1));
    }
  }

  void score_keys(std::int64_t i, std::int64_t n) {
    std::fill_n(score, n, T(0));
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t head = i * groups * kTileRows + g * kTileRows;
      HWY_ALIGN T bias[kGroupSize] = {};
      for (int r = 0; r < group_rows(g) && x.bias != nullptr; ++r) {
        std::fill_n(bias + r * kGroup, kGroup,
                    load_value<T>(at(x.bias, in_.shape.dtype, g * kTileRows + r), in_.shape.dtype));
      }
      T* tile = group_act(g);
      dot_tile(index_q + head * index_width, group_rows(g), index_k, s_.slots, n, index_width, tile);
      activate(tile, n, group_rows(g), static_cast<T>(x.scale), bias, x.form == ScoreForm::sigmoid);
      for (int r = 0; r < group_rows(g); ++r) {
        const T w = index_w[head + r];
        for (std::int64_t j = 0; j < n; ++j) score[j] += w * tile[tile_index(r, j)];
      }
    }
  }

  const IndexerKlInputs& in_;
  KlScratch<T>& s_;
  const std::int64_t heads_per_kv_;
  const std::int64_t width_;
  const std::int64_t block_;
  T* q_;
  T* lse_;
};

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#endif  // GSA_KERNELS_KL_TILE_INL_H_
