#include "kernels/common/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gsa/error.h"

namespace gsa::check {

void not_null(const char* op, const char* argument, const void* pointer) {
  if (pointer == nullptr) bad_argument(op, argument, "a pointer to its data", "null");
}

void in_range(const char* op, const char* argument, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    bad_argument(op, argument, concat("a value from ", low, " to ", high), concat(value));
  }
}

void sequences(const char* op, const Sequences& s) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  in_range(op, "sequences.count", s.count, 0, kLimit);
  if (s.count == 0) return;
  not_null(op, "sequences.q_begin", s.q_begin);
  not_null(op, "sequences.k_begin", s.k_begin);
  in_range(op, "sequences.q_begin[0]", s.q_begin[0], 0, 0);
  in_range(op, "sequences.k_begin[0]", s.k_begin[0], 0, 0);
  for (std::int64_t n = 0; n < s.count; ++n) {
    if (s.q_begin[n + 1] < s.q_begin[n]) {
      bad_argument(op, "sequences.q_begin", "offsets that never decrease",
                   concat(s.q_begin[n + 1], " after ", s.q_begin[n]));
    }
    if (s.k_begin[n + 1] < s.k_begin[n]) {
      bad_argument(op, "sequences.k_begin", "offsets that never decrease",
                   concat(s.k_begin[n + 1], " after ", s.k_begin[n]));
    }
    in_range(op, "sequences.k_begin", s.keys(n), 0, kLimit - 1);
    if (s.queries(n) == 0) continue;
    const std::int64_t first = s.first_position(n);
    if (first < 0 || first > s.keys(n) - s.queries(n)) {
      bad_argument(op, "sequences.q_position",
                   concat("a first position from 0 to keys - queries = ", s.keys(n) - s.queries(n),
                          " for sequence ", n),
                   concat(first));
    }
  }
}

void mask(const char* op, ConstMask mask, const Sequences& s) {
  if (mask.words == nullptr) return;
  std::int64_t longest = 0;
  for (std::int64_t n = 0; n < s.count; ++n) longest = std::max(longest, s.keys(n));
  if (mask.words_per_query < mask_words(longest)) {
    bad_argument(op, "mask.words_per_query",
                 concat("at least ", mask_words(longest), " words for ", longest, " keys"),
                 concat(mask.words_per_query));
  }
}

void attend_shape(const char* op, const AttendShape& shape) {
  constexpr std::int64_t kMaxHeads = 1 << 16;
  in_range(op, "heads", shape.heads, 1, kMaxHeads);
  in_range(op, "kv_heads", shape.kv_heads, 1, kMaxHeads);
  in_range(op, "head_size", shape.head_size, 1, kMaxHeadSize);
  if (shape.heads % shape.kv_heads != 0) {
    bad_argument(op, "heads", concat("a multiple of kv_heads = ", shape.kv_heads), concat(shape.heads));
  }
  if (!std::isfinite(shape.scale)) bad_argument(op, "scale", "a finite number", concat(shape.scale));
}

void page_size(const char* op, const char* argument, std::int64_t size) {
  constexpr std::int64_t kLeast = 8, kLargest = 1024;
  in_range(op, argument, size, kLeast, kLargest);
  if ((size & (size - 1)) != 0) bad_argument(op, argument, "a power of two", concat(size));
}

void pages(const char* op, const PageTable& pages, const Sequences& s, bool allowed) {
  if (pages.page_size == 0) return;
  if (!allowed) bad_argument(op, "pages", "keys end to end on this device", "keys in pages");
  page_size(op, "pages.page_size", pages.page_size);
  not_null(op, "pages.block_table", pages.block_table);
  for (std::int64_t n = 0; n < s.count; ++n) {
    const std::int64_t needed = (s.keys(n) + pages.page_size - 1) / pages.page_size;
    if (pages.blocks < needed) {
      bad_argument(op, "pages.blocks", concat("at least ", needed, " blocks for sequence ", n),
                   concat(pages.blocks));
    }
  }
}

void indexer(const char* op, const Indexer& indexer, const Sequences& s, bool in_pages) {
  in_range(op, "indexer.heads", indexer.heads, 1, kMaxIndexHeads);
  in_range(op, "indexer.head_size", indexer.head_size, 1, kMaxHeadSize);
  if (!std::isfinite(indexer.scale))
    bad_argument(op, "indexer.scale", "a finite number", concat(indexer.scale));
  if (indexer.k_scale != nullptr && !in_pages) {
    bad_argument(op, "indexer.k_scale", "keys of the operator's type", "keys of 8 bits");
  }
  if (s.total_queries() == 0) return;
  pages(op, indexer.pages, s, in_pages);
  not_null(op, "indexer.q", indexer.q.data);
  not_null(op, "indexer.k", indexer.k.data);
  not_null(op, "indexer.w", indexer.w.data);
}

void budget(const char* op, const Budget& budget) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  in_range(op, "budget.base", budget.base, 1, kLimit);
  in_range(op, "budget.min", budget.min, 1, kLimit);
  in_range(op, "budget.max", budget.max, 1, kLimit);
  if (budget.min > budget.max) {
    bad_argument(op, "budget.min", concat("at most budget.max = ", budget.max), concat(budget.min));
  }
  if (std::isnan(budget.mean_variance)) {
    bad_argument(op, "budget.mean_variance", "a number (negative: not known yet)", "NaN");
  }
}

}  // namespace gsa::check
