// decode on the CPU: bit for bit what select, attend and gate make of the same contiguous keys, whatever the
// pages, the threads, the neighbours and the number of queries in a call; keys of 8 bits; edges; arguments.
// (For CUDA devices: cuda_decode_test.cc.)
#include "kernels/decode/decode.h"

#include <gtest/gtest.h>

#include <numeric>

#include "decode_cases.h"
#include "kernels/gate/gate.h"

namespace gsa::testing {
namespace {

using decoding::Case;
using decoding::GateKind;
using decoding::in_bytes;
using decoding::Positions;
using decoding::Result;

constexpr Budget kFixed = {BudgetMode::fixed, 40, 8, 300};
constexpr ScoreForm kRelu = ScoreForm::relu;

const std::vector<Case> kCases = {
    {"page_edges", {1, 7, 8, 9, 63, 64, 65, 127, 129}, 1, 8},
    {"page_16", {300, 17, 1000}, 3, 16},
    {"page_1024", {1023, 1024, 1025, 2050}, 1, 1024},
    {"shorter_than_queries", {0, 1, 3, 5, 40, 0}, 5, 8},
    {"a_prompt", {700}, 700, 32},
    {"inverse", {900, 333}, 2, 32, 4, 1, 24, 3, 20, {BudgetMode::inverse, 60, 8, 200, 0.01}},
    {"odd_sizes", {300, 41}, 2, 16, 6, 2, 37, 5, 21, kFixed, GateKind::head_wise, kRelu},
    {"gaps", {300, 41}, 2, 16, 6, 3, 40, 4, 24, kFixed, GateKind::none, ScoreForm::sigmoid, Layout::gaps},
    {"dense", {600, 1, 77}, 1, 16, 8, 2, 64, 0},
    {"dense_queries", {600, 3, 77}, 4, 64, 5, 1, 20, 0, 0, kFixed, GateKind::head_wise},
    in_bytes({"bytes", {300, 5, 1000}, 2, 8, 4, 2, 32, 4, 32}),
    in_bytes({"bytes_odd", {300, 66}, 3, 64, 4, 2, 32, 3, 21, kFixed, GateKind::none, kRelu, Layout::gaps}),
};

ConstRows from_row(const Tensor& x, std::int64_t row) {
  ConstRows rows = x.rows();
  rows.data = static_cast<const char*>(rows.data) +
              row * rows.token_stride * static_cast<std::int64_t>(size_of(x.dtype()));
  return rows;
}

// Contiguous keys, and a cache of more pages than they need, in random order. Rows that belong to no position
// hold NaN, entries of the table beyond a length point nowhere: nobody may look at them.
struct Problem {
  Case c;
  DType dtype;
  Batch batch;  // queries that stand at a position, contiguous keys
  Tensor q, k, v, gate, index_q, index_k, index_w, index_bias;
  Tensor pages_k, pages_v, pages_index_k;
  std::vector<std::int8_t> bytes, pages_bytes;
  std::vector<float> scales, pages_scales;
  std::vector<std::int32_t> table, lengths;
  std::int64_t blocks = 0, pages = 3, max_length = 1;

  Problem(DType type, const Case& what, std::uint64_t seed = 1) : c(what), dtype(type) {
    for (const std::int64_t length : c.lengths) {
      const std::int64_t there = std::min(length, c.queries);
      batch.spans.push_back({there, length, length - there});
      lengths.push_back(static_cast<std::int32_t>(length));
      max_length = std::max(max_length, length);
      pages += c.blocks_of(length);
    }
    blocks = c.blocks_of(max_length) + 1;
    Random random(seed);
    const std::int64_t rows = c.queries * static_cast<std::int64_t>(c.lengths.size());
    const auto normal = [&](std::int64_t tokens, std::int64_t heads, std::int64_t size) {
      return Tensor(dtype, tokens, heads, size, c.layout).fill([&] { return random.normal(); });
    };
    q = normal(rows, c.heads, c.size);
    gate = normal(rows, c.heads, c.gate == GateKind::head_wise ? 1 : c.size);
    k = normal(batch.keys(), c.kv_heads, c.size);
    v = normal(batch.keys(), c.kv_heads, c.size);
    index_q = normal(rows, std::max<std::int64_t>(1, c.index_heads), c.index_size);
    index_w = normal(rows, std::max<std::int64_t>(1, c.index_heads), 1);
    index_bias = Tensor(dtype, 1, 1, std::max<std::int64_t>(1, c.index_heads));
    index_bias.fill([&] { return random.normal(); });
    index_k = normal(batch.keys(), 1, c.index_size);
    for (std::int64_t i = 0; i < batch.keys() * c.index_size; ++i) {
      bytes.push_back(static_cast<std::int8_t>(random.below(255) - 127));
    }
    for (std::int64_t i = 0; i < batch.keys(); ++i) {
      scales.push_back(static_cast<float>(0.001 + 0.02 * random.uniform()));
    }
    table = random_table(c, pages, blocks, random);
    write_cache();
  }

