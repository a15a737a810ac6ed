// Argument checks of decode, and its entry on the CPU.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "gsa/error.h"
#include "kernels/common/checks.h"
#include "kernels/common/plans.h"
#include "kernels/decode/decode_checks.h"
#include "kernels/decode/decode_cpu.h"
#include "kernels/scores/checks.h"

namespace gsa {
namespace {

constexpr const char* kDecode = "decode";

void check_pages(const DecodeArgs& args) {
  const PageTable& pages = args.pages;
  check::page_size(kDecode, "pages.page_size", pages.page_size);
  check::in_range(kDecode, "max_length", args.max_length, 1, kMaxDecodeLength);
  const std::int64_t needed = (args.max_length + pages.page_size - 1) / pages.page_size;
  if (pages.blocks < needed) {
    bad_argument(kDecode, "pages.blocks",
                 concat("at least ", needed, " blocks of ", pages.page_size,
                        " positions for max_length = ", args.max_length),
                 concat(pages.blocks));
  }
  check::not_null(kDecode, "pages.block_table", pages.block_table);
  check::not_null(kDecode, "pages.length", pages.length);
}

void check_indexer(const DecodeArgs& args) {
  check::in_range(kDecode, "index_head_size", args.index_head_size, 1, check::kMaxHeadSize);
  if (!std::isfinite(args.index_scale)) {
    bad_argument(kDecode, "index_scale", "a finite number", concat(args.index_scale));
  }
  check::budget(kDecode, args.budget);
  check::not_null(kDecode, "index_q", args.index_q.data);
  check::not_null(kDecode, "index_w", args.index_w.data);
  check::not_null(kDecode, "index_k", args.index_k.data);
}

// A selection that is written or read; what lies in it is looked at on the CPU only.
void check_selection(const DecodeArgs& args) {
  if (args.selected_out != nullptr) {
    if (args.index_heads == 0) bad_argument(kDecode, "selected_out", "null without an indexer", "a pointer");
    const std::int64_t least = std::min(args.max_length, args.budget.max);
    check::in_range(kDecode, "selected_width", args.selected_width, least, kMaxDecodeLength);
  }
  if (args.selected == nullptr) return;
  if (args.index_heads > 0) bad_argument(kDecode, "selected", "null beside an indexer", "a pointer");
  check::in_range(kDecode, "selected_width", args.selected_width, 1, kMaxDecodeLength);
  check::not_null(kDecode, "selected_k", args.selected_k);
}

// Positions that are read: ascending, none behind their query.
void check_positions(const DecodeArgs& args) {
  for (std::int64_t n = 0; n < args.sequences; ++n) {
    for (std::int64_t i = 0; i < args.queries; ++i) {
      const std::int64_t row = n * args.queries + i, at = args.pages.length[n] - args.queries + i;
      if (at < 0) continue;
      const std::int64_t count = args.selected_k[row];
      check::in_range(kDecode, "selected_k", count, 0, std::min(at + 1, args.selected_width));
      const std::int32_t* const positions = args.selected + row * args.selected_width;
      for (std::int64_t j = 0; j < count; ++j) {
        if (positions[j] > (j == 0 ? -1 : positions[j - 1]) && positions[j] <= at) continue;
        bad_argument(kDecode, "selected",
                     concat("ascending positions in 0 .. ", at, " for query ", i, " of sequence ", n),
                     concat(positions[j], j == 0 ? concat(" first") : concat(" behind ", positions[j - 1])));
      }
    }
  }
}

}  // namespace

void check_decode(const DecodeArgs& args, std::int64_t max_queries) {
  check::attend_shape(kDecode, args.shape);
  check::in_range(kDecode, "sequences", args.sequences, 0, kMaxDecodeSequences);
  check::in_range(kDecode, "queries", args.queries, 1, max_queries);
  check::in_range(kDecode, "index_heads", args.index_heads, 0, check::kMaxIndexHeads);
  if (args.sequences == 0) return;
  check_pages(args);
  check_selection(args);
  if (args.index_heads > 0) check_indexer(args);
  check::not_null(kDecode, "q", args.q.data);
  check::not_null(kDecode, "k", args.k.data);
  check::not_null(kDecode, "v", args.v.data);
  check::not_null(kDecode, "out", args.out.data);
}

void decode(const DecodeArgs& args, const Parallel& parallel) {
  check_decode(args, kMaxDecodeLength);
  for (std::int64_t n = 0; n < args.sequences; ++n) {
    check::in_range(kDecode, "pages.length", args.pages.length[n], 0, args.max_length);
  }
  if (args.selected != nullptr) check_positions(args);
  if (prints_plans()) {
    print_cpu_plan(kDecode, concat(describe(args.shape), ", ", args.sequences, " sequences of ", args.queries,
                                   " queries, up to ", args.max_length, " keys"));
  }
  decode_cpu(args, parallel);
}

}  // namespace gsa
