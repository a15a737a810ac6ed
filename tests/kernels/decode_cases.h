// What the tests of decode on the CPU and on CUDA devices share: a case, its pages, a result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <ostream>
#include <utility>
#include <vector>

#include "kernels/decode/decode.h"
#include "problems.h"

namespace gsa::testing::decoding {

enum class GateKind { none, element_wise, head_wise };

struct Case {
  const char* name;
  std::vector<std::int64_t> lengths;
  std::int64_t queries = 1, page_size = 64;
  std::int64_t heads = 4, kv_heads = 2, size = 64;
  std::int64_t index_heads = 4, index_size = 64;  // no heads: dense
  Budget budget = {BudgetMode::fixed, 40, 8, 300};
  GateKind gate = GateKind::element_wise;
  ScoreForm form = ScoreForm::sigmoid;
  Layout layout = Layout::tokens_first;
  bool bytes = false;  // index keys of 8 bits

  std::int64_t blocks_of(std::int64_t length) const { return (length + page_size - 1) / page_size; }
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

inline Case in_bytes(Case c) {
  c.bytes = true;
  return c;
}

struct Result {
  Tensor out, lse;
  std::vector<std::int32_t> k_t;
};

inline ::testing::AssertionResult same(const Result& a, const Result& b) {
  if (a.k_t != b.k_t) return ::testing::AssertionFailure() << "k_t differ";
  const ::testing::AssertionResult out = same_bits(a.out, b.out);
  return out ? same_bits(a.lse, b.lse) : out;
}

// A selection that one layer's call writes and another's reads.
struct Positions {
  std::int64_t width = 0;
  std::vector<std::int32_t> at;   // [rows, width]
  std::vector<std::int32_t> k_t;  // [rows]

  Positions() = default;
  Positions(std::int64_t rows, std::int64_t size)
      : width(size), at(static_cast<std::size_t>(rows * size), -7), k_t(static_cast<std::size_t>(rows), -7) {}
};

// The position of the query of a row; negative: it has none.
inline std::int64_t position_of(const Case& c, std::int64_t row) {
  return c.lengths[static_cast<std::size_t>(row / c.queries)] - c.queries + row % c.queries;
}

inline std::int64_t rows_of(const Case& c) { return c.queries * static_cast<std::int64_t>(c.lengths.size()); }

// k_t positions that the query sees, ascending, then -1.
inline ::testing::AssertionResult is_a_list(const Positions& positions, const Case& c) {
  for (std::int64_t row = 0; row < rows_of(c); ++row) {
    const std::int32_t* const at = positions.at.data() + row * positions.width;
    const std::int64_t k_t = positions.k_t[static_cast<std::size_t>(row)];
    for (std::int64_t j = 0; j < positions.width; ++j) {
      const bool good =
          j >= k_t ? at[j] == -1 : at[j] > (j == 0 ? -1 : at[j - 1]) && at[j] <= position_of(c, row);
      if (!good) return ::testing::AssertionFailure() << "row " << row << ", entry " << j << ": " << at[j];
    }
  }
  return ::testing::AssertionSuccess();
}

// The bodies of tests that both devices run. A Problem has run(); lead(to), which is run() and writes positions;
// follow(from), which has no indexer and reads them.

template <typename Problem>
void expect_followers_to_have_the_bits_of_their_leader(const Problem& problem) {
  const Result alone = problem.run();
  // Wider than any list: the stride is the caller's.
  Positions positions(rows_of(problem.c), std::min(problem.max_length, problem.c.budget.max) + 3);
  Result leader = problem.lead(positions);
  EXPECT_TRUE(same(leader, alone));
  positions.k_t = leader.k_t;
  EXPECT_TRUE(is_a_list(positions, problem.c));
  EXPECT_TRUE(same(problem.follow(positions), alone));
}

// Positions that no indexer has chosen: every third, and for one row none at all.
inline Positions every_third(const Case& c) {
  const std::int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  Positions positions(rows_of(c), longest / 3 + 1);
  for (std::int64_t row = 0; row < rows_of(c); ++row) {
    std::int32_t count = 0;
    for (std::int64_t s = row % 3; s <= position_of(c, row) && row != 1; s += 3) {
      positions.at[static_cast<std::size_t>(row * positions.width + count++)] = static_cast<std::int32_t>(s);
    }
    positions.k_t[static_cast<std::size_t>(row)] = count;
  }
  return positions;
}

// Of a case's sequences, [sequences, blocks]: `pages` pages, at least as many as are needed, in random order.
// Entries beyond a length point where nobody may look.
inline std::vector<std::int32_t> random_table(const Case& c, std::int64_t pages, std::int64_t blocks,
                                              Random& random) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  std::vector<std::int32_t> table(c.lengths.size() * static_cast<std::size_t>(blocks), 1 << 28);
  auto next = order.begin();
  for (std::size_t n = 0; n < c.lengths.size(); ++n) {
    const auto row = table.begin() + static_cast<std::int64_t>(n) * blocks;
    const std::int64_t count = c.blocks_of(c.lengths[n]);
    std::copy_n(next, count, row);
    next += count;
  }
  return table;
}

// Where position s of sequence n lies among the rows of all pages.
inline std::int64_t row_in(const std::vector<std::int32_t>& table, std::int64_t blocks, const Case& c,
                           std::size_t n, std::int64_t s) {
  const std::int64_t at = static_cast<std::int64_t>(n) * blocks + s / c.page_size;
  return table[static_cast<std::size_t>(at)] * c.page_size + s % c.page_size;
}

// Rows as pages of so many of them.
inline ConstPages pages_of(const ConstRows& rows, const Case& c) {
  return {rows.data, rows.token_stride * c.page_size, rows.token_stride, rows.head_stride};
}

}  // namespace gsa::testing::decoding
