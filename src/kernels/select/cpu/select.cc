// select on the CPU: one pass over the keys.
//
// A chunk of queries meets the keys strip by strip; their scores stay in cache, and when a row is complete
// its moments, budget, threshold and mask follow at once. Where there are too few chunks to feed the threads
// (decoding), threads share the keys of several chunks instead. Both ways give the same bits.
// Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/select/cpu/select.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/common/key_block.h"
#include "kernels/common/scratch.h"
#include "kernels/select/cpu/score-inl.h"
#include "kernels/select/cpu/topk-inl.h"
#include "kernels/select/select_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

// Queries of a chunk: 32 pay for transposing the keys; fewer, but at least 4, where they would have more than
// 4 M scores.
inline std::int64_t chunk_queries(const Sequences& s) {
  const std::int64_t longest = std::max<std::int64_t>(s.longest_keys(), 1);
  return std::clamp<std::int64_t>((std::int64_t{1} << 22) / longest, 4, 32);
}

template <typename T>
struct ChunkMemory {
  Scratch query, strip, scores, few;
  T guess = 0;
};

// The scores of one chunk of queries. T: of sums. P: of products.
template <typename T, typename P = T>
class Chunk {
 public:
  Chunk(const Indexer& x, DType type, const Sequences& s, const QueryTile& tile, ChunkMemory<T>& memory)
      : x_(x), tile_(tile), place_(s, tile), keys_(x, type, tile.sequence, place_.key) {
    stride_ = (place_.position + tile.count + kStrip - 1) / kStrip * kStrip;
    scores_ = memory.scores.template get<T>(tile.count * stride_);
    T* query = memory.query.template get<T>(tile.count * score_query_size(x));
    queries_.reserve(static_cast<std::size_t>(tile.count));
    for (std::int64_t i = 0; i < tile.count; ++i) {
      T* memory_of_query = query + i * score_query_size(x);
      if constexpr (std::is_same_v<T, P>) {
        queries_.push_back(load_score_query<T>(x, type, place_.query + i, memory_of_query));
      } else {
        queries_.push_back(load_pair_query(x, place_.query + i, memory_of_query));
      }
    }
  }

  std::int64_t strips() const { return stride_ / kStrip; }
  std::int64_t visible(std::int64_t i) const { return place_.position + i + 1; }
  std::int64_t query(std::int64_t i) const { return place_.query + i; }
  std::int64_t count() const { return tile_.count; }
  std::int64_t scores() const { return tile_.count * stride_; }
  const T* row(std::int64_t i) const { return scores_ + i * stride_; }

  // Scores of every query against strips [begin, end).
  void score(std::int64_t begin, std::int64_t end, Scratch& memory) {
    using Value = std::conditional_t<std::is_same_v<T, P>, T, std::uint32_t>;
    Value* strip = memory.get<Value>(strip_values(x_.head_size));
    const std::int64_t all = place_.position + tile_.count;
    for (std::int64_t s = begin; s < end; ++s) {
      load_strip(keys_, s * kStrip, std::min(kStrip, all - s * kStrip), strip);
      const std::int64_t left = s + 1 < end ? all - (s + 1) * kStrip : 0;
      const NextStrip next(keys_, (s + 1) * kStrip, std::min(kStrip, left)), nothing;
      bool asked = false;
      for (std::int64_t i = 0; i < tile_.count; ++i) {
        if (visible(i) <= s * kStrip) continue;
        score_strip(x_, queries_[static_cast<std::size_t>(i)], strip, asked ? nothing : next,
                    scores_ + i * stride_ + s * kStrip);
        asked = true;
      }
    }
  }

 private:
  const Indexer& x_;
  const QueryTile tile_;
  const TilePlace place_;
  const IndexKeys keys_;
  std::int64_t stride_;
  T* scores_;
  std::vector<ScoreQuery<P>> queries_;
};