  std::int64_t row_of(std::size_t n, std::int64_t s) const { return row_in(table, blocks, c, n, s); }

  void write_cache() {
    const std::int64_t rows = pages * c.page_size;
    pages_k = Tensor(dtype, rows, c.kv_heads, c.size, c.layout);
    pages_v = Tensor(dtype, rows, c.kv_heads, c.size, c.layout);
    pages_index_k = Tensor(dtype, rows, 1, c.index_size, c.layout);
    pages_bytes.assign(static_cast<std::size_t>(rows * c.index_size), 99);
    pages_scales.assign(static_cast<std::size_t>(rows), std::numeric_limits<float>::quiet_NaN());
    for (std::size_t n = 0; n < c.lengths.size(); ++n) {
      for (std::int64_t s = 0; s < c.lengths[n]; ++s) {
        const std::int64_t from = batch.k_begin(n) + s, to = row_of(n, s);
        for (std::int64_t h = 0; h < c.kv_heads; ++h) {
          for (std::int64_t d = 0; d < c.size; ++d) {
            pages_k.set(to, h, d, k.at(from, h, d));
            pages_v.set(to, h, d, v.at(from, h, d));
          }
        }
        for (std::int64_t d = 0; d < c.index_size; ++d) {
          pages_index_k.set(to, 0, d, index_k.at(from, 0, d));
          pages_bytes[static_cast<std::size_t>(to * c.index_size + d)] =
              bytes[static_cast<std::size_t>(from * c.index_size + d)];
        }
        pages_scales[static_cast<std::size_t>(to)] = scales[static_cast<std::size_t>(from)];
      }
    }
  }

  Result blank() const {
    const std::int64_t rows = q.tokens();
    return {Tensor(dtype, rows, c.heads, c.size, c.layout), Tensor(real_of(dtype), rows, c.heads, 1),
            std::vector<std::int32_t>(static_cast<std::size_t>(rows), c.index_heads > 0 ? -7 : 0)};
  }

  DecodeArgs arguments(Result& result) const {
    DecodeArgs a;
    a.shape = {dtype, c.heads, c.kv_heads, c.size, 0.3};
    a.sequences = static_cast<std::int64_t>(c.lengths.size());
    a.queries = c.queries;
    a.q = q.rows();
    a.k = pages_of(pages_k.rows(), c);
    a.v = pages_of(pages_v.rows(), c);
    if (c.index_heads > 0) {
      a.index_heads = c.index_heads;
      a.index_head_size = c.index_size;
      a.index_q = index_q.rows();
      a.index_w = index_w.rows();
      a.index_k = pages_of(pages_index_k.rows(), c);
      a.index_bias = index_bias.data();
      a.index_scale = 0.2;
      a.form = c.form;
      a.budget = c.budget;
    }
    if (c.bytes) {
      a.index_k = {pages_bytes.data(), c.page_size * c.index_size, c.index_size, 0};
      a.index_k_scale = pages_scales.data();
      a.index_k_scale_stride = c.page_size;
    }
    a.pages = {c.page_size, table.data(), blocks, lengths.data()};
    a.max_length = max_length;
    if (c.gate != GateKind::none) a.gate = gate.rows();
    a.head_wise = c.gate == GateKind::head_wise;
    a.out = result.out.rows();
    a.lse = result.lse.data();
    a.k_t = result.k_t.data();
    return a;
  }

  Result run(const Parallel& parallel = serial()) const {
    Result result = blank();
    gsa::decode(arguments(result), parallel);
    return result;
  }

