// attend, forward: accuracy against the reference, and which bits may depend on what.
#include "kernels/attend/attend.h"

#include <gtest/gtest.h>

#include <limits>

#include "problems.h"

namespace gsa::testing {
namespace {

struct Case {
  const char* name;
  Batch batch;
  std::int64_t heads, kv_heads, size;
  double density;  // negative: no mask
  Layout layout = Layout::tokens_first;
  double sharpness = 1;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const std::vector<Case> kCases = {
    {"one", whole(1), 1, 1, 1, -1},
    {"one_masked", whole(1), 4, 2, 16, 1},
    {"head_size_1", whole(40), 2, 2, 1, 0.5},
    {"mha_dense", whole(97), 3, 3, 59, -1, Layout::gaps},
    {"gqa_dense", whole(129), 8, 2, 64, -1, Layout::heads_first},
    {"mqa_dense", whole(64), 5, 1, 32, -1},
    {"mha_full_mask", whole(97), 2, 2, 59, 1},
    {"gqa_half", whole(97), 6, 2, 59, 0.5, Layout::gaps},
    {"mqa_half", whole(130), 7, 1, 16, 0.5, Layout::heads_first},
    {"gqa_sparse", whole(200), 4, 2, 32, 0.02},
    {"head_size_256", {{20, 600, 570}}, 4, 1, 256, 0.5, Layout::gaps},
    {"many_blocks_dense", {{40, 1500, 1460}}, 2, 1, 16, -1},
    {"many_blocks_half", {{60, 1025, 965}}, 4, 2, 20, 0.5},
    {"many_blocks_sparse", {{300, 1400, 1100}}, 2, 1, 24, 0.02, Layout::gaps},
    {"decode_dense", {{1, 1500, 1499}}, 8, 2, 64, -1},
    {"decode_sparse", {{1, 1025, 1024}}, 8, 2, 64, 0.02},
    {"packed_dense", {{20, 20, 0}, {1, 1, 0}, {0, 5, 5}, {3, 50, 40}, {33, 64, 31}}, 4, 2, 16, -1},
    {"packed_half", {{20, 20, 0}, {1, 1, 0}, {0, 5, 5}, {3, 50, 40}, {33, 640, 607}}, 4, 2, 16, 0.5},
    {"sharp_dense", {{40, 1300, 1260}}, 2, 1, 32, -1, Layout::tokens_first, 12},
    {"sharp_half", {{40, 1300, 1260}}, 2, 1, 32, 0.5, Layout::tokens_first, 12},
};

const std::vector<Case> kMatrixUnitCases = {
    {"mha_64", {{130, 700, 570}}, 2, 2, 64, 0.3},
    {"gqa_64_packed", {{64, 64, 0}, {100, 300, 150}, {0, 5, 5}, {33, 640, 607}}, 8, 2, 64, 0.2},
    {"group_1_128", {{150, 400, 250}}, 2, 2, 128, 0.2},
    {"group_2_128_dense", {{130, 400, 270}}, 4, 2, 128, -1},
    {"group_4_128", {{150, 900, 700}}, 8, 2, 128, 0.2},
    {"group_4_128_dense", whole(400), 8, 2, 128, -1},
    {"group_4_128_full", whole(300), 4, 1, 128, 1},
    {"group_8_128_sparse", {{200, 2100, 1900}}, 8, 1, 128, 0.02},
    {"group_16_128", {{70, 500, 430}}, 16, 1, 128, 0.4},
    {"packed_128", {{64, 64, 0}, {1, 1, 0}, {100, 300, 150}, {0, 5, 5}, {33, 640, 607}}, 4, 1, 128, 0.2},
    {"heads_first_128", {{97, 300, 203}}, 8, 2, 128, 0.3, Layout::heads_first},
    {"gaps_128", {{97, 300, 203}}, 8, 2, 128, 0.3, Layout::gaps},
    {"wide_gaps_128", {{97, 300, 203}}, 8, 2, 128, 0.3, Layout::wide_gaps},
    {"long_128", {{40, 9000, 8960}}, 4, 1, 128, 0.05},
    {"sharp_128", {{64, 900, 836}}, 4, 1, 128, 0.3, Layout::tokens_first, 12},
    {"decode_128", {{1, 3000, 2999}, {1, 100, 99}}, 8, 2, 128, 0.1},
    {"group_4_96", {{100, 500, 400}}, 4, 1, 96, 0.3},
    {"group_4_256", {{100, 500, 400}}, 4, 1, 256, 0.3},
    {"group_3_192", {{100, 300, 190}}, 6, 2, 192, 0.3},
    {"mha_180_dense", {{140, 300, 150}}, 2, 2, 180, -1},
    {"mha_250_dense", {{140, 300, 150}}, 2, 2, 250, -1},
    {"group_17_72_dense", whole(70), 17, 1, 72, -1},
    {"group_40_64", {{30, 200, 170}, {3, 9, 5}}, 40, 1, 64, 0.3},
};

AttendProblem problem_of(DType dtype, const Case& c) {
  return AttendProblem(dtype, c.batch, c.heads, c.kv_heads, c.size, c.density, c.layout, 4321, c.sharpness);
}

class Attend : public ::testing::TestWithParam<std::tuple<DType, Case>> {};

TEST_P(Attend, MatchesTheReference) {
  const auto& [dtype, c] = GetParam();
  AttendProblem problem = problem_of(dtype, c);
  with_arithmetic(dtype, [&, dtype = dtype, &c = c](auto arithmetic) {
    using Exact = typename decltype(arithmetic)::Exact;
    using Plain = typename decltype(arithmetic)::Plain;
    reference::AttendOutput<Exact> exact;
    reference::AttendOutput<Plain> plain;
    for (std::size_t n = 0; n < problem.batch.spans.size(); ++n) {
      const auto e = reference::attend(problem.input<Exact>(n));
      const auto p = reference::attend(problem.plain_input<Plain>(n));
      append(exact.out, e.out), append(exact.lse, e.lse);
      append(plain.out, p.out), append(plain.lse, p.lse);
    }
    // Powers of two instead of e cost a product with a rounded constant on the way in and on the way out.
    const Tolerance lse = forward_tolerance(real_of(dtype), 4);
    in_every_way([&] {
      const AttendResult result = run_attend(problem, serial(), c.layout);
      EXPECT_TRUE(result.out.gaps_intact());
      EXPECT_TRUE(accurate(result.out, exact.out, plain.out, forward_tolerance(dtype))) << "out";
      EXPECT_TRUE(accurate(result.lse, exact.lse, plain.lse, lse)) << "lse";
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Attend, Attend,
                         ::testing::Combine(::testing::ValuesIn(every_dtype()),
                                            ::testing::ValuesIn(cases(kCases, kMatrixUnitCases))),
                         case_name<Case>);

// ---- what the bits of a query depend on

class AttendBits : public EveryWay {
 protected:
  // Sequences of every kind, long enough for several blocks of keys.
  AttendProblem problem(double density) const {
    const Batch batch = {{97, 97, 0}, {1, 1, 0}, {40, 1200, 1150}, {2, 70, 40}, {30, 300, 200}};
    return AttendProblem(dtype(), batch, 4, 2, 20, density, Layout::tokens_first, 99);
  }
};

constexpr double kDensities[] = {-1, 0.5, 0.05};

TEST_P(AttendBits, IgnoreBatchNeighboursAndChunks) {
  for (const double density : kDensities) {
    SCOPED_TRACE(density);
    AttendProblem all = problem(density);
    const AttendResult expected = run_attend(all, serial());
    for (std::size_t n = 0; n < all.batch.spans.size(); ++n) {
      const reference::Span& span = all.batch.spans[n];
      const std::int64_t q0 = all.batch.q_begin(n);
      for (const std::int64_t step : {span.queries, std::int64_t{7}, std::int64_t{1}}) {
        for (std::int64_t begin = 0, end = 0; begin < span.queries; begin = end) {
          end = end_of_chunk(span, begin, step);
          // With all keys of the sequence, and with no more than are visible.
          for (const std::int64_t keys : {span.keys, span.visible(end - 1)}) {
            AttendProblem part = all.part(n, begin, end, keys);
            const AttendResult got = run_attend(part, serial());
            ASSERT_TRUE(same_bits(got.out, expected.out.slice(q0 + begin, q0 + end))) << n << " " << begin;
            ASSERT_TRUE(same_bits(got.lse, expected.lse.slice(q0 + begin, q0 + end))) << n << " " << begin;
          }
        }
      }
    }
  }
}

TEST_P(AttendBits, IgnoreThreads) {
  if (!backend::traits().threads) GTEST_SKIP() << "this backend has no threads of the caller";
  for (const double density : kDensities) {
    AttendProblem all = problem(density);
    const AttendResult expected = run_attend(all, serial());
    for (const int threads : {1, 2, 3}) {
      const AttendResult got = run_attend(all, ThreadParallel(threads));
      EXPECT_TRUE(same_bits(got.out, expected.out)) << threads << " threads";
      EXPECT_TRUE(same_bits(got.lse, expected.lse)) << threads << " threads";
    }
  }
}

TEST_P(AttendBits, RepeatAThousandTimes) {
  AttendProblem small(dtype(), {{21, 40, 19}}, 4, 2, 12, 0.4, Layout::tokens_first, 3);
  const AttendResult expected = run_attend(small, serial());
  const ThreadParallel two(2);
  for (int i = 0; i < 1000; ++i) {
    const AttendResult got = run_attend(small, i % 8 == 0 ? static_cast<const Parallel&>(two) : serial());
    ASSERT_TRUE(same_bits(got.out, expected.out)) << "repeat " << i;
    ASSERT_TRUE(same_bits(got.lse, expected.lse)) << "repeat " << i;
  }
}

// The future may hold anything, NaN too; without a mask and with one.
TEST_P(AttendBits, IgnoreTheFuture) {
  for (const double density : kDensities) {
    AttendProblem clean(dtype(), whole(200), 4, 2, 20, density, Layout::tokens_first, 17);
    const AttendResult expected = run_attend(clean, serial());
    for (const std::int64_t from : {1, 63, 64, 150, 199}) {
      AttendProblem changed = clean;
      for (std::int64_t s = from; s < 200; ++s) changed.k.fill_token(s, kNan), changed.v.fill_token(s, kInf);
      const AttendResult got = run_attend(changed, serial());
      EXPECT_TRUE(same_bits(got.out.slice(0, from), expected.out.slice(0, from))) << "changed from " << from;
      EXPECT_TRUE(same_bits(got.lse.slice(0, from), expected.lse.slice(0, from))) << "changed from " << from;
    }
  }
}

// NaN or infinity in a key or its value reaches the queries that selected the key, and no other.
TEST_P(AttendBits, IgnoreUnselectedKeys) {
  for (const double density : {0.5, 0.05}) {
    AttendProblem clean(dtype(), {{150, 1300, 1150}}, 4, 2, 20, density, Layout::tokens_first, 18);
    const AttendResult expected = run_attend(clean, serial());
    for (const bool in_value : {false, true}) {
      AttendProblem changed = clean;
      const std::vector<std::int64_t> bad = {0, 5, 300, 1180, 1299};
      for (const std::int64_t s : bad) {
        (in_value ? changed.v : changed.k).fill_token(s, s == 5 && in_value ? kInf : kNan);
      }
      const AttendResult got = run_attend(changed, serial());
      std::int64_t touched_queries = 0;
      for (std::int64_t i = 0; i < 150; ++i) {
        bool touched = false;
        for (const std::int64_t s : bad) touched = touched || clean.mask.get(i, s);
        touched_queries += touched;
        if (!touched) {
          ASSERT_TRUE(same_bits(got.out.slice(i, i + 1), expected.out.slice(i, i + 1))) << "query " << i;
          ASSERT_TRUE(same_bits(got.lse.slice(i, i + 1), expected.lse.slice(i, i + 1))) << "query " << i;
          continue;
        }
        for (std::int64_t h = 0; h < 4; ++h) {
          ASSERT_FALSE(std::isfinite(got.out.at(i, h, 3))) << "query " << i << " head " << h;
          ASSERT_EQ(std::isnan(got.lse.at(i, h)), !in_value) << "query " << i << " head " << h;
        }
      }
      EXPECT_GT(touched_queries, 0);
      EXPECT_LT(touched_queries, 150);
    }
  }
}

TEST_P(AttendBits, NanInAQueryStaysThere) {
  for (const double density : kDensities) {
    AttendProblem clean(dtype(), whole(70), 4, 2, 20, density, Layout::tokens_first, 19);
    const AttendResult expected = run_attend(clean, serial());
    AttendProblem changed = clean;
    changed.q.set(33, 2, 7, kNan);
    const AttendResult got = run_attend(changed, serial());
    for (std::int64_t t = 0; t < 70; ++t) {
      for (std::int64_t h = 0; h < 4; ++h) {
        const bool bad = t == 33 && h == 2;
        ASSERT_EQ(std::isnan(got.lse.at(t, h)), bad);
        for (std::int64_t c = 0; c < 20; ++c) {
          const bool as_before = got.out.bits(t, h, c) == expected.out.bits(t, h, c);
          ASSERT_TRUE(bad ? std::isnan(got.out.at(t, h, c)) : as_before) << t << " " << h << " " << c;
        }
      }
    }
  }
}

TEST_P(AttendBits, NothingSelectedGivesNan) {
  AttendProblem clean(dtype(), whole(70), 4, 2, 20, 0.3, Layout::tokens_first, 20);
  const AttendResult expected = run_attend(clean, serial());
  AttendProblem changed = clean;
  for (const std::int64_t t : {0, 33, 34, 69}) {
    for (std::int64_t s = 0; s < 70; ++s) changed.mask.set(t, s, false);
  }
  const AttendResult got = run_attend(changed, serial());
  for (std::int64_t t = 0; t < 70; ++t) {
    if (t != 0 && t != 33 && t != 34 && t != 69) {
      ASSERT_TRUE(same_up_to_tiles(got.out.slice(t, t + 1), expected.out.slice(t, t + 1))) << t;
      continue;
    }
    for (std::int64_t h = 0; h < 4; ++h) {
      ASSERT_TRUE(std::isnan(got.lse.at(t, h)));
      for (std::int64_t c = 0; c < 20; ++c) ASSERT_TRUE(std::isnan(got.out.at(t, h, c)));
    }
  }
}

// A mask of all visible keys and no mask are the same attention.
TEST_P(AttendBits, FullMaskIsDense) {
  AttendProblem full(dtype(), {{97, 97, 0}, {20, 1300, 1280}}, 4, 2, 20, 1, Layout::tokens_first, 21);
  full.mask = MaskWords(full.batch);
  for (std::size_t n = 0; n < 2; ++n) {
    for (std::int64_t i = 0; i < full.batch.spans[n].queries; ++i) {
      for (std::int64_t s = 0; s < full.batch.spans[n].visible(i); ++s) {
        full.mask.set(full.batch.q_begin(n) + i, s, true);
      }
    }
  }
  AttendProblem dense = full;
  dense.dense = true;
  const AttendResult a = run_attend(full, serial()), b = run_attend(dense, serial());
  EXPECT_TRUE(same_up_to_tiles(a.out, b.out));
  EXPECT_TRUE(same_up_to_tiles(a.lse, b.lse));
}

// Large logits: the running maximum moves late, early and hardly; nothing overflows.
TEST_P(AttendBits, LargeLogitsStayFinite) {
  for (const double slope : {-1.0, 0.0, 1.0}) {
    AttendProblem problem(dtype(), {{3, 1500, 1497}}, 1, 1, 2, -1, Layout::tokens_first, 22);
    problem.scale = 1;
    problem.q.fill([] { return 30; });
    for (std::int64_t s = 0; s < 1500; ++s) {
      for (std::int64_t c = 0; c < 2; ++c)
        problem.k.set(s, 0, c, 4 + slope * (static_cast<double>(s) - 750) / 250);
    }
    const AttendResult got = run_attend(problem, serial());
    const auto exact = reference::attend(problem.input<double>(0));
    for (std::int64_t i = 0; i < 3; ++i) {
      const double unit = rounding_unit(real_of(dtype()));
      // The logits are some 400 large, which bounds what float can tell: 400 roundings of relative size.
      ASSERT_NEAR(got.lse.at(i), exact.lse[i], 4 * unit * 450) << "slope " << slope;
      for (std::int64_t c = 0; c < 2; ++c) {
        ASSERT_NEAR(got.out.at(i, 0, c), exact.out[i * 2 + c], 4 * (450 * unit + rounding_unit(dtype())))
            << slope;
      }
    }
  }
}

TEST_P(AttendBits, LogSumExpIsOptional) {
  AttendProblem all = problem(0.5);
  const AttendResult expected = run_attend(all, serial());
  Tensor out(dtype(), all.batch.queries(), all.heads, all.size);
  backend::attend({.shape = all.shape(),
                   .q = all.q.rows(),
                   .k = all.k.rows(),
                   .v = all.v.rows(),
                   .mask = all.mask_view(),
                   .sequences = all.batch.view(),
                   .out = out.rows()},
                  serial());
  EXPECT_TRUE(same_bits(out, expected.out));
}

INSTANTIATE_TEST_SUITE_P(Attend, AttendBits, every_way(), way_name);

// ---- arguments

TEST(AttendArguments, NothingToDoIsFine) {
  for (const Batch& batch : {Batch{}, Batch{{0, 0, 0}}, Batch{{0, 9, 9}, {0, 0, 0}}}) {
    AttendProblem problem(backend::any_dtype(), batch, 2, 1, 8, -1, Layout::tokens_first, 1);
    run_attend(problem, serial());
  }
  AttendArgs nothing;
  nothing.shape = {backend::any_dtype(), 2, 1, 8, 1};
  backend::attend(nothing, serial());
}

TEST(AttendArguments, MistakesAreNamed) {
  AttendProblem problem(backend::any_dtype(), {{3, 40, 37}, {2, 5, 3}}, 4, 2, 8, 0.5, Layout::tokens_first,
                        1);
  Tensor out(backend::any_dtype(), 5, 4, 8);
  const AttendArgs good = {.shape = problem.shape(),
                           .q = problem.q.rows(),
                           .k = problem.k.rows(),
                           .v = problem.v.rows(),
                           .mask = problem.mask_view(),
                           .sequences = problem.batch.view(),
                           .out = out.rows()};
  backend::attend(good, serial());
  const auto wrong = [&](const std::string& argument, const std::function<void(AttendArgs&)>& change) {
    AttendArgs args = good;
    change(args);
    return refuses("attend", argument, [&] { backend::attend(args, serial()); });
  };
  EXPECT_TRUE(wrong("heads", [](AttendArgs& a) { a.shape.heads = 3; }));
  EXPECT_TRUE(wrong("heads", [](AttendArgs& a) { a.shape.heads = 0; }));
  EXPECT_TRUE(wrong("heads", [](AttendArgs& a) { a.shape.heads = -4; }));
  EXPECT_TRUE(wrong("heads", [](AttendArgs& a) { a.shape.heads = std::int64_t{1} << 40; }));
  EXPECT_TRUE(wrong("kv_heads", [](AttendArgs& a) { a.shape.kv_heads = 0; }));
  EXPECT_TRUE(wrong("kv_heads", [](AttendArgs& a) { a.shape.kv_heads = -2; }));
  EXPECT_TRUE(wrong("head_size", [](AttendArgs& a) { a.shape.head_size = 0; }));
  EXPECT_TRUE(wrong("head_size", [](AttendArgs& a) { a.shape.head_size = 257; }));
  EXPECT_TRUE(wrong("head_size", [](AttendArgs& a) { a.shape.head_size = -1; }));
  EXPECT_TRUE(wrong("scale", [](AttendArgs& a) { a.shape.scale = kNan; }));
  EXPECT_TRUE(wrong("scale", [](AttendArgs& a) { a.shape.scale = kInf; }));
  EXPECT_TRUE(wrong("q", [](AttendArgs& a) { a.q.data = nullptr; }));
  EXPECT_TRUE(wrong("k", [](AttendArgs& a) { a.k.data = nullptr; }));
  EXPECT_TRUE(wrong("v", [](AttendArgs& a) { a.v.data = nullptr; }));
  EXPECT_TRUE(wrong("out", [](AttendArgs& a) { a.out.data = nullptr; }));
  EXPECT_TRUE(wrong("mask.words_per_query", [](AttendArgs& a) { a.mask.words_per_query = 1; }));
  EXPECT_TRUE(wrong("sequences.count", [](AttendArgs& a) { a.sequences.count = -1; }));
  EXPECT_TRUE(wrong("sequences.q_begin", [](AttendArgs& a) { a.sequences.q_begin = nullptr; }));
  EXPECT_TRUE(wrong("sequences.k_begin", [](AttendArgs& a) { a.sequences.k_begin = nullptr; }));

  const auto offsets = [&](const std::string& argument, const std::vector<std::int64_t>& q,
                           const std::vector<std::int64_t>& k, const std::vector<std::int64_t>& position) {
    return wrong(argument, [&](AttendArgs& a) {
      a.sequences = {static_cast<std::int64_t>(q.size()) - 1, q.data(), k.data(),
                     position.empty() ? nullptr : position.data()};
    });
  };
  constexpr std::int64_t kHuge = std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
  EXPECT_TRUE(offsets("sequences.q_begin[0]", {1, 3}, {0, 40}, {}));
  EXPECT_TRUE(offsets("sequences.k_begin[0]", {0, 3}, {1, 40}, {}));
  EXPECT_TRUE(offsets("sequences.q_begin", {0, 3, 2}, {0, 40, 45}, {}));
  EXPECT_TRUE(offsets("sequences.k_begin", {0, 3, 5}, {0, 40, 39}, {}));
  EXPECT_TRUE(offsets("sequences.k_begin", {0, 3}, {0, kHuge}, {}));
  EXPECT_TRUE(offsets("sequences.q_position", {0, 3}, {0, 2}, {}));     // more queries than keys
  EXPECT_TRUE(offsets("sequences.q_position", {0, 3}, {0, 40}, {-1}));  // before the start
  EXPECT_TRUE(offsets("sequences.q_position", {0, 3}, {0, 40}, {38}));  // past the end
  EXPECT_TRUE(offsets("sequences.q_position", {0, 3}, {0, 40}, {std::numeric_limits<std::int64_t>::max()}));
}

}  // namespace
}  // namespace gsa::testing
