// attend backward on the CPU.
//
// A task is a sequence x one key/value head x one part of the blocks of keys (every parts-th block), and owns
// dk and dv of its keys: no two tasks write to the same place, and queries are added in ascending order. dq
// is summed over the parts at the end, in order. The number of parts depends on the heads alone, so the
// result depends neither on threads nor on batch neighbours.
// Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend/cpu/backward.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/highway.h"
#include "kernels/attend/attend_cpu.h"
#include "kernels/attention/blocks-inl.h"
#include "kernels/attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

// p <- e^(p - lse), dp <- p * (dp - delta); lse and delta hold four equal lanes a row.
HWY_INLINE void softmax_backward(float* HWY_RESTRICT p, float* HWY_RESTRICT dp, std::int64_t count,
                                 int row_count, const float* HWY_RESTRICT lse,
                                 const float* HWY_RESTRICT delta) {
  const FloatTag d;
  const std::int64_t size = tile_size(count);
  for (std::int64_t lane = 0; lane < row_count * kGroup; lane += kLanes) {
    const FloatVec lse_row = hn::Load(d, lse + lane);
    const FloatVec delta_row = hn::Load(d, delta + lane);
    for (std::int64_t g = lane; g < size; g += kGroupSize) {
      const FloatVec x = softmax_weight(hn::Load(d, p + g), lse_row);
      hn::Store(x, d, p + g);
      hn::Store(hn::Mul(x, hn::Sub(hn::Load(d, dp + g), delta_row)), d, dp + g);
    }
  }
}

HWY_INLINE void softmax_backward(double* p, double* dp, std::int64_t count, int row_count, const double* lse,
                                 const double* delta) {
  for (int r = 0; r < row_count; ++r) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = tile_index(r, i);
      p[at] = softmax_weight(p[at], lse[r * kGroup]);
      dp[at] = p[at] * (dp[at] - delta[r * kGroup]);
    }
  }
}

template <typename T>
class AttendBackwardTile {
 public:
  AttendBackwardTile(const AttendBackwardArgs& args, AttendScratch<T>& scratch, std::int64_t parts)
      : a_(args),
        s_(scratch),
        parts_(parts),
        group_(args.shape.heads / args.shape.kv_heads),
        width_(padded(args.shape.head_size)) {}

  // dq_part: [queries of the tile, heads, width], of this part.
  void run(const QueryTile& tile, std::int64_t kv_head, std::int64_t part, T* dq_part) {
    const TilePlace place(a_.sequences, tile);
    const std::int64_t rows = tile.count * group_;
    q_ = s_.q.template get<T>(rows * width_);
    dout_ = s_.dout.template get<T>(rows * width_);
    lse_ = s_.maximum.template get<T>(rows * kGroup);
    delta_ = s_.sum.template get<T>(rows * kGroup);
    dq_ = s_.dq.template get<T>(rows * width_);
    load(place, tile.count, kv_head);
    std::fill_n(dq_, rows * width_, T(0));
    const std::int64_t block = block_size(width_, 4);
    T* k = s_.k.template get<T>(block * width_);
    T* v = s_.v.template get<T>(block * width_);
    T* dk = s_.dk.template get<T>(block * width_);
    T* dv = s_.dv.template get<T>(block * width_);
    p_ = s_.tile.template get<T>(tile_size(block));
    dp_ = s_.tile2.template get<T>(tile_size(block));
    for_blocks(a_.mask, place, tile.count, block, s_.blocks, [&](const KeyBlock& keys, const KeyBlock*) {
      if (keys.begin() / block % parts_ != part) return;
      pack_rows(rows_of(a_.k, a_.shape, place, kv_head), a_.shape, keys, nullptr, k);
      pack_rows(rows_of(a_.v, a_.shape, place, kv_head), a_.shape, keys, nullptr, v);
      std::fill_n(dk, keys.count() * width_, T(0));
      std::fill_n(dv, keys.count() * width_, T(0));
      for_row_groups(a_.mask, place, tile.count, group_, keys, s_.slots,
                     [&](std::int64_t row, int count, const std::uint16_t* slots, std::int64_t n) {
                       visit(row, count, slots, n, k, v, dk, dv);
                     });
      add_rows(place.key, keys, kv_head, dk, static_cast<T*>(a_.dk));  // q carries the scale
      add_rows(place.key, keys, kv_head, dv, static_cast<T*>(a_.dv));
    });
    for (std::int64_t i = 0; i < tile.count; ++i) {
      std::copy_n(dq_ + i * group_ * width_, group_ * width_,
                  dq_part + (i * a_.shape.heads + kv_head * group_) * width_);
    }
  }

