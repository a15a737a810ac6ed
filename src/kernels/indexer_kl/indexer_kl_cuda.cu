// indexer_kl on CUDA: cuts the queries into tiles and the tiles into chunks whose p fits in scratch memory of
// bounded size, and runs the kernels of kl_kernels.h chunk after chunk.
#include "kernels/indexer_kl/indexer_kl_cuda.h"

#include <algorithm>
#include <vector>

#include "kernels/common/cuda_check.h"
#include "kernels/common/query_tiles.h"
#include "kernels/indexer_kl/kl_checks.h"
#include "kernels/indexer_kl/kl_kernels.h"

namespace gsa::cuda {
namespace {

using kl::Chunk;
using kl::Group;
using kl::Part;

// What a chunk's scratch memory may take. Lists have room for the longest union there could be, so most of
// theirs stays unused.
constexpr std::size_t kDenseBytes = std::size_t(112) << 20, kListBytes = std::size_t(512) << 20,
                      kSampledBytes = std::size_t(256) << 20;

kl::Source source(const ConstRows& rows, std::int64_t size, bool heads) {
  const auto aligned = [](std::int64_t stride) { return stride % 8 == 0; };
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 &&
                          aligned(rows.token_stride) && (!heads || aligned(rows.head_stride)) &&
                          aligned(size);
  return {rows.data, rows.token_stride, heads ? rows.head_stride : 0, static_cast<int>(size), is_aligned};
}

// Sizes in units of what a chunk holds.
struct Needs {
  int tile_queries = 0;
  int split = 0;                // entries of a split
  std::size_t entry_bytes = 0;  // for each entry of a tile
  std::size_t split_bytes = 0;  // for each query and split
  std::size_t tile_bytes = 0;   // for each tile
  std::size_t part_bytes = 0;   // for each entry of a part
  std::size_t limit = kDenseBytes;

