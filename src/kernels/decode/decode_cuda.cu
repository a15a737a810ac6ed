// decode on CUDA devices: scratch memory, and the stages one after another.
#include "kernels/decode/decode_cuda.h"

#include <algorithm>
#include <bit>

#include "gsa/error.h"
#include "kernels/common/aligned_rows.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/plans.h"
#include "kernels/decode/cuda/stages.h"
#include "kernels/decode/decode_checks.h"
#include "kernels/scores/moments.cuh"

namespace gsa::cuda {
namespace decoding {

Cache cache_of(const DecodeArgs& args) {
  return {args.pages.block_table,
          args.pages.length,
          args.pages.blocks,
          std::countr_zero(static_cast<std::uint64_t>(args.pages.page_size)),
          static_cast<int>(args.queries),
          static_cast<int>(args.max_length)};
}

Kept kept_of(const DecodeArgs& args, const Scratch& scratch) {
  Kept kept;
  kept.dense = is_dense(args);
  if (args.selected != nullptr) {
    kept.counts = args.selected_k;
    kept.max_count = static_cast<int>(std::min(args.max_length, args.selected_width));
    kept.positions = args.selected;
    kept.position_stride = static_cast<int>(args.selected_width);
  } else if (!kept.dense) {
    kept.counts = scratch.selected;
    kept.max_count = scratch.list_stride;
    kept.list = scratch.list;
    kept.list_stride = scratch.list_stride;
  }
  return kept;
}

bool rows_aligned(const DecodeArgs& args) {
  return args.shape.head_size % 8 == 0 && aligned_rows(args.q) && aligned_pages(args.k) &&
         aligned_pages(args.v);
}

bool index_keys_aligned(const DecodeArgs& args) {
  const std::int64_t chunk = args.index_k_scale != nullptr ? 16 : 8;
  const ConstPages& k = args.index_k;
  return at_16_bytes(k.data) && k.page_stride % chunk == 0 && k.token_stride % chunk == 0 &&
         args.index_head_size % chunk == 0 && at_16_bytes(args.index_k_scale) &&
         args.index_k_scale_stride % 4 == 0;
}

namespace {

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

// A list of a million keys, or splits of as many, for hundreds of rows: more than anybody means to ask for.
constexpr std::int64_t kMaxScratch = std::int64_t{8} << 30;

Scratch scratch_for(const DecodeArgs& args, const DecodeConfig& config, Workspace& workspace) {
  const std::int64_t rows = args.sequences * args.queries;
  const bool picks = args.index_heads > 0;
  const std::int64_t keys = config.keys;
  Scratch s;
  s.splits = config.splits;
  s.padded_size = config.padded_size;
  const std::int64_t parts = rows * args.shape.heads * s.splits;
  std::int64_t bytes = parts * (s.padded_size * 4 + 8);
  if (picks) {
    s.score_stride = round_up(args.max_length, kMomentSegment);
    s.segment_stride = static_cast<int>(s.score_stride / kMomentSegment);
    s.list_stride = static_cast<int>(keys);
    bytes += rows * (s.score_stride * 4 + keys * static_cast<std::int64_t>(sizeof(KeyPlace)));
  }
  if (bytes > kMaxScratch) {
    bad_argument("decode",
                 config.dense ? "max_length"
                 : picks      ? "k_max"
                              : "selected_width",
                 "scratch memory of at most 8 GiB: fewer sequences at a time, or fewer keys for each",
                 concat(bytes, " bytes for ", rows, " queries of up to ", keys, " keys"));
  }
  if (picks) {
    s.scores = workspace.array<float>(static_cast<std::size_t>(rows * s.score_stride));
    s.segments = workspace.array<SegmentRecord>(static_cast<std::size_t>(rows * s.segment_stride));
    s.list = workspace.array<KeyPlace>(static_cast<std::size_t>(rows * keys));
    s.selected = workspace.array<int>(static_cast<std::size_t>(rows));
  }
  s.part_out = workspace.array<float>(static_cast<std::size_t>(parts * s.padded_size));
  s.part_sums = workspace.array<float2>(static_cast<std::size_t>(parts));
  return s;
}

}  // namespace
}  // namespace decoding

namespace {

std::string index_text(const DecodeArgs& args) {
  if (args.index_heads == 0) return {};
  return concat(", indexer ", args.index_heads, " heads of ", args.index_head_size,
                args.index_k_scale != nullptr ? ", keys of 8 bits" : "");
}

}  // namespace

void decode(const DecodeArgs& args, const Context& context, DecodeWork* work) {
  constexpr const char* kOp = "decode";
  check_decode(args, kMaxCudaQueries);
  const DType type = args.shape.dtype;
  if (type != DType::bf16 && type != DType::f16) {
    bad_argument(kOp, "shape.dtype", "bfloat16 or float16 on CUDA devices", name_of(type));
  }
  check_device(kOp, context.device);
  if (args.sequences == 0) return;
  DecodeFacts facts;
  facts.device = context.device;
  facts.dense = is_dense(args);
  facts.shared = args.selected != nullptr;
  facts.max_length = args.max_length;
  facts.max_selected = facts.shared ? args.selected_width : args.budget.max;  // k_t is clamped to it
  facts.head_size = args.shape.head_size;
  facts.aligned = decoding::rows_aligned(args);
  facts.sequences = args.sequences;
  facts.queries = args.queries;
  facts.index_heads = args.index_heads;
  facts.index_size = args.index_head_size;
  facts.index_bytes = args.index_k_scale != nullptr;
  facts.index_aligned = decoding::index_keys_aligned(args);
  const DecodeConfig config = choose_decode(facts);
  if (prints_plans()) {
    print_plan(kOp,
               concat(describe(args.shape), ", ", args.sequences, " sequences of ", args.queries,
                      " queries, up to ", args.max_length, " keys", index_text(args)),
               to_string(config));
  }
  const decoding::Scratch scratch = decoding::scratch_for(args, config, *context.workspace);
  if (args.index_heads > 0) {
    decoding::score(args, config, scratch, context);
    decoding::pick(args, scratch, config.pick_blocks, context, work);
  }
  decoding::attend(args, config, scratch, context);
  decoding::combine(args, scratch, context);
}

}  // namespace gsa::cuda
