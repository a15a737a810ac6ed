// attend_lse: accuracy against the reference (the lse of reference::attend over every visible key), samples
// of queries, and which bits may depend on what.
#include "kernels/attend_lse/attend_lse.h"

#include <gtest/gtest.h>

#include <functional>

#include "query_samples.h"

namespace gsa::testing {
namespace {

struct Case {
  const char* name;
  Batch batch;
  std::int64_t heads, kv_heads, size;
  Layout layout = Layout::tokens_first;
  double sharpness = 1;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const std::vector<Case> kCases = {
    {"one", whole(1), 1, 1, 1},
    {"mha", whole(97), 3, 3, 59, Layout::gaps},
    {"gqa", whole(129), 8, 2, 64, Layout::heads_first},
    {"mqa", whole(200), 5, 1, 32},
    {"head_size_256", {{70, 600, 530}}, 4, 1, 256, Layout::gaps},
    {"many_blocks", {{140, 1500, 1360}}, 2, 1, 16},
    {"offset", {{150, 1100, 333}}, 4, 2, 20},
    {"decode", {{1, 1025, 1024}}, 8, 2, 64},
    {"packed", {{20, 20, 0}, {1, 1, 0}, {0, 5, 5}, {3, 50, 40}, {133, 164, 31}}, 4, 2, 16},
    {"sharp", {{130, 1300, 1170}}, 2, 1, 32, Layout::tokens_first, 12},
};

const std::vector<Case> kMatrixUnitCases = {
    {"group_4_128", whole(400), 8, 2, 128},
    {"group_2_128", {{130, 400, 270}}, 4, 2, 128},
    {"group_1_128", {{150, 400, 250}}, 2, 2, 128, Layout::heads_first},
    {"group_16_128", {{70, 500, 430}}, 16, 1, 128},
    {"packed_64", {{64, 64, 0}, {1, 1, 0}, {100, 300, 150}, {0, 5, 5}, {33, 640, 607}}, 8, 2, 64},
    {"wide_gaps_128", {{97, 300, 203}}, 8, 2, 128, Layout::wide_gaps},
    {"group_4_96", {{100, 500, 400}}, 4, 1, 96},
    {"mha_180", {{140, 300, 150}}, 2, 2, 180},
    {"group_4_256", {{100, 500, 400}}, 4, 1, 256},
    {"group_17_72", whole(70), 17, 1, 72},
    {"long_128", {{140, 9000, 8860}}, 4, 1, 128},
};

Tensor run_lse(AttendProblem& p, const Parallel& parallel, const QueryTiles& tiles = {}) {
  Tensor lse(real_of(p.dtype), p.batch.queries(), p.heads, 1);
  lse.fill([] { return 7; });  // what the operator has to overwrite
  backend::attend_lse({.shape = p.shape(),
                       .q = p.q.rows(),
                       .k = p.k.rows(),
                       .sequences = p.batch.view(),
                       .tiles = tiles,
                       .lse = lse.data()},
                      parallel);
  return lse;
}

class AttendLse : public ::testing::TestWithParam<std::tuple<DType, Case>> {};

TEST_P(AttendLse, MatchesTheReference) {
  const auto& [dtype, c] = GetParam();
  AttendProblem problem(dtype, c.batch, c.heads, c.kv_heads, c.size, -1, c.layout, 4321, c.sharpness);
  with_arithmetic(dtype, [&, dtype = dtype](auto arithmetic) {
    using Exact = typename decltype(arithmetic)::Exact;
    using Plain = typename decltype(arithmetic)::Plain;
    std::vector<Exact> exact;
    std::vector<Plain> plain;
    for (std::size_t n = 0; n < problem.batch.spans.size(); ++n) {
      append(exact, reference::attend(problem.input<Exact>(n)).lse);
      append(plain, reference::attend(problem.plain_input<Plain>(n)).lse);
    }
    // Powers of two instead of e cost a product with a rounded constant on the way in and on the way out.
    const Tolerance tolerance = forward_tolerance(real_of(dtype), 4);
    in_every_way([&] {
      const Tensor all = run_lse(problem, serial());
      EXPECT_TRUE(accurate(all, exact, plain, tolerance));
      for (const Sample& sample : partition(problem.batch, 2, 5)) {
        const Tensor some = run_lse(problem, serial(), sample.view());
        const std::vector<char> in = covered(problem.batch, sample);
        for (std::int64_t t = 0; t < problem.batch.queries(); ++t) {
          for (std::int64_t h = 0; h < problem.heads; ++h) {
            const bool inside = in[static_cast<std::size_t>(t)] != 0;
            ASSERT_EQ(some.at(t, h), inside ? all.at(t, h) : 0) << "query " << t << ", head " << h;
          }
        }
      }
    });
  });
}

INSTANTIATE_TEST_SUITE_P(AttendLse, AttendLse,
                         ::testing::Combine(::testing::ValuesIn(every_dtype()),
                                            ::testing::ValuesIn(cases(kCases, kMatrixUnitCases))),
                         case_name<Case>);

// ---- bits

class AttendLseBits : public EveryWay {
 protected:
  AttendProblem problem() const {
    const Batch batch = {{97, 97, 0}, {1, 1, 0}, {140, 1200, 1050}, {2, 70, 40}, {30, 300, 200}};
    return AttendProblem(dtype(), batch, 4, 2, 20, -1, Layout::tokens_first, 99);
  }
};

TEST_P(AttendLseBits, AreThoseOfAttend) {
  if (!backend::traits().threads) GTEST_SKIP() << "this backend has kernels of its own for attend";
  AttendProblem p = problem();
  EXPECT_TRUE(same_bits(run_lse(p, serial()), run_attend(p, serial()).lse));
}

TEST_P(AttendLseBits, IgnoreThreads) {
  if (!backend::traits().threads) GTEST_SKIP() << "this backend has no threads of the caller";
  AttendProblem p = problem();
  const Sample sample = partition(p.batch, 2, 8)[0];
  const Tensor expected = run_lse(p, serial(), sample.view());
  for (const int threads : {1, 2, 3}) {
    EXPECT_TRUE(same_bits(run_lse(p, ThreadParallel(threads), sample.view()), expected)) << threads;
  }
}

TEST_P(AttendLseBits, IgnoreBatchNeighbours) {
  AttendProblem all = problem();
  const Sample sample = partition(all.batch, 2, 9)[1];
  const Tensor expected = run_lse(all, serial(), sample.view());
  for (std::size_t n = 0; n < all.batch.spans.size(); ++n) {
    AttendProblem one = all.part(n, 0, all.batch.spans[n].queries, all.batch.spans[n].keys);
    const Sample own = sample_of(all.batch, sample, n);
    EXPECT_TRUE(same_bits(run_lse(one, serial(), own.view()),
                          expected.slice(all.batch.q_begin(n), all.batch.q_begin(n + 1))))
        << n;
  }
}

TEST_P(AttendLseBits, NanReachesWhoSeesIt) {
  AttendProblem clean(dtype(), {{90, 200, 110}}, 4, 2, 20, -1, Layout::tokens_first, 75);
  AttendProblem changed = clean;
  changed.k.set(160, 1, 3, kNan);  // of the second key/value head
  const Tensor before = run_lse(clean, serial()), after = run_lse(changed, serial());
  for (std::int64_t t = 0; t < 90; ++t) {
    for (std::int64_t h = 0; h < 4; ++h) {
      const bool sees = 110 + t >= 160 && h >= 2;
      ASSERT_EQ(std::isnan(after.at(t, h)), sees) << t << " " << h;
      if (!sees) {
        ASSERT_EQ(after.at(t, h), before.at(t, h)) << t << " " << h;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AttendLse, AttendLseBits, every_way(), way_name);

// ---- arguments

TEST(AttendLseArguments, NothingToDoIsFine) {
  for (const Batch& batch : {Batch{}, Batch{{0, 0, 0}}, Batch{{0, 9, 9}, {0, 0, 0}}}) {
    AttendProblem problem(backend::any_dtype(), batch, 2, 1, 8, -1, Layout::tokens_first, 1);
    EXPECT_NO_THROW(run_lse(problem, serial()));
    EXPECT_NO_THROW(run_lse(problem, serial(), Sample{}.view()));
  }
}

TEST(AttendLseArguments, NoTileGivesZeros) {
  AttendProblem problem(backend::any_dtype(), {{70, 90, 20}}, 2, 1, 8, -1, Layout::tokens_first, 1);
  const Tensor lse = run_lse(problem, serial(), Sample{}.view());
  for (std::int64_t t = 0; t < 70; ++t) EXPECT_EQ(lse.at(t, 1), 0);
}

TEST(AttendLseArguments, MistakesAreNamed) {
  AttendProblem p(backend::any_dtype(), {{3, 40, 37}, {70, 75, 5}}, 4, 2, 8, -1, Layout::tokens_first, 1);
  Tensor lse(real_of(p.dtype), p.batch.queries(), p.heads, 1);
  const AttendLseArgs good = {
      .shape = p.shape(), .q = p.q.rows(), .k = p.k.rows(), .sequences = p.batch.view(), .lse = lse.data()};
  const auto wrong = [&](const std::string& argument, const std::function<void(AttendLseArgs&)>& change) {
    AttendLseArgs args = good;
    change(args);
    return refuses("attend_lse", argument, [&] { backend::attend_lse(args, serial()); });
  };
  const std::int64_t late[] = {38, 3};
  const std::int32_t beyond[] = {1, 3}, twice[] = {1, 1}, below[] = {-1};
  EXPECT_TRUE(wrong("heads", [](AttendLseArgs& a) { a.shape.heads = 3; }));
  EXPECT_TRUE(wrong("kv_heads", [](AttendLseArgs& a) { a.shape.kv_heads = 0; }));
  EXPECT_TRUE(wrong("head_size", [](AttendLseArgs& a) { a.shape.head_size = 257; }));
  EXPECT_TRUE(wrong("scale", [](AttendLseArgs& a) { a.shape.scale = kInf; }));
  EXPECT_TRUE(wrong("q", [](AttendLseArgs& a) { a.q.data = nullptr; }));
  EXPECT_TRUE(wrong("k", [](AttendLseArgs& a) { a.k.data = nullptr; }));
  EXPECT_TRUE(wrong("lse", [](AttendLseArgs& a) { a.lse = nullptr; }));
  EXPECT_TRUE(wrong("sequences.count", [](AttendLseArgs& a) { a.sequences.count = -1; }));
  EXPECT_TRUE(wrong("sequences.q_position", [&](AttendLseArgs& a) { a.sequences.q_position = late; }));
  EXPECT_TRUE(wrong("tiles.number", [&](AttendLseArgs& a) { a.tiles = {beyond, 2}; }));
  EXPECT_TRUE(wrong("tiles.number", [&](AttendLseArgs& a) { a.tiles = {twice, 2}; }));
  EXPECT_TRUE(wrong("tiles.number", [&](AttendLseArgs& a) { a.tiles = {below, 1}; }));
  EXPECT_TRUE(wrong("tiles.count", [&](AttendLseArgs& a) { a.tiles = {beyond, -1}; }));
}

}  // namespace
}  // namespace gsa::testing