  static std::size_t stride(int entries) {
    return static_cast<std::size_t>((entries + kl::kEntryStep - 1) / kl::kEntryStep) * kl::kEntryStep;
  }
  std::size_t splits(int entries) const { return static_cast<std::size_t>((entries + split - 1) / split); }
  bool fits(int tiles, int parts, int entries) const {
    const std::size_t one = stride(entries) * entry_bytes + tile_bytes +
                            static_cast<std::size_t>(tile_queries) * splits(entries) * split_bytes;
    return static_cast<std::size_t>(tiles) * one +
               static_cast<std::size_t>(parts) * stride(entries) * part_bytes <=
           limit;
  }
};

// A chunk, known to the host.
struct Range {
  int first_tile = 0, tiles = 0;
  int entries = 0;
  int first_part = 0, parts = 0;
  int first_group = 0, groups = 0;
};

// The tiles of all sequences, in chunks.
struct Plan {
  std::vector<UnionTile> tiles;
  std::vector<Range> ranges;
  std::vector<Part> parts;
  std::vector<Group> groups;
  // The most of a chunk: splits and entries of all its queries (with padding), entries of all its parts,
  // tiles.
  std::size_t row_splits = 0;
  std::size_t row_entries = 0, part_entries = 0, most_tiles = 0;
};

// Every tile, cut where positions are multiples of its size.
std::vector<UnionTile> all_tiles(const Sequences& sequences, int tile_queries) {
  std::vector<UnionTile> tiles;
  for (int n = 0; n < static_cast<int>(sequences.count); ++n) {
    const int first = static_cast<int>(sequences.first_position(n));
    const int end = first + static_cast<int>(sequences.queries(n));
    for (int position = first; position < end;) {
      const int next = std::min(end, (position / tile_queries + 1) * tile_queries);
      tiles.push_back({.first_query = static_cast<int>(sequences.q_begin[n]) + position - first,
                       .queries = next - position,
                       .first_position = position,
                       .k_begin = static_cast<int>(sequences.k_begin[n]),
                       .count = next,
                       .sequence = n});
      position = next;
    }
  }
  return tiles;
}

std::vector<UnionTile> tiles_of(const Sequences& sequences, const QueryTiles& sample) {
  static_assert(kQueryTile == kl::kDenseQueries);
  std::vector<UnionTile> tiles;
  for (const SampledTile& tile : sampled_tiles(sequences, sample)) {
    tiles.push_back({.first_query = static_cast<int>(tile.first_query),
                     .queries = static_cast<int>(tile.queries),
                     .first_position = static_cast<int>(tile.first_position),
                     .k_begin = static_cast<int>(sequences.k_begin[tile.sequence]),
                     .count = static_cast<int>(tile.first_position + tile.queries),
                     .sequence = static_cast<int>(tile.sequence)});
  }
  return tiles;
}

// capacity: entries of a list; 0 where dense.
Plan make_plan(const IndexerKlInputs& in, int capacity, const Needs& needs) {
  Plan plan;
  const bool sampled = in.tiles.number != nullptr;
  plan.tiles = sampled ? tiles_of(in.sequences, in.tiles) : all_tiles(in.sequences, needs.tile_queries);
  const int count = static_cast<int>(plan.tiles.size());
  const bool listed = capacity > 0;
  // Tiles of a sample lie too far apart for windows: a few in a row make a part.
  constexpr int kSampledPart = 4;
  const auto same_part = [&](int a, int b) {
    return !listed && plan.tiles[a].sequence == plan.tiles[b].sequence &&
           (sampled
                ? b - a < kSampledPart
                : kl::window_of(plan.tiles[a].first_position) == kl::window_of(plan.tiles[b].first_position));
  };
  // Chunks are cut between parts.
  for (int begin = 0; begin < count;) {
    Range range{.first_tile = begin,
                .first_part = static_cast<int>(plan.parts.size()),
                .first_group = static_cast<int>(plan.groups.size())};
    while (begin < count) {
      int end = begin + 1;
      while (end < count && same_part(begin, end)) ++end;
      const UnionTile& last = plan.tiles[end - 1];
      const int entries = std::max(range.entries, listed ? capacity : last.count);
      if (range.tiles > 0 && !needs.fits(end - range.first_tile, range.parts + 1, entries)) break;
      range.entries = entries;
      if (range.parts == 0 || last.sequence != plan.tiles[begin - 1].sequence) {
        plan.groups.push_back({.first_part = range.parts, .parts = 0, .keys = 0, .k_begin = last.k_begin});
        ++range.groups;
      }
      plan.parts.push_back(
          {.first_tile = range.tiles, .tiles = end - begin, .keys = last.count, .k_begin = last.k_begin});
      ++plan.groups.back().parts;
      plan.groups.back().keys = last.count;
      range.tiles += end - begin;
      ++range.parts;
      begin = end;
    }
    plan.ranges.push_back(range);
    const std::size_t tiles = static_cast<std::size_t>(range.tiles);
    const std::size_t rows = tiles * static_cast<std::size_t>(needs.tile_queries);
    plan.most_tiles = std::max(plan.most_tiles, tiles);
    plan.row_splits = std::max(plan.row_splits, rows * needs.splits(range.entries));
    plan.row_entries = std::max(plan.row_entries, rows * Needs::stride(range.entries));
    plan.part_entries =
        std::max(plan.part_entries, static_cast<std::size_t>(range.parts) * Needs::stride(range.entries));
  }
  return plan;
}

// What forward and backward share: the inputs as kernels see them, and the walk over the chunks.
class Run {
 public:
  Run(const char* op, const IndexerKlInputs& in, bool backward, const Context& context)
      : in_(in), context_(context), listed_(in.mask.words != nullptr) {
    const AttendShape& shape = in.shape;
    if (shape.dtype != DType::bf16 && shape.dtype != DType::f16) {
      bad_argument(op, "dtype", "bfloat16 or float16 on a CUDA device", name_of(shape.dtype));
    }
    check_device(op, context.device);
    sequences_ = upload(in.sequences, context);
    attention_.q = source(in.q, shape.head_size, true);
    attention_.k = source(in.k, shape.head_size, true);
    attention_.lse = static_cast<const float*>(in.lse);
    attention_.heads = static_cast<int>(shape.heads);
    attention_.kv_heads = static_cast<int>(shape.kv_heads);
    attention_.group = attention_.heads / attention_.kv_heads;
    attention_.scale = static_cast<float>(shape.scale * 1.4426950408889634);
    const Indexer& x = in.indexer;
    indexer.q = source(x.q, x.head_size, true);
    indexer.k = source(x.k, x.head_size, false);
    indexer.w = x.w;
    indexer.bias = x.bias;
    indexer.heads = static_cast<int>(x.heads);
    indexer.scale = static_cast<float>(x.scale);
    indexer.relu = x.form == ScoreForm::relu;
    needs.tile_queries = kl::tile_queries(listed_);
    needs.split = kl::split_entries(listed_, backward);
    needs.entry_bytes = static_cast<std::size_t>(needs.tile_queries) * sizeof(float);  // p
    if (in.tiles.number != nullptr) needs.limit = kSampledBytes;
    if (listed_) {
      needs.limit = kListBytes;
      needs.entry_bytes += sizeof(int) + sizeof(std::uint64_t);
      const std::int64_t keys = sequences_.longest_keys;
      const std::int64_t bound =
          in.mask.max_selected == 0 ? keys : std::min(keys, in.mask.max_selected * needs.tile_queries);
      capacity_ = static_cast<int>((bound + 63) / 64 * 64);
    }
  }

