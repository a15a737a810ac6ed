// Argument checks of decode. Nothing here touches memory that the arguments point to.
#include <cmath>
#include <cstdint>

#include "gsa/error.h"
#include "kernels/common/checks.h"
#include "kernels/decode/decode_check.h"

namespace gsa {
namespace {

constexpr const char* kOp = "decode";
constexpr std::int64_t kMaxSequences = 2048;  // times kMaxQueries: a dimension of a grid
constexpr std::int64_t kMaxQueries = 16;
constexpr std::int64_t kMinPage = 8, kMaxPage = 1024;
// Positions and scratch offsets within a row stay in 31 bits.
constexpr std::int64_t kMaxLength = std::int64_t{1} << 30;

void check_pages(const DecodeArgs& args) {
  const PageTable& pages = args.pages;
  check::in_range(kOp, "pages.page_size", pages.page_size, kMinPage, kMaxPage);
  if ((pages.page_size & (pages.page_size - 1)) != 0) {
    bad_argument(kOp, "pages.page_size", "a power of two", concat(pages.page_size));
  }
  check::in_range(kOp, "max_length", args.max_length, 1, kMaxLength);
  const std::int64_t needed = (args.max_length + pages.page_size - 1) / pages.page_size;
  if (pages.blocks < needed) {
    bad_argument(kOp, "pages.blocks",
                 concat("at least ", needed, " blocks of ", pages.page_size,
                        " positions for max_length = ", args.max_length),
                 concat(pages.blocks));
  }
  check::not_null(kOp, "pages.block_table", pages.block_table);
  check::not_null(kOp, "pages.length", pages.length);
}

void check_indexer(const DecodeArgs& args) {
  check::in_range(kOp, "index_head_size", args.index_head_size, 1, check::kMaxHeadSize);
  if (!std::isfinite(args.index_scale)) {
    bad_argument(kOp, "index_scale", "a finite number", concat(args.index_scale));
  }
  check::budget(kOp, args.budget);
  check::not_null(kOp, "index_q", args.index_q.data);
  check::not_null(kOp, "index_w", args.index_w.data);
  check::not_null(kOp, "index_k", args.index_k.data);
}

}  // namespace

void check_decode(const DecodeArgs& args) {
  check::attend_shape(kOp, args.shape);
  check::in_range(kOp, "sequences", args.sequences, 0, kMaxSequences);
  check::in_range(kOp, "queries", args.queries, 1, kMaxQueries);
  check::in_range(kOp, "index_heads", args.index_heads, 0, check::kMaxIndexHeads);
  if (args.sequences == 0) return;
  check_pages(args);
  if (args.index_heads > 0) check_indexer(args);
  check::not_null(kOp, "q", args.q.data);
  check::not_null(kOp, "k", args.k.data);
  check::not_null(kOp, "v", args.v.data);
  check::not_null(kOp, "out", args.out.data);
}

}  // namespace gsa
