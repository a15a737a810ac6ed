// indexer_kl on CUDA: cuts the queries into tiles and the tiles into chunks whose p fits in scratch memory of
// bounded size, and runs the kernels of cuda/kernels.h chunk after chunk. Chunks of lists are cut by the
// device (cuda/lists.h).
#include "kernels/indexer_kl/indexer_kl_cuda.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "kernels/common/aligned_rows.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/log2e.h"
#include "kernels/common/plans.h"
#include "kernels/indexer_kl/cuda/kernels.h"
#include "kernels/indexer_kl/cuda/lists.h"
#include "kernels/indexer_kl/indexer_kl_checks.h"

namespace gsa::cuda {
namespace {

using kl::Chunk;
using kl::Group;
using kl::Part;

kl::Source source(const ConstRows& rows, std::int64_t size, bool heads) {
  ConstRows seen = rows;
  if (!heads) seen.head_stride = 0;
  return {seen.data, seen.token_stride, seen.head_stride, static_cast<int>(size),
          aligned_rows(seen) && size % 8 == 0};
}

// What forward and backward share: the inputs as kernels see them, and the walk over the chunks.
class Run {
 public:
  Run(const char* op, const IndexerKlInputs& in, bool backward, const Context& context)
      : op_(op), in_(in), context_(context), listed_(in.mask.words != nullptr) {
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
    attention_.scale = static_cast<float>(shape.scale * kLog2EDouble);
    const Indexer& x = in.indexer;
    indexer.q = source(x.q, x.head_size, true);
    indexer.k = source(x.k, x.head_size, false);
    indexer.w = x.w;
    indexer.bias = x.bias;
    indexer.heads = static_cast<int>(x.heads);
    indexer.scale = static_cast<float>(x.scale);
    indexer.relu = x.form == ScoreForm::relu;
    config = kl::choose_indexer_kl({.target = kl::target_facts(attention_, context.device),
                                    .backward = backward,
                                    .listed = listed_,
                                    .index_heads = x.heads,
                                    .index_size = x.head_size});
    needs.split = config.split;
    needs.entry_bytes = static_cast<std::size_t>(needs.tile_queries) * sizeof(float);  // p
    if (in.tiles.number != nullptr) needs.limit = kl::kSampledBytes;
  }

  DType dtype() const { return in_.shape.dtype; }
  bool listed() const { return listed_; }
  const DeviceSequences& sequences() const { return sequences_; }
  // On the device, once there are chunks; null: all queries count.
  const UnionTile* sample() const { return in_.tiles.number != nullptr ? tiles_ : nullptr; }

  // Dense, after the needs are known.
  void make_chunks() {
    plan = kl::make_dense_plan(in_, needs);
    if (plan.tiles.empty()) return;
    if (prints_plans()) print_plan(op_, shape(), kl::describe(plan) + to_string(config));
    p_ = context_.workspace->array<float>(plan.row_entries);
    static_assert(sizeof(UnionTile) == 6 * sizeof(int));
    tiles_ = reinterpret_cast<const UnionTile*>(
        upload_words(reinterpret_cast<const int*>(plan.tiles.data()), plan.tiles.size() * 6, context_));
  }

  // Calls body(chunk, range) for each dense chunk, after its p.
  template <typename Body>
  void for_each_chunk(const Body& body) {
    for (const kl::DenseRange& range : plan.ranges) {
      const Chunk chunk{.tile = tiles_ + range.first_tile,
                        .p = p_,
                        .tiles = range.tiles,
                        .entries = range.entries,
                        .split = needs.split,
                        .stride = static_cast<int>(kl::DenseNeeds::stride(range.entries))};
      kl::target(dtype(), attention_, chunk, config, context_);
      body(chunk, range);
    }
  }

  // Listed: counts the unions. slot_bytes: what a slot takes beside its list and p.
  void make_lists(std::size_t slot_bytes, bool backward, const kl::ListLimits& limits) {
    const std::size_t entry_bytes =
        kl::kListQueries * sizeof(float) + sizeof(int) + sizeof(std::uint32_t) + (backward ? sizeof(int) : 0);
    sizes = kl::list_sizes(in_.mask, in_.sequences, kl::kSlot * entry_bytes + slot_bytes, backward, limits);
    if (prints_plans()) print_plan(op_, shape(), kl::describe(sizes) + to_string(config));
    p_ = context_.workspace->array<float>(sizes.rows() * kl::kSlot);
    lists_.emplace(in_.mask, in_.sequences, sequences_, sizes, backward, context_);
  }
  const kl::Lists& lists() const { return *lists_; }