 private:
  void load(const TilePlace& place, std::int64_t queries, std::int64_t kv_head) {
    load_rows(a_.q, a_.shape, place.query, queries, kv_head, group_, static_cast<T>(a_.shape.scale), q_);
    load_rows(a_.dout, a_.shape, place.query, queries, kv_head, group_, T(1), dout_);
    T* out = dq_;  // not in use yet
    load_rows(a_.out, a_.shape, place.query, queries, kv_head, group_, T(1), out);
    for (std::int64_t row = 0; row < queries * group_; ++row) {
      T lanes[kPad] = {};  // a fixed order of summation, and a short chain
      for (std::int64_t c = 0; c < width_; ++c)
        lanes[c % kPad] += dout_[row * width_ + c] * out[row * width_ + c];
      T delta = 0;
      for (const T lane : lanes) delta += lane;
      const std::int64_t query = place.query + row / group_;
      const std::int64_t head = kv_head * group_ + row % group_;
      const T lse = static_cast<const T*>(a_.lse)[query * a_.shape.heads + head];
      std::fill_n(lse_ + row * kGroup, kGroup, lse);
      std::fill_n(delta_ + row * kGroup, kGroup, delta);
    }
  }

  void visit(std::int64_t row, int count, const std::uint16_t* slots, std::int64_t n, const T* k, const T* v,
             T* dk, T* dv) {
    HWY_ALIGN T lse[kGroupSize] = {};
    HWY_ALIGN T delta[kGroupSize] = {};
    HWY_ALIGN T one[kGroupSize];
    std::fill_n(one, kGroupSize, T(1));
    std::copy_n(lse_ + row * kGroup, count * kGroup, lse);
    std::copy_n(delta_ + row * kGroup, count * kGroup, delta);
    dot_tile(q_ + row * width_, count, k, slots, n, width_, p_);
    dot_tile(dout_ + row * width_, count, v, slots, n, width_, dp_);
    softmax_backward(p_, dp_, n, count, lse, delta);
    spread(p_, dout_ + row * width_, count, slots, n, width_, dv);
    spread(dp_, q_ + row * width_, count, slots, n, width_, dk);
    combine(dp_, one, count, k, slots, n, width_, dq_ + row * width_);
  }

  void add_rows(std::int64_t first_key, const KeyBlock& keys, std::int64_t kv_head, const T* HWY_RESTRICT src,
                T* dst) const {
    for (std::int64_t i = 0; i < keys.count(); ++i) {
      T* HWY_RESTRICT row =
          dst + ((first_key + keys.position(i)) * a_.shape.kv_heads + kv_head) * a_.shape.head_size;
      for (std::int64_t c = 0; c < a_.shape.head_size; ++c) row[c] += src[i * width_ + c];
    }
  }

  const AttendBackwardArgs& a_;
  AttendScratch<T>& s_;
  const std::int64_t parts_;
  const std::int64_t group_;
  const std::int64_t width_;
  T *q_ = nullptr, *dout_ = nullptr, *lse_ = nullptr, *delta_ = nullptr, *dq_ = nullptr, *p_ = nullptr,
    *dp_ = nullptr;
};

// A query without keys gave NaN, and so does its gradient, unless nobody asks for it.
template <typename T>
bool is_zero_row(const ConstRows& rows, const AttendShape& shape, std::int64_t query, std::int64_t head) {
  HWY_ALIGN T row[256];
  load_row<T>(row, at(rows.data, shape.dtype, query * rows.token_stride + head * rows.head_stride),
              shape.dtype, shape.head_size, T(1));
  return std::all_of(row, row + shape.head_size, [](T x) { return x == T(0); });
}