  DType dtype() const { return in_.shape.dtype; }
  bool listed() const { return listed_; }
  const DeviceSequences& sequences() const { return sequences_; }
  // On the device, once there are chunks; null: all queries count.
  const UnionTile* sample() const { return in_.tiles.number != nullptr ? tiles_ : nullptr; }

  // After the needs are known.
  void make_chunks() {
    plan = make_plan(in_, capacity_, needs);
    if (plan.tiles.empty()) return;
    p_ = context_.workspace->array<float>(plan.row_entries);
    if (listed_) return;
    static_assert(sizeof(UnionTile) == 6 * sizeof(int));
    tiles_ = reinterpret_cast<const UnionTile*>(
        upload_words(reinterpret_cast<const int*>(plan.tiles.data()), plan.tiles.size() * 6, context_));
  }

  // Calls body(chunk, range) for each chunk, after its p.
  template <typename Body>
  void for_each_chunk(const Body& body) {
    UnionPlan first;
    for (const Range& range : plan.ranges) {
      Chunk chunk{.tiles = range.tiles, .entries = range.entries, .split = needs.split, .p = p_};
      if (listed_) {
        const bool again = &range != plan.ranges.data();
        const UnionPlan lists =
            make_union_plan(in_.mask, in_.sequences, sequences_, needs.tile_queries, UnionOrder::causal,
                            range.first_tile, range.tiles, context_, again ? &first : nullptr);
        if (!again) first = lists;
        chunk.tile = lists.tile;
        chunk.keys = lists.keys;
        chunk.bits = lists.bits;
        chunk.capacity = lists.capacity;
      } else {
        chunk.tile = tiles_ + range.first_tile;
      }
      chunk.stride = static_cast<int>(Needs::stride(range.entries));
      kl::target(dtype(), attention_, chunk, context_);
      body(chunk, range);
    }
  }

  kl::IndexerRows indexer;
  Needs needs;
  Plan plan;

