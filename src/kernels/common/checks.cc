#include "kernels/common/checks.h"

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
  const std::int64_t longest = s.longest_keys();
  if (mask.words_per_query < mask_words(longest)) {
    bad_argument(op, "mask.words_per_query",
                 concat("at least ", mask_words(longest), " words for ", longest, " keys"),
                 concat(mask.words_per_query));
  }
}

void page_size(const char* op, const char* argument, std::int64_t size) {
  constexpr std::int64_t kMin = 8, kMax = 1024;
  if (size < kMin || size > kMax || (size & (size - 1)) != 0) {
    bad_argument(op, argument, concat("a page size that is a power of two in ", kMin, " .. ", kMax),
                 concat(size));
  }
}

void pages(const char* op, const PageTable& pages, const Sequences& s, bool allowed) {
  if (pages.page_size == 0) return;
  if (!allowed) bad_argument(op, "pages", "contiguous keys on this device", "keys in pages");
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

}  // namespace gsa::check