// Scores of these chunks by all threads together, then their rows.
template <typename T, typename P, class Row>
void share_chunks(std::vector<Chunk<T, P>>& chunks, std::vector<ChunkMemory<T>>& memory,
                  const Parallel& parallel, const Row& row) {
  constexpr std::int64_t kStripsAtOnce = 32;
  struct Task {
    Chunk<T, P>* chunk;
    std::int64_t first;  // strip, or row
  };
  std::vector<Task> strips, rows;
  for (Chunk<T, P>& chunk : chunks) {
    for (std::int64_t s = 0; s < chunk.strips(); s += kStripsAtOnce) strips.push_back({&chunk, s});
    for (std::int64_t i = 0; i < chunk.count(); ++i) rows.push_back({&chunk, i});
  }
  parallel.run(static_cast<std::int64_t>(strips.size()), [&](std::int64_t task, int worker) {
    const auto [chunk, first] = strips[static_cast<std::size_t>(task)];
    chunk->score(first, std::min(chunk->strips(), first + kStripsAtOnce),
                 memory[static_cast<std::size_t>(worker)].strip);
  });
  parallel.run(static_cast<std::int64_t>(rows.size()), [&](std::int64_t task, int worker) {
    const auto [chunk, i] = rows[static_cast<std::size_t>(task)];
    row(*chunk, i, memory[static_cast<std::size_t>(worker)]);
  });
}

// Scores every query of every sequence, then calls row(chunk, i, memory) for each.
template <typename T, typename P, class Row>
void for_rows(const Indexer& x, DType type, const Sequences& s, const Parallel& parallel, const Row& row) {
  constexpr std::int64_t kSharedScores = std::int64_t{1} << 22;  // that chunks shared by all threads may have
  const std::vector<QueryTile> tiles = make_tiles(s, chunk_queries(s));
  std::vector<ChunkMemory<T>> memory(static_cast<std::size_t>(parallel.workers()));
  if (static_cast<std::int64_t>(tiles.size()) >= 4 * std::int64_t{parallel.workers()}) {
    parallel.run(static_cast<std::int64_t>(tiles.size()), [&](std::int64_t task, int worker) {
      // The last chunks see the most keys: they go first.
      const QueryTile& tile = tiles[tiles.size() - 1 - static_cast<std::size_t>(task)];
      ChunkMemory<T>& mine = memory[static_cast<std::size_t>(worker)];
      Chunk<T, P> chunk(x, type, s, tile, mine);
      chunk.score(0, chunk.strips(), mine.strip);
      for (std::int64_t i = 0; i < chunk.count(); ++i) row(chunk, i, mine);
    });
    return;
  }
  std::vector<ChunkMemory<T>> shared(tiles.size());
  std::vector<Chunk<T, P>> chunks;
  std::int64_t scores = 0;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    chunks.emplace_back(x, type, s, tiles[i], shared[chunks.size()]);
    scores += chunks.back().scores();
    if (scores < kSharedScores && i + 1 < tiles.size()) continue;
    share_chunks(chunks, memory, parallel, row);
    chunks.clear();
    scores = 0;
  }
}

// Threshold, tie cut and budget of one complete row; writes what is wanted.
template <typename T, typename P>
void select_row(const SelectArgs& a, const Chunk<T, P>& chunk, std::int64_t i, ChunkMemory<T>& memory) {
  const std::int64_t query = chunk.query(i);
  const std::int64_t visible = chunk.visible(i);
  const T* scores = chunk.row(i);
  const Moments<T> m = moments(scores, visible);
  T variance = static_cast<T>(m.variance);
  T threshold = -std::numeric_limits<T>::infinity();
  std::int64_t k = 0;
  std::int64_t cut = visible - 1;
  if (!std::isfinite(m.mean) || !std::isfinite(m.variance)) {
    variance = threshold = std::numeric_limits<T>::quiet_NaN();
  } else {
    k = budget_for(a.budget, m.variance, visible);
    if (k < visible) {
      threshold = kth_largest(scores, visible, k, m, memory.guess, memory.few.template get<T>(kFew + 64));
      threshold += T(0);  // one zero, not two: which of them was found depends on the guess
      memory.guess = threshold;
      cut = tie_cut_of(scores, visible, k, threshold);
    }
  }
  if (a.mask.words != nullptr) {
    write_mask(scores, visible, threshold, cut, a.mask.words + query * a.mask.words_per_query,
               a.mask.words_per_query);
  }
  if (a.k_t != nullptr) a.k_t[query] = static_cast<std::int32_t>(k);
  if (a.variance != nullptr) static_cast<T*>(a.variance)[query] = variance;
  if (a.threshold != nullptr) static_cast<T*>(a.threshold)[query] = threshold;
  if (a.tie_cut != nullptr) a.tie_cut[query] = static_cast<std::int32_t>(cut);
}

