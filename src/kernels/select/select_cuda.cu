// select on CUDA: choice of the way, chunks.
#include "kernels/select/select_cuda.h"

#include <algorithm>
#include <cstdint>

#include "gsa/error.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/plans.h"
#include "kernels/scores/moments.cuh"
#include "kernels/select/cuda/kernels.h"
#include "kernels/select/select_checks.h"
#include "kernels/select/select_plan.h"

namespace gsa::cuda {
namespace {

using selecting::kTileQueries;
using selecting::ScoreInput;
using selecting::ScoreStore;
using selecting::ScoreType;

void check_backend(const char* op, DType dtype, const Context& context) {
  if (dtype != DType::bf16 && dtype != DType::f16) {
    bad_argument(op, "dtype", "bfloat16 or float16 on CUDA", name_of(dtype));
  }
  check_device(op, context.device);
}

bool aligned(const void* pointer, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(bytes) == 0;
}

// Stores the scores of a chunk of queries, then selects from them; chunk after chunk.
void select_from_stored(const SelectArgs& args, const SelectConfig& config, const ScoreInput& in,
                        const selecting::RowOutputs& out, const Context& context) {
  const SelectTiles tiles(args.sequences);
  const std::int64_t stride = (in.sequences.longest_keys + kStoredStep - 1) / kStoredStep * kStoredStep;
  const ScoreType type = {args.dtype, args.indexer.form};
  const auto launch_scores = config.wgmma ? &selecting::launch_hopper_scores : &selecting::launch_scores;
  const std::int64_t chunk = config.tiles;
  const std::int64_t rows = std::min(chunk * kTileQueries, args.sequences.total_queries());
  ScoreStore store;
  store.scores = context.workspace->array<float>(static_cast<std::size_t>(rows * stride));
  store.stride = stride;
  store.paired = true;
  store.segments = static_cast<int>((stride + kMomentSegment - 1) / kMomentSegment);
  store.sample = context.workspace->array<float>(static_cast<std::size_t>(rows * store.sample_stride()));
  store.sums = context.workspace->array<float2>(static_cast<std::size_t>(rows * store.segments));
  if (config.wgmma) {
    store.summed = true;
    store.first_scores =
        context.workspace->array<float>(static_cast<std::size_t>(args.sequences.total_queries()));
    selecting::launch_hopper_first_scores(in, type, store.first_scores, tiles.count(), context);
  }
  for (std::int64_t tile = 0; tile < tiles.count(); tile += chunk) {
    const std::int64_t end = std::min<std::int64_t>(tile + chunk, tiles.count());
    const std::int64_t first_row = tiles.first_row(tile);
    const std::int64_t end_row = end == tiles.count() ? args.sequences.total_queries() : tiles.first_row(end);
    if (first_row == end_row) continue;
    store.first_row = static_cast<int>(first_row);
    const int longest = static_cast<int>(tiles.max_visible(first_row, end_row));
    launch_scores(in, type, store, static_cast<int>(tile), static_cast<int>(end - tile), longest, context);
    for (const SelectRowsPart& part : select_rows_parts(args.sequences, first_row, end_row)) {
      selecting::launch_rows(in.sequences, store, args.budget, out, static_cast<int>(part.first),
                             static_cast<int>(part.end - part.first), static_cast<int>(part.max_keys),
                             context);
    }
  }
}

}  // namespace

selecting::ScoreInput selecting::input_of(const char* op, const Indexer& x, const Sequences& sequences,
                                          const Context& context) {
  ScoreInput in;
  in.op = op;
  in.q = x.q.data, in.k = x.k.data, in.w = x.w.data, in.bias = x.bias;
  in.q_token = x.q.token_stride, in.q_head = x.q.head_stride;
  in.k_token = x.k.token_stride;
  in.w_token = x.w.token_stride, in.w_head = x.w.head_stride;
  in.heads = static_cast<int>(x.heads);
  in.head_size = static_cast<int>(x.head_size);
  in.steps = static_cast<int>((x.head_size + 15) / 16);
  in.scale = static_cast<float>(x.scale);
  in.wide_keys = aligned(x.k.data, 16) && x.k.token_stride % 8 == 0 && x.head_size % 8 == 0;
  in.paired_query = aligned(x.q.data, 4) && x.q.token_stride % 2 == 0 && x.q.head_stride % 2 == 0;
  in.sequences = upload(sequences, context);
  return in;
}

SelectFacts selecting::facts_of(const ScoreInput& in, const Device& device) {
  SelectFacts facts;
  facts.device = device;
  facts.heads = in.heads;
  facts.head_size = in.head_size;
  facts.wide_rows = in.wide_keys && aligned(in.q, 16) && in.q_token % 8 == 0 && in.q_head % 8 == 0;
  facts.paired_query = in.paired_query;
  facts.longest_keys = in.sequences.longest_keys;
  return facts;
}

void selecting::print_scores_plan(const ScoreInput& in, ScoreType type, const SelectScoresConfig& config) {
  if (!prints_plans()) return;
  print_plan(in.op,
             concat("its scores, indexer ", in.heads, " heads of ", in.head_size, ", ", name_of(type.dtype)),
             to_string(config));
}

void select(const SelectArgs& args, const Context& context, SelectWork* work) {
  constexpr const char* kOp = "select";
  check_backend(kOp, args.dtype, context);
  if (!check_select(args)) return;
  const ScoreInput in = selecting::input_of(kOp, args.indexer, args.sequences, context);
  const selecting::RowOutputs out = {work,
                                     args.mask.words,
                                     args.mask.words_per_query,
                                     args.k_t,
                                     static_cast<float*>(args.variance),
                                     static_cast<float*>(args.threshold),
                                     args.tie_cut};
  const int tiles = SelectTiles(args.sequences).count();
  SelectFacts facts = selecting::facts_of(in, context.device);
  facts.tiles = tiles;
  const LongPlan plan = plan_long(facts, args.budget);
  facts.lists_fit = plan.at_once > 0;
  const SelectConfig config = choose_select(facts);
  if (prints_plans()) {
    print_plan(kOp,
               concat("indexer ", in.heads, " heads of ", in.head_size, ", ", name_of(args.dtype), ", ",
                      describe(args.sequences)),
               to_string(config));
  }
  if (config.way == SelectConfig::Way::one_pass) {
    selecting::launch_long(in, {args.dtype, args.indexer.form}, args.budget, out, plan, tiles, context);
  } else {
    select_from_stored(args, config, in, out, context);
  }
}

void select_mask(const SelectMaskArgs& args, const Context& context) {
  constexpr const char* kOp = "select_mask";
  check_backend(kOp, args.dtype, context);
  if (!check_select_mask(args)) return;
  const ScoreInput in = selecting::input_of(kOp, args.indexer, args.sequences, context);
  const selecting::MaskStore out = {static_cast<const float*>(args.threshold), args.tie_cut, args.mask.words,
                                    args.mask.words_per_query};
  selecting::launch_mask(in, {args.dtype, args.indexer.form}, out, 0, SelectTiles(args.sequences).count(),
                         in.sequences.longest_keys, context);
}

void index_scores(const IndexScoresArgs& args, const Context& context) {
  constexpr const char* kOp = "index_scores";
  check_backend(kOp, args.dtype, context);
  if (!check_index_scores(args)) return;
  const ScoreInput in = selecting::input_of(kOp, args.indexer, args.sequences, context);
  float* const scores = static_cast<float*>(args.scores);
  selecting::launch_fill(scores, args.sequences.total_queries() * args.scores_stride, context);
  const ScoreStore out = {scores, args.scores_stride, 0, aligned(scores, 8) && args.scores_stride % 2 == 0};
  selecting::launch_scores(in, {args.dtype, args.indexer.form}, out, 0, SelectTiles(args.sequences).count(),
                           in.sequences.longest_keys, context);
}

}  // namespace gsa::cuda