  Result lead(Positions& to) const {
    Result result = blank();
    DecodeArgs a = arguments(result);
    a.selected_width = to.width;
    a.selected_out = to.at.data();
    gsa::decode(a, ThreadParallel(3));
    return result;
  }

  DecodeArgs following(Result& result, const Positions& from) const {
    DecodeArgs a = arguments(result);
    a.index_heads = 0;
    a.index_q = a.index_w = {};
    a.index_k = {};
    a.index_bias = a.index_k_scale = nullptr;
    a.selected_width = from.width;
    a.selected = from.at.data();
    a.selected_k = from.k_t.data();
    return a;
  }
  Result follow(const Positions& from) const {
    Result result = blank();
    gsa::decode(following(result, from), ThreadParallel(2));
    return result;
  }

  // Queries first .. first + count - 1 of each sequence's last c.queries, by one call.
  void run_part(std::int64_t first, std::int64_t count, Result& result, const Parallel& parallel) const {
    ASSERT_EQ(c.lengths.size(), 1u);
    DecodeArgs a = arguments(result);
    const std::int32_t length = static_cast<std::int32_t>(c.lengths[0] - c.queries + first + count);
    const std::int64_t element = static_cast<std::int64_t>(size_of(dtype));
    a.queries = count;
    a.q = from_row(q, first);
    a.index_q = from_row(index_q, first);
    a.index_w = from_row(index_w, first);
    if (c.gate != GateKind::none) a.gate = from_row(gate, first);
    a.out.data = static_cast<char*>(a.out.data) + first * a.out.token_stride * element;
    a.lse = static_cast<char*>(a.lse) + first * c.heads * static_cast<std::int64_t>(size_of(real_of(dtype)));
    a.k_t += first;
    a.pages.length = &length;
    gsa::decode(a, parallel);
  }

  // The indexer's keys of 8 bits, as the numbers that they stand for; the type then is Real.
  IndexerProblem dequantised(std::int64_t first_key, std::int64_t keys, std::int64_t row,
                             std::int64_t queries) const {
    IndexerProblem x;
    const auto real = [&](const Tensor& from, std::int64_t begin, std::int64_t end) {
      Tensor to(real_of(dtype), end - begin, from.heads(), from.size());
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t h = 0; h < from.heads(); ++h) {
          for (std::int64_t d = 0; d < from.size(); ++d) to.set(t - begin, h, d, from.at(t, h, d));
        }
      }
      return to;
    };
    x.q = real(index_q, row, row + queries);
    x.w = real(index_w, row, row + queries);
    x.bias = real(index_bias, 0, 1);
    x.k = Tensor(real_of(dtype), keys, 1, c.index_size);
    for (std::int64_t s = 0; s < keys; ++s) {
      const float scale = scales[static_cast<std::size_t>(first_key + s)];
      for (std::int64_t d = 0; d < c.index_size; ++d) {
        const int value = bytes[static_cast<std::size_t>((first_key + s) * c.index_size + d)];
        // Rounded once: in float for all types but double.
        x.k.set(s, 0, d, static_cast<double>(value) * static_cast<double>(scale));
      }
    }
    return x;
  }

  // select (or the positions that are given), attend and gate, one sequence after another, on contiguous keys.
  Result expected(const Positions* given = nullptr) const {
    Result result = blank();
    for (std::size_t n = 0; n < c.lengths.size(); ++n) {
      const reference::Span& span = batch.spans[n];
      const std::int64_t end = static_cast<std::int64_t>(n + 1) * c.queries, first = end - span.queries;
      for (std::int64_t row = static_cast<std::int64_t>(n) * c.queries; row < first; ++row) {
        result.k_t[static_cast<std::size_t>(row)] = 0;
      }
      if (span.queries > 0) expect_sequence(n, first, result, given);
    }
    return result;
  }