template <typename T, typename P>
void select_typed(const SelectArgs& a, const Parallel& parallel) {
  for_rows<T, P>(a.indexer, a.dtype, a.sequences, parallel,
                 [&](const Chunk<T, P>& chunk, std::int64_t i, ChunkMemory<T>& memory) {
                   select_row(a, chunk, i, memory);
                 });
}

template <typename T, typename P>
void select_mask_typed(const SelectMaskArgs& a, const Parallel& parallel) {
  for_rows<T, P>(a.indexer, a.dtype, a.sequences, parallel,
                 [&](const Chunk<T, P>& chunk, std::int64_t i, ChunkMemory<T>&) {
                   const std::int64_t query = chunk.query(i);
                   write_mask(chunk.row(i), chunk.visible(i), static_cast<const T*>(a.threshold)[query],
                              a.tie_cut[query], a.mask.words + query * a.mask.words_per_query,
                              a.mask.words_per_query);
                 });
}

template <typename T, typename P>
void index_scores_typed(const IndexScoresArgs& a, const Parallel& parallel) {
  for_rows<T, P>(a.indexer, a.dtype, a.sequences, parallel,
                 [&](const Chunk<T, P>& chunk, std::int64_t i, ChunkMemory<T>&) {
                   T* out = static_cast<T*>(a.scores) + chunk.query(i) * a.scores_stride;
                   std::copy_n(chunk.row(i), chunk.visible(i), out);
                   std::fill(out + chunk.visible(i), out + a.scores_stride,
                             -std::numeric_limits<T>::infinity());
                 });
}

// Calls run.operator()<type of sums, type of products>().
template <class Run>
void for_types(const Indexer& x, DType dtype, const Run& run) {
  if (dtype == DType::f64) return run.template operator()<double, double>();
#if GSA_BF16_PRODUCTS
  const bool as_stored = dtype == DType::bf16 && x.k_scale == nullptr;
  if (as_stored && bf16_products()) return run.template operator()<float, Bf16>();
#else
  (void)x;
#endif
  run.template operator()<float, float>();
}

void select_target(const SelectArgs& a, const Parallel& parallel) {
  for_types(a.indexer, a.dtype, [&]<typename T, typename P>() { select_typed<T, P>(a, parallel); });
}
void select_mask_target(const SelectMaskArgs& a, const Parallel& parallel) {
  for_types(a.indexer, a.dtype, [&]<typename T, typename P>() { select_mask_typed<T, P>(a, parallel); });
}
void index_scores_target(const IndexScoresArgs& a, const Parallel& parallel) {
  for_types(a.indexer, a.dtype, [&]<typename T, typename P>() { index_scores_typed<T, P>(a, parallel); });
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(select_target);
HWY_EXPORT(select_mask_target);
HWY_EXPORT(index_scores_target);
void select_cpu(const SelectArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(select_target)(args, parallel);
}
void select_mask_cpu(const SelectMaskArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(select_mask_target)(args, parallel);
}
void index_scores_cpu(const IndexScoresArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(index_scores_target)(args, parallel);
}
}  // namespace gsa
#endif
