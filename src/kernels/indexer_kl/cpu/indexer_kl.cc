// indexer_kl on the CPU. Forward: a task is a tile of queries. Backward: a task is a sequence x every
// kParts-th tile of its queries with a dk of its own; the parts are added in order, so results do not depend
// on threads. Of a sample of queries, only its tiles are visited.
// Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/indexer_kl/cpu/indexer_kl.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <cmath>
#include <cstring>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/attention/query_tiles.h"
#include "kernels/indexer_kl/cpu/tile-inl.h"
#include "kernels/indexer_kl/indexer_kl_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

constexpr std::int64_t kParts = 8;

// sum of p (log p - score) and of p, for one block: sums in T, carried on in double by the caller.
template <typename T>
HWY_INLINE void divergence(const T* HWY_RESTRICT p, const T* HWY_RESTRICT score, std::int64_t n, double& gap,
                           double& mass) {
  const hn::ScalableTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto gaps = hn::Zero(d), masses = hn::Zero(d);
  for (std::int64_t i = 0; i < n; i += lanes) {
    const auto inside = hn::FirstN(d, static_cast<std::size_t>(std::min(lanes, n - i)));
    const auto q = hn::IfThenElseZero(inside, hn::LoadU(d, p + i));
    const auto s = hn::IfThenElseZero(inside, hn::LoadU(d, score + i));
    // p log p is 0 at 0; the smallest normal number keeps the logarithm finite there and NaN where it is NaN.
    const auto smallest = hn::Set(d, std::numeric_limits<T>::min());
    const auto log_q = hn::Log(d, hn::IfThenElse(hn::Lt(q, smallest), smallest, q));
    gaps = hn::MulAdd(q, hn::Sub(log_q, s), gaps);
    masses = hn::Add(masses, q);
  }
  gap += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, gaps)));
  mass += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, masses)));
}

template <typename T>
void kl_forward_tile(const IndexerKlArgs& a, const QueryTile& query_tile, KlScratch<T>& scratch) {
  struct Row {
    double gap = 0, mass = 0, maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  };
  KlTile<T> tile(a.in, scratch, query_tile);
  std::vector<Row> rows(static_cast<std::size_t>(tile.queries));
  const auto nothing = [](const KeyBlock&) {};
  tile.for_each(
      nothing,
      [&](std::int64_t i, const std::uint16_t*, std::int64_t n, const T* p) {
        Row& row = rows[static_cast<std::size_t>(i)];
        divergence(p, tile.score, n, row.gap, row.mass);
        T high = tile.score[0];
        for (std::int64_t j = 1; j < n; ++j) high = tile.score[j] > high ? tile.score[j] : high;
        const double maximum = std::max(row.maximum, static_cast<double>(high));
        row.sum *= std::exp(row.maximum - maximum);
        for (std::int64_t j = 0; j < n; ++j) tile.score[j] -= static_cast<T>(maximum);
        row.sum += exp_sum(tile.score, n);
        row.maximum = maximum;
      },
      nothing);
  for (std::int64_t i = 0; i < tile.queries; ++i) {
    const Row& row = rows[static_cast<std::size_t>(i)];
    // An empty support (the selection of a query with NaN scores) gives NaN.
    const double lse =
        row.sum == 0 ? std::numeric_limits<double>::quiet_NaN() : row.maximum + std::log(row.sum);
    const double loss = row.gap + lse * row.mass;  // below 0 only in rounding
    static_cast<T*>(a.index_lse)[tile.place.query + i] = static_cast<T>(lse);
    static_cast<T*>(a.loss)[tile.place.query + i] = static_cast<T>(loss < 0 ? 0 : loss);
  }
}