  void expect_sequence(std::size_t n, std::int64_t row, Result& result, const Positions* given) const {
    const reference::Span& span = batch.spans[n];
    const std::vector<std::int64_t> q_begin = {0, span.queries}, k_begin = {0, span.keys};
    const Sequences sequence = {1, q_begin.data(), k_begin.data(), nullptr};
    const std::int64_t first_key = batch.k_begin(n), element = static_cast<std::int64_t>(size_of(dtype));
    Batch alone;
    alone.spans = {span};
    MaskWords mask(alone);
    if (given != nullptr) {
      for (std::int64_t i = 0; i < span.queries; ++i) {
        const std::int32_t count = given->k_t[static_cast<std::size_t>(row + i)];
        for (std::int64_t j = 0; j < count; ++j) {
          mask.set(i, given->at[static_cast<std::size_t>((row + i) * given->width + j)], true);
        }
        result.k_t[static_cast<std::size_t>(row + i)] = count;
      }
    } else if (c.index_heads > 0) {
      const IndexerProblem real = dequantised(first_key, span.keys, row, span.queries);
      Indexer indexer = {.heads = c.index_heads,
                         .head_size = c.index_size,
                         .q = c.bytes ? real.q.rows() : from_row(index_q, row),
                         .k = c.bytes ? real.k.rows() : from_row(index_k, first_key),
                         .w = c.bytes ? real.w.rows() : from_row(index_w, row),
                         .bias = c.bytes ? real.bias.data() : index_bias.data(),
                         .scale = 0.2,
                         .form = c.form};
      select({.dtype = c.bytes ? real_of(dtype) : dtype,
              .indexer = indexer,
              .budget = c.budget,
              .sequences = sequence,
              .mask = mask.view(),
              .k_t = result.k_t.data() + row},
             serial());
    } else {
      std::iota(result.k_t.begin() + row, result.k_t.begin() + row + span.queries,
                static_cast<std::int32_t>(span.first + 1));
    }
    Rows out = result.out.rows();
    out.data = static_cast<char*>(out.data) + row * out.token_stride * element;
    attend({.shape = {dtype, c.heads, c.kv_heads, c.size, 0.3},
            .q = from_row(q, row),
            .k = from_row(k, first_key),
            .v = from_row(v, first_key),
            .mask = c.index_heads > 0 || given != nullptr ? ConstMask(mask.view()) : ConstMask(),
            .sequences = sequence,
            .out = out,
            .lse = static_cast<char*>(result.lse.data()) +
                   row * c.heads * static_cast<std::int64_t>(size_of(real_of(dtype)))},
           serial());
    if (c.gate == GateKind::none) return;
    gsa::gate({.shape = {dtype, span.queries, c.heads, c.size, c.gate == GateKind::head_wise},
               .x = out,
               .z = from_row(gate, row),
               .y = out},
              serial());
  }
};

class DecodeCpu : public ::testing::TestWithParam<std::tuple<DType, Case>> {};

TEST_P(DecodeCpu, IsSelectAttendAndGate) {
  const Problem problem(std::get<0>(GetParam()), std::get<1>(GetParam()));
  in_every_way([&] {
    const Result expected = problem.expected();
    const Result result = problem.run();
    EXPECT_TRUE(same(result, expected));
    EXPECT_TRUE(result.out.gaps_intact());
    for (const int workers : {2, 3, 13}) EXPECT_TRUE(same(problem.run(ThreadParallel(workers)), expected));
  });
}

INSTANTIATE_TEST_SUITE_P(All, DecodeCpu,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16, DType::f16,
                                                              DType::f64),
                                            ::testing::ValuesIn(kCases)),
                         case_name<Case>);

// A layer that shares the selection of another one: with what that one has it gives the same bits, and it attends to
// what it is given, whoever chose it.
TEST_P(DecodeCpu, Followers) {
  const Problem problem(std::get<0>(GetParam()), std::get<1>(GetParam()));
  if (problem.c.index_heads > 0) decoding::expect_followers_to_have_the_bits_of_their_leader(problem);
  const Positions given = every_third(problem.c);
  EXPECT_TRUE(same(problem.follow(given), problem.expected(&given)));
}

// A prompt in chunks of any size, down to one token at a time, is the prompt at once.
TEST(DecodeCpuRules, ChunksDoNotMatter) {
  for (const std::int64_t index_heads : {3, 0}) {
    Case c = {"chunks", {333}, 333, 16, 4, 2, 24, index_heads, 20};
    const Problem problem(DType::bf16, c);
    const Result expected = problem.run();
    for (const std::int64_t step : {1, 7, 64, 100}) {
      Result result = problem.blank();
      for (std::int64_t first = 0; first < c.queries; first += step) {
        problem.run_part(first, std::min(step, c.queries - first), result, ThreadParallel(1 + first % 3));
      }
      EXPECT_TRUE(same(result, expected)) << step;
    }
  }
}