 private:
  const IndexerKlInputs& in_;
  const Context& context_;
  const bool listed_;
  DeviceSequences sequences_;
  kl::Attention attention_;
  int capacity_ = 0;
  float* p_ = nullptr;
  const UnionTile* tiles_ = nullptr;
};

}  // namespace

void indexer_kl(const IndexerKlArgs& args, const Context& context) {
  constexpr const char* kOp = "indexer_kl";
  if (!gsa::kl::check_forward(kOp, args)) return;
  Run run(kOp, args.in, false, context);
  run.needs.split_bytes = sizeof(float4);
  run.make_chunks();
  if (args.in.tiles.number != nullptr) {
    const std::size_t bytes = static_cast<std::size_t>(run.sequences().total_queries) * sizeof(float);
    kl::set_zero(args.loss, bytes, context);
    kl::set_zero(args.index_lse, bytes, context);
    if (run.plan.tiles.empty()) return;
  }
  float4* const sums = context.workspace->array<float4>(run.plan.row_splits);
  run.for_each_chunk([&](const Chunk& chunk, const Range&) {
    kl::row_sums(run.dtype(), run.indexer, chunk, sums, context);
    kl::combine_loss(chunk, sums, static_cast<float*>(args.loss), static_cast<float*>(args.index_lse),
                     context);
  });
}

void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Context& context) {
  constexpr const char* kOp = "indexer_kl_backward";
  if (!gsa::kl::check_backward(kOp, args)) return;
  Run run(kOp, args.in, true, context);
  const kl::IndexerRows& indexer = run.indexer;
  Workspace& workspace = *context.workspace;
  const std::size_t padded = static_cast<std::size_t>(kl::padded_index_size(indexer.q.size));
  const std::size_t heads = static_cast<std::size_t>(indexer.heads);
  // One block has all heads: it may write dI where it read p.
  const int heads_of_block = kl::gradient_heads(static_cast<int>(padded));
  const bool in_place = indexer.heads <= heads_of_block;
  // Several blocks share the heads of larger indexers; longer splits keep blocks and bytes as they are.
  run.needs.split *= std::max(1, indexer.heads / heads_of_block);
  run.needs.split_bytes = heads * (padded + 2) * sizeof(float);
  if (!in_place) run.needs.entry_bytes += static_cast<std::size_t>(run.needs.tile_queries) * sizeof(float);
  const std::size_t place_stride = static_cast<std::size_t>(run.sequences().longest_keys);
  run.needs.part_bytes = padded * sizeof(float);
  if (run.listed()) run.needs.tile_bytes = place_stride * sizeof(int);
  run.make_chunks();

  const std::size_t queries = static_cast<std::size_t>(run.sequences().total_queries);
  float* const dbias_rows = workspace.array<float>(queries * heads);
  if (args.in.tiles.number != nullptr) {
    kl::zero_rows(args.dq, run.sequences().total_queries, indexer.heads, indexer.q.size, context);
    kl::zero_rows(args.dw, run.sequences().total_queries, indexer.heads, 1, context);
    kl::set_zero(dbias_rows, queries * heads * sizeof(float), context);
    if (run.plan.tiles.empty()) return;
  }
  auto* const bad_key = workspace.array<std::uint8_t>(static_cast<std::size_t>(run.sequences().total_keys));
  auto* const bad_query = workspace.array<std::uint8_t>(queries);
  int* const query_exponent = workspace.array<int>(queries);
  int* const sequence_exponent = workspace.array<int>(static_cast<std::size_t>(run.sequences().count));
  kl::row_facts(run.dtype(), indexer, run.sequences(), run.sample(), static_cast<int>(run.plan.tiles.size()),
                static_cast<const float*>(args.weight), bad_key, bad_query, query_exponent, sequence_exponent,
                context);
  const kl::RowFacts facts{bad_key, bad_query, query_exponent, sequence_exponent};

  kl::Gradients gradients{.index_lse = static_cast<const float*>(args.index_lse),
                          .weight = static_cast<const float*>(args.weight),
                          .dq = args.dq,
                          .dw = args.dw,
                          .dk = static_cast<float*>(args.dk),
                          .dbias_rows = dbias_rows,
                          .dq_part = workspace.array<float>(run.plan.row_splits * heads * padded),
                          .dw_part = workspace.array<float>(run.plan.row_splits * heads * 2),
                          .dk_part = workspace.array<float>(run.plan.part_entries * padded)};
  float* const d_score = in_place ? nullptr : workspace.array<float>(run.plan.row_entries);
  gradients.with_keys = run.listed() && in_place && kl::with_keys(static_cast<int>(padded));
  if (run.listed()) {
    gradients.place = workspace.array<int>(run.plan.most_tiles * place_stride);
    gradients.place_stride = static_cast<int>(place_stride);
  }
  static_assert(sizeof(Part) == 4 * sizeof(int) && sizeof(Group) == 4 * sizeof(int));
  const auto* const parts = reinterpret_cast<const Part*>(
      upload_words(reinterpret_cast<const int*>(run.plan.parts.data()), run.plan.parts.size() * 4, context));
  const auto* const groups = reinterpret_cast<const Group*>(upload_words(
      reinterpret_cast<const int*>(run.plan.groups.data()), run.plan.groups.size() * 4, context));
  run.for_each_chunk([&](const Chunk& chunk, const Range& range) {
    gradients.d_score = in_place ? chunk.p : d_score;
    gradients.part = parts + range.first_part;
    gradients.parts = range.parts;
    gradients.group = groups + range.first_group;
    gradients.groups = range.groups;
    kl::row_gradients(run.dtype(), indexer, chunk, facts, gradients, context);
    kl::combine_rows(run.dtype(), indexer, chunk, gradients, context);
    if (!gradients.with_keys) kl::key_gradients(run.dtype(), indexer, chunk, facts, gradients, context);
    kl::add_key_parts(indexer, chunk, gradients, context);
  });
  if (args.dbias != nullptr) {
    kl::combine_bias(gradients.dbias_rows, run.sequences().total_queries, indexer.heads,
                     static_cast<float*>(args.dbias), context);
  }
}

}  // namespace gsa::cuda