// Everything of one tile of queries; dk_part [keys, head_size] and dbias_part [heads] belong to the task.
template <typename T>
void kl_backward_tile(const IndexerKlBackwardArgs& a, const QueryTile& query_tile, KlScratch<T>& scratch,
                      T* dk_part, double* dbias_part) {
  KlTile<T> tile(a.in, scratch, query_tile);
  const Indexer& x = tile.x;
  const std::int64_t width = tile.index_width;
  const std::int64_t heads = tile.groups * kTileRows;
  T* dq = scratch.index_dq.template get<T>(tile.queries * heads * width);
  T* dw = scratch.dw.template get<T>(tile.queries * heads);
  T* dk = scratch.index_dk.template get<T>(tile.block() * width);
  T* grad = scratch.grad.template get<T>(tile.block());
  std::fill_n(dq, tile.queries * heads * width, T(0));
  std::fill_n(dw, tile.queries * heads, T(0));
  HWY_ALIGN T one[kGroupSize];
  std::fill_n(one, kGroupSize, T(1));
  const bool is_sigmoid = x.form == ScoreForm::sigmoid;
  const T scale = static_cast<T>(x.scale);  // of the sums in dq and dk
  tile.for_each([&](const KeyBlock& keys) { std::fill_n(dk, keys.count() * width, T(0)); },
                [&](std::int64_t i, const std::uint16_t* slots, std::int64_t n, const T* p) {
                  const std::int64_t query = tile.place.query + i;
                  const T lse = static_cast<const T*>(a.index_lse)[query];
                  const T weight = static_cast<const T*>(a.weight)[query];
                  for (std::int64_t j = 0; j < n; ++j) grad[j] = tile.score[j] - lse;
                  exp_row(grad, n);
                  for (std::int64_t j = 0; j < n; ++j) grad[j] = weight * (grad[j] - p[j]);
                  for (std::int64_t g = 0; g < tile.groups; ++g) {
                    const std::int64_t head = i * heads + g * kTileRows;
                    T* act = tile.group_act(g);
                    for (int r = 0; r < tile.group_rows(g); ++r) {
                      T sum_w = 0, sum_b = 0;
                      for (std::int64_t j = 0; j < n; ++j) {
                        T& y = act[tile_index(r, j)];
                        sum_w += grad[j] * y;
                        const T slope = is_sigmoid ? y * (T(1) - y) : (y > T(0) ? T(1) : T(0));
                        y = grad[j] * tile.index_w[head + r] * slope;
                        sum_b += y;
                      }
                      dw[head + r] += sum_w;
                      dbias_part[g * kTileRows + r] += static_cast<double>(sum_b);
                    }
                    combine(act, one, tile.group_rows(g), tile.index_k, slots, n, width, dq + head * width);
                    spread(act, tile.index_q + head * width, tile.group_rows(g), slots, n, width, dk);
                  }
                },
                [&](const KeyBlock& keys) {
                  for (std::int64_t j = 0; j < keys.count(); ++j) {
                    T* row = dk_part + keys.position(j) * x.head_size;
                    for (std::int64_t c = 0; c < x.head_size; ++c) row[c] += scale * dk[j * width + c];
                  }
                });
  const DType type = a.in.shape.dtype;
  for (std::int64_t i = 0; i < tile.queries; ++i) {
    const std::int64_t query = tile.place.query + i;
    // A query with an empty support gave NaN; so do the gradients of what is its own, and of the bias, unless
    // nobody asks for its loss. No key took part.
    const T lse = static_cast<const T*>(a.index_lse)[query];
    const bool undefined = std::isnan(lse) && static_cast<const T*>(a.weight)[query] != T(0);
    const T factor = undefined ? lse : T(1);
    if (undefined) {
      for (std::int64_t j = 0; j < x.heads; ++j) dbias_part[j] = static_cast<double>(lse);
    }
    for (std::int64_t j = 0; j < x.heads; ++j) {
      store_row<T>(at(a.dq.data, type, query * a.dq.token_stride + j * a.dq.head_stride), type,
                   dq + (i * heads + j) * width, x.head_size, factor * scale);
      store_row<T>(at(a.dw.data, type, query * a.dw.token_stride + j * a.dw.head_stride), type,
                   dw + i * heads + j, 1, factor);
    }
  }
}

// The tiles that the loss is taken of, sequence after sequence.
HWY_INLINE std::vector<QueryTile> kl_tiles(const IndexerKlInputs& in, std::int64_t size) {
  if (in.tiles.number == nullptr) return make_tiles(in.sequences, size);
  std::vector<QueryTile> tiles;
  for (const SampledTile& tile : sampled_tiles(in.sequences, in.tiles)) {
    tiles.push_back({tile.sequence, tile.first_query - in.sequences.q_begin[tile.sequence], tile.queries});
  }
  return tiles;
}

HWY_INLINE void zero_rows(const Rows& rows, DType type, std::int64_t tokens, std::int64_t heads,
                          std::int64_t size) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::memset(at(rows.data, type, t * rows.token_stride + h * rows.head_stride), 0,
                  static_cast<std::size_t>(size) * size_of(type));
    }
  }
}