// More queries than one chunk of the operator holds, and sequences of different lengths beside each other.
TEST(DecodeCpuRules, MoreQueriesThanAChunk) {
  const Case c = {"many", {2600, 2500, 3000}, 2500, 64, 1, 1, 4, 1, 4, {BudgetMode::fixed, 8, 1, 8}};
  const Problem problem(DType::f32, c);
  EXPECT_TRUE(same(problem.run(ThreadParallel(2)), problem.expected()));
}

// A common prefix lies in the cache once.
TEST(DecodeCpuRules, SequencesMaySharePages) {
  Case c = {"shared", {100, 100}, 4, 16};
  Problem problem(DType::f32, c);
  const std::int64_t shared = 5;  // pages
  for (Tensor* x : {&problem.k, &problem.v, &problem.index_k}) {
    for (std::int64_t s = 0; s < shared * c.page_size; ++s) {
      for (std::int64_t h = 0; h < x->heads(); ++h) {
        for (std::int64_t d = 0; d < x->size(); ++d) x->set(100 + s, h, d, x->at(s, h, d));
      }
    }
  }
  std::copy_n(problem.table.begin(), shared, problem.table.begin() + problem.blocks);
  problem.write_cache();
  EXPECT_TRUE(same(problem.run(), problem.expected()));
}

TEST(DecodeCpuRules, NeighboursDoNotMatter) {
  const Case c = {"neighbours", {700, 33, 250}, 2, 32};
  const Problem problem(DType::bf16, c);
  const Result all = problem.run();
  for (std::size_t n = 0; n < c.lengths.size(); ++n) {
    Problem alone = problem;
    Result result = alone.blank();
    DecodeArgs a = alone.arguments(result);
    const std::int64_t row = static_cast<std::int64_t>(n) * c.queries;
    a.sequences = 1;
    a.q = from_row(alone.q, row);
    a.index_q = from_row(alone.index_q, row);
    a.index_w = from_row(alone.index_w, row);
    a.gate = from_row(alone.gate, row);
    a.pages.block_table += static_cast<std::int64_t>(n) * alone.blocks;
    a.pages.length += n;
    gsa::decode(a, serial());
    EXPECT_TRUE(same_bits(result.out.slice(0, c.queries), all.out.slice(row, row + c.queries))) << n;
  }
}

// A key of the indexer that is not finite: no selection and NaN for those who see it, whatever its bits.
TEST(DecodeCpuRules, AScoreThatIsNotFiniteMakesNan) {
  for (const bool bytes : {false, true}) {
    Case c = {"bad", {200}, 2, 16};
    c.bytes = bytes;
    Problem problem(DType::f32, c);
    const Result before = problem.run();
    const std::int64_t row = problem.row_of(0, 199);  // the last key: only the second query sees it
    problem.pages_index_k.set(row, 0, 3, kNan);
    problem.pages_scales[static_cast<std::size_t>(row)] = std::numeric_limits<float>::quiet_NaN();
    const Result after = problem.run();
    EXPECT_TRUE(same_bits(after.out.slice(0, 1), before.out.slice(0, 1)));
    EXPECT_EQ(after.k_t[1], 0);
    EXPECT_TRUE(std::isnan(after.out.at(1)));
    EXPECT_TRUE(std::isnan(after.lse.at(1)));
  }
}