// dq of one query = scale * sum over parts; NaN where the forward pass gave NaN and dout is not 0. parts: the
// query's rows in the first part, the next one `stride` values further.
template <typename T>
void sum_parts(const AttendBackwardArgs& a, std::int64_t query, const T* dq_parts, std::int64_t parts,
               std::int64_t stride) {
  const std::int64_t width = padded(a.shape.head_size);
  HWY_ALIGN T sum[256];
  for (std::int64_t head = 0; head < a.shape.heads; ++head) {
    std::copy_n(dq_parts + head * width, width, sum);
    for (std::int64_t part = 1; part < parts; ++part) {
      const T* add = dq_parts + part * stride + head * width;
      for (std::int64_t c = 0; c < width; ++c) sum[c] += add[c];
    }
    const T lse = static_cast<const T*>(a.lse)[query * a.shape.heads + head];
    const bool undefined = std::isnan(lse) && !is_zero_row<T>(a.dout, a.shape, query, head);
    const T scale = undefined ? lse : static_cast<T>(a.shape.scale);
    store_row<T>(at(a.dq.data, a.shape.dtype, query * a.dq.token_stride + head * a.dq.head_stride),
                 a.shape.dtype, sum, a.shape.head_size, scale);
  }
}

// Queries go in rounds of kRound from each sequence, so that the parts of dq take memory for one round only.
// Tiles are visited in ascending order either way: rounds leave no trace in the result.
template <typename T>
void attend_backward_typed(const AttendBackwardArgs& args, const Parallel& parallel) {
  constexpr std::int64_t kRound = 2048;
  const Sequences& s = args.sequences;
  const std::int64_t kv_heads = args.shape.kv_heads;
  const std::int64_t parts = std::max<std::int64_t>(1, 8 / kv_heads);
  // About 512 rows a tile: their sums into dk and dv are one chain of roundings, and each tile adds once.
  const std::int64_t tile = std::clamp<std::int64_t>(512 / (args.shape.heads / kv_heads) / 16 * 16, 16, 256);
  const std::int64_t row = args.shape.heads * padded(args.shape.head_size);
  std::int64_t longest = 0;
  for (std::int64_t n = 0; n < s.count; ++n) longest = std::max(longest, s.queries(n));
  std::vector<AttendScratch<T>> scratch(static_cast<std::size_t>(parallel.workers()));
  std::vector<std::int64_t> place(static_cast<std::size_t>(s.count) +
                                  1);  // of a sequence's queries in the round
  Scratch dq_memory;
  for (std::int64_t begin = 0; begin < longest; begin += kRound) {
    const auto count = [&](std::int64_t n) {
      return std::clamp<std::int64_t>(s.queries(n) - begin, 0, kRound);
    };
    for (std::int64_t n = 0; n < s.count; ++n) {
      place[static_cast<std::size_t>(n) + 1] = place[static_cast<std::size_t>(n)] + count(n);
    }
    const std::int64_t stride = place.back() * row;
    T* dq_parts = dq_memory.get<T>(parts * stride);
    parallel.run(s.count * kv_heads * parts, [&](std::int64_t task, int worker) {
      const std::int64_t n = task / (kv_heads * parts);
      const std::int64_t part = task % parts;
      T* dq = dq_parts + part * stride + place[static_cast<std::size_t>(n)] * row;
      AttendBackwardTile<T> work(args, scratch[static_cast<std::size_t>(worker)], parts);
      for (std::int64_t i = 0; i < count(n); i += tile) {
        work.run({n, begin + i, std::min(tile, count(n) - i)}, task / parts % kv_heads, part, dq + i * row);
      }
    });
    constexpr std::int64_t kSplits = 8;
    parallel.run(s.count * kSplits, [&](std::int64_t task, int) {
      const std::int64_t n = task / kSplits;
      const std::int64_t first = task % kSplits * (kRound / kSplits);
      for (std::int64_t i = first; i < std::min(first + kRound / kSplits, count(n)); ++i) {
        sum_parts(args, s.q_begin[n] + begin + i, dq_parts + (place[static_cast<std::size_t>(n)] + i) * row,
                  parts, stride);
      }
    });
  }
}

void attend_backward_target(const AttendBackwardArgs& args, const Parallel& parallel) {
  if (args.shape.dtype == DType::f64) {
    attend_backward_typed<double>(args, parallel);
  } else {
    attend_backward_typed<float>(args, parallel);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(attend_backward_target);
void attend_backward_cpu(const AttendBackwardArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(attend_backward_target)(args, parallel);
}
}  // namespace gsa
#endif