  // Calls body(chunk) for each chunk of lists that there may be, after its p.
  template <typename Body>
  void for_each_list_chunk(const Body& body) {
    for (int round = 0; round < sizes.rounds; ++round) {
      Chunk chunk = lists_->make(round);
      chunk.p = p_;
      kl::target(dtype(), attention_, chunk, config, context_);
      body(chunk);
    }
  }

  kl::IndexerRows indexer;
  kl::IndexerKlConfig config;
  kl::DenseNeeds needs;  // dense, as plan
  kl::DensePlan plan;
  kl::ListSizes sizes;  // listed

 private:
  std::string shape() const {
    return concat(describe(in_.shape), ", indexer ", indexer.heads, " heads of ", indexer.q.size, ", ",
                  describe(in_.sequences));
  }

  const char* const op_;
  const IndexerKlInputs& in_;
  const Context& context_;
  const bool listed_;
  DeviceSequences sequences_;
  kl::Attention attention_;
  float* p_ = nullptr;
  const UnionTile* tiles_ = nullptr;
  std::optional<kl::Lists> lists_;
};

void forward(const IndexerKlArgs& args, const kl::ListLimits& limits, const Context& context) {
  constexpr const char* kOp = "indexer_kl";
  if (!gsa::kl::check_forward(kOp, args)) return;
  Run run(kOp, args.in, false, context);
  float* const loss = static_cast<float*>(args.loss);
  float* const index_lse = static_cast<float*>(args.index_lse);
  if (run.listed()) {
    run.make_lists(kl::kListQueries * sizeof(float4), false, limits);
    float4* const sums = context.workspace->array<float4>(run.sizes.rows());
    run.for_each_list_chunk([&](const Chunk& chunk) {
      kl::row_sums(run.dtype(), run.indexer, chunk, sums, context);
      kl::combine_loss(chunk, sums, loss, index_lse, context);
    });
    return;
  }
  run.needs.split_bytes = sizeof(float4);
  run.make_chunks();
  if (args.in.tiles.number != nullptr) {
    const std::size_t bytes = static_cast<std::size_t>(run.sequences().total_queries) * sizeof(float);
    kl::set_zero(args.loss, bytes, context);
    kl::set_zero(args.index_lse, bytes, context);
    if (run.plan.tiles.empty()) return;
  }
  float4* const sums = context.workspace->array<float4>(run.plan.row_splits);
  run.for_each_chunk([&](const Chunk& chunk, const kl::DenseRange&) {
    kl::row_sums(run.dtype(), run.indexer, chunk, sums, context);
    kl::combine_loss(chunk, sums, loss, index_lse, context);
  });
}

// dq, dw, dk and dbias_rows of lists.
void list_backward(Run& run, const kl::RowFacts& facts, kl::Gradients gradients, const kl::ListLimits& limits,
                   const Context& context) {
  const kl::IndexerRows& indexer = run.indexer;
  Workspace& workspace = *context.workspace;
  const int padded = run.config.index_size;
  const bool in_place = run.config.in_place;
  const std::size_t row_floats =
      static_cast<std::size_t>(indexer.heads) * (static_cast<std::size_t>(padded) + 2);
  const std::size_t entry_floats =
      static_cast<std::size_t>(padded) + (in_place ? 0 : static_cast<std::size_t>(kl::kListQueries));
  run.make_lists((kl::kListQueries * row_floats + kl::kSlot * entry_floats) * sizeof(float), true, limits);
  const std::size_t rows = run.sizes.rows(), heads = static_cast<std::size_t>(indexer.heads);
  gradients.dq_part = workspace.array<float>(rows * heads * static_cast<std::size_t>(padded));
  gradients.dw_part = workspace.array<float>(rows * heads * 2);
  gradients.dk_part = workspace.array<float>(run.sizes.entries() * static_cast<std::size_t>(padded));
  gradients.sequence_tile = run.lists().sequence_tile();
  float* const d_score = in_place ? nullptr : workspace.array<float>(rows * kl::kSlot);
  run.for_each_list_chunk([&](const Chunk& chunk) {
    if (run.config.fused) {
      kl::list_gradients(run.dtype(), indexer, chunk, facts, gradients, context);
    } else {
      gradients.d_score = in_place ? chunk.p : d_score;
      kl::row_gradients(run.dtype(), indexer, chunk, facts, gradients, context);
      kl::key_gradients(run.dtype(), indexer, chunk, facts, gradients, context);
    }
    kl::combine_lists(run.dtype(), indexer, chunk, run.sequences(), gradients, context);
  });
}

// The same where the support is every visible key.
void dense_backward(Run& run, const kl::RowFacts& facts, kl::Gradients gradients, const Context& context) {
  const kl::IndexerRows& indexer = run.indexer;
  Workspace& workspace = *context.workspace;
  const std::size_t padded = static_cast<std::size_t>(run.config.index_size);
  const std::size_t heads = static_cast<std::size_t>(indexer.heads);
  const bool in_place = run.config.in_place;
  gradients.dq_part = workspace.array<float>(run.plan.row_splits * heads * padded);
  gradients.dw_part = workspace.array<float>(run.plan.row_splits * heads * 2);
  gradients.dk_part = workspace.array<float>(run.plan.part_entries * padded);
  float* const d_score = in_place ? nullptr : workspace.array<float>(run.plan.row_entries);
  static_assert(sizeof(Part) == 4 * sizeof(int) && sizeof(Group) == 4 * sizeof(int));
  const auto* const parts = reinterpret_cast<const Part*>(
      upload_words(reinterpret_cast<const int*>(run.plan.parts.data()), run.plan.parts.size() * 4, context));
  const auto* const groups = reinterpret_cast<const Group*>(upload_words(
      reinterpret_cast<const int*>(run.plan.groups.data()), run.plan.groups.size() * 4, context));
  run.for_each_chunk([&](const Chunk& chunk, const kl::DenseRange& range) {
    gradients.d_score = in_place ? chunk.p : d_score;
    gradients.part = parts + range.first_part;
    gradients.parts = range.parts;
    gradients.group = groups + range.first_group;
    gradients.groups = range.groups;
    kl::row_gradients(run.dtype(), indexer, chunk, facts, gradients, context);
    kl::combine_rows(run.dtype(), indexer, chunk, gradients, context);
    kl::key_gradients(run.dtype(), indexer, chunk, facts, gradients, context);
    kl::add_key_parts(indexer, chunk, gradients, context);
  });
}

void backward(const IndexerKlBackwardArgs& args, const kl::ListLimits& limits, const Context& context) {
  constexpr const char* kOp = "indexer_kl_backward";
  if (!gsa::kl::check_backward(kOp, args)) return;
  Run run(kOp, args.in, true, context);
  const kl::IndexerRows& indexer = run.indexer;
  Workspace& workspace = *context.workspace;
  const std::size_t heads = static_cast<std::size_t>(indexer.heads);
  if (!run.listed()) {
    const std::size_t padded = static_cast<std::size_t>(run.config.index_size);
    run.needs.split_bytes = heads * (padded + 2) * sizeof(float);
    if (!run.config.in_place) {  // dI has memory of its own
      run.needs.entry_bytes += static_cast<std::size_t>(run.needs.tile_queries) * sizeof(float);
    }
    run.needs.part_bytes = padded * sizeof(float);
    run.make_chunks();
  }

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
  const kl::Gradients gradients{.index_lse = static_cast<const float*>(args.index_lse),
                                .weight = static_cast<const float*>(args.weight),
                                .dq = args.dq,
                                .dw = args.dw,
                                .dk = static_cast<float*>(args.dk),
                                .dbias_rows = dbias_rows};
  run.listed() ? list_backward(run, facts, gradients, limits, context)
               : dense_backward(run, facts, gradients, context);
  if (args.dbias != nullptr) {
    kl::combine_bias(dbias_rows, run.sequences().total_queries, indexer.heads,
                     static_cast<float*>(args.dbias), context);
  }
}

}  // namespace

void indexer_kl(const IndexerKlArgs& args, const Context& context) { forward(args, {}, context); }

void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Context& context) {
  backward(args, {}, context);
}

void indexer_kl_in_chunks(const IndexerKlArgs& args, const kl::ListLimits& limits, const Context& context) {
  forward(args, limits, context);
}

void indexer_kl_backward_in_chunks(const IndexerKlBackwardArgs& args, const kl::ListLimits& limits,
                                   const Context& context) {
  backward(args, limits, context);
}

}  // namespace gsa::cuda