// Keys in pages belong to decode's callees too, and are refused where nobody reads them.
TEST(DecodeCpuRules, RefusesWhatCannotBe) {
  const Case c = {"refuses", {100, 50}, 2, 16};
  const Problem problem(DType::f32, c);
  const auto complains = [&](const char* argument, const std::function<void(DecodeArgs&)>& spoil) {
    Result result = problem.blank();
    DecodeArgs args = problem.arguments(result);
    spoil(args);
    return refuses("decode", argument, [&] { gsa::decode(args, serial()); });
  };
  const std::vector<std::int32_t> longer = {100, 101}, negative = {100, -1};
  EXPECT_TRUE(complains("heads", [](DecodeArgs& a) { a.shape.heads = 5; }));
  EXPECT_TRUE(complains("queries", [](DecodeArgs& a) { a.queries = 0; }));
  EXPECT_TRUE(complains("pages.page_size", [](DecodeArgs& a) { a.pages.page_size = 24; }));
  EXPECT_TRUE(complains("pages.page_size", [](DecodeArgs& a) { a.pages.page_size = 4; }));
  EXPECT_TRUE(complains("pages.blocks", [](DecodeArgs& a) { a.max_length = 5000; }));
  EXPECT_TRUE(complains("pages.length", [](DecodeArgs& a) { a.pages.length = nullptr; }));
  EXPECT_TRUE(complains("pages.length", [&](DecodeArgs& a) { a.pages.length = longer.data(); }));
  EXPECT_TRUE(complains("pages.length", [&](DecodeArgs& a) { a.pages.length = negative.data(); }));
  EXPECT_TRUE(complains("index_k", [](DecodeArgs& a) { a.index_k.data = nullptr; }));
  EXPECT_TRUE(complains("budget.min", [](DecodeArgs& a) { a.budget.min = 9999; }));

  Positions positions(4, 300);
  const auto leads = [&](DecodeArgs& a, std::int64_t width) {
    a.selected_out = positions.at.data();
    a.selected_width = width;
  };
  EXPECT_TRUE(complains("selected_width", [&](DecodeArgs& a) { leads(a, 99); }));
  EXPECT_TRUE(complains("selected_out", [&](DecodeArgs& a) {
    leads(a, 100);
    a.index_heads = 0;
  }));
  const Positions good = every_third(c);
  const auto follows = [&](const char* argument, const std::function<void(DecodeArgs&, Positions&)>& spoil) {
    Result result = problem.blank();
    Positions given = good;
    DecodeArgs args = problem.following(result, given);
    spoil(args, given);
    return refuses("decode", argument, [&] { gsa::decode(args, serial()); });
  };
  EXPECT_TRUE(follows("selected", [](DecodeArgs& a, Positions&) { a.index_heads = 2; }));
  EXPECT_TRUE(follows("selected_k", [](DecodeArgs& a, Positions&) { a.selected_k = nullptr; }));
  EXPECT_TRUE(follows("selected_k", [](DecodeArgs&, Positions& p) { p.k_t[0] = -1; }));
  EXPECT_TRUE(follows("selected_k", [](DecodeArgs&, Positions& p) { p.k_t[0] = 35; }));
  EXPECT_TRUE(follows("selected_width", [](DecodeArgs& a, Positions&) { a.selected_width = 0; }));
  EXPECT_TRUE(follows("selected", [](DecodeArgs&, Positions& p) { p.at[0] = -1; }));
  EXPECT_TRUE(follows("selected", [](DecodeArgs&, Positions& p) { p.at[5] = p.at[4]; }));
  EXPECT_TRUE(follows("selected", [](DecodeArgs&, Positions& p) {
    p.at[static_cast<std::size_t>(p.k_t[0] - 1)] = 99;  // the first query stands at 98
  }));
  const std::vector<std::int64_t> begin = {0, 2}, keys = {0, 100};
  AttendArgs attention = {.shape = {DType::f32, c.heads, c.kv_heads, c.size, 1},
                          .q = problem.q.rows(),
                          .k = problem.pages_k.rows(),
                          .v = problem.pages_v.rows(),
                          .mask = {},
                          .sequences = {1, begin.data(), keys.data(), nullptr},
                          .pages = {c.page_size, problem.table.data(), 6, nullptr},
                          .out = {}};
  Result result = problem.blank();
  attention.out = result.out.rows();
  EXPECT_TRUE(refuses("attend", "pages.blocks", [&] { attend(attention, serial()); }));
  attention.pages.blocks = 7;
  attention.pages.page_size = 12;
  EXPECT_TRUE(refuses("attend", "pages.page_size", [&] { attend(attention, serial()); }));
}

TEST(DecodeCpuRules, NoSequences) {
  const Problem problem(DType::f32, {"none", {5}, 1, 8});
  Result result = problem.blank();
  DecodeArgs a = problem.arguments(result);
  a.sequences = 0;
  gsa::decode(a, serial());
  EXPECT_TRUE(std::isnan(result.out.at(0)));
}

}  // namespace
}  // namespace gsa::testing