template <typename T>
void indexer_kl_typed(const IndexerKlArgs& a, const Parallel& parallel) {
  const std::vector<QueryTile> tiles = kl_tiles(a.in, KlTile<T>::kQueries);
  if (a.in.tiles.number != nullptr) {
    std::fill_n(static_cast<T*>(a.loss), a.in.sequences.total_queries(), T(0));
    std::fill_n(static_cast<T*>(a.index_lse), a.in.sequences.total_queries(), T(0));
  }
  std::vector<KlScratch<T>> scratch(static_cast<std::size_t>(parallel.workers()));
  parallel.run(static_cast<std::int64_t>(tiles.size()), [&](std::int64_t task, int worker) {
    // The last tiles see the most keys: they go first.
    kl_forward_tile(a, tiles[tiles.size() - 1 - static_cast<std::size_t>(task)],
                    scratch[static_cast<std::size_t>(worker)]);
  });
}

template <typename T>
void indexer_kl_backward_typed(const IndexerKlBackwardArgs& a, const Parallel& parallel) {
  const Sequences& s = a.in.sequences;
  const Indexer& x = a.in.indexer;
  std::vector<KlScratch<T>> scratch(static_cast<std::size_t>(parallel.workers()));
  const std::int64_t part_size = s.total_keys() * x.head_size;
  const std::int64_t heads = (x.heads + kTileRows - 1) / kTileRows * kTileRows;
  Scratch dk_memory;
  T* dk_parts = dk_memory.get<T>(kParts * part_size);
  std::vector<double> dbias_parts(static_cast<std::size_t>(s.count * kParts * heads), 0.0);
  const std::vector<QueryTile> tiles = kl_tiles(a.in, KlTile<T>::kQueries);
  std::vector<std::size_t> first_tile(static_cast<std::size_t>(s.count) + 1, 0);  // of each sequence
  for (const QueryTile& tile : tiles) ++first_tile[static_cast<std::size_t>(tile.sequence) + 1];
  for (std::size_t n = 1; n < first_tile.size(); ++n) first_tile[n] += first_tile[n - 1];
  if (a.in.tiles.number != nullptr) {
    zero_rows(a.dq, a.in.shape.dtype, s.total_queries(), x.heads, x.head_size);
    zero_rows(a.dw, a.in.shape.dtype, s.total_queries(), x.heads, 1);
  }
  parallel.run(s.count * kParts, [&](std::int64_t task, int worker) {
    const std::int64_t n = task / kParts, part = task % kParts;
    T* dk = dk_parts + part * part_size + s.k_begin[n] * x.head_size;
    std::fill_n(dk, s.keys(n) * x.head_size, T(0));
    const std::size_t end = first_tile[static_cast<std::size_t>(n) + 1];
    for (std::size_t i = first_tile[static_cast<std::size_t>(n)] + static_cast<std::size_t>(part); i < end;
         i += kParts) {
      kl_backward_tile(a, tiles[i], scratch[static_cast<std::size_t>(worker)], dk,
                       dbias_parts.data() + task * heads);
    }
  });
  constexpr std::int64_t kKeysAtOnce = 1024;
  parallel.run((s.total_keys() + kKeysAtOnce - 1) / kKeysAtOnce, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kKeysAtOnce * x.head_size;
    const std::int64_t end = std::min(part_size, begin + kKeysAtOnce * x.head_size);
    T* dk = static_cast<T*>(a.dk);
    for (std::int64_t part = 0; part < kParts; ++part) {
      for (std::int64_t i = begin; i < end; ++i) dk[i] += dk_parts[part * part_size + i];
    }
  });
  if (a.dbias == nullptr) return;
  for (std::int64_t j = 0; j < x.heads; ++j) {
    double sum = 0;
    for (std::int64_t task = 0; task < s.count * kParts; ++task) {
      sum += dbias_parts[static_cast<std::size_t>(task * heads + j)];
    }
    static_cast<T*>(a.dbias)[j] += static_cast<T>(sum);
  }
}

void indexer_kl_target(const IndexerKlArgs& a, const Parallel& parallel) {
  a.in.shape.dtype == DType::f64 ? indexer_kl_typed<double>(a, parallel)
                                 : indexer_kl_typed<float>(a, parallel);
}
void indexer_kl_backward_target(const IndexerKlBackwardArgs& a, const Parallel& parallel) {
  a.in.shape.dtype == DType::f64 ? indexer_kl_backward_typed<double>(a, parallel)
                                 : indexer_kl_backward_typed<float>(a, parallel);
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(indexer_kl_target);
HWY_EXPORT(indexer_kl_backward_target);
void indexer_kl_cpu(const IndexerKlArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(indexer_kl_target)(args, parallel);
}
void indexer_kl_backward_cpu(const IndexerKlBackwardArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(indexer_kl_backward_target)(args, parallel);
}
}  // namespace gsa
#endif
