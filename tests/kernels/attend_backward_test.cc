// attend, backward: accuracy against the reference, finite differences, and which bits may depend on what.
#include <gtest/gtest.h>

#include <string>

#include "attend_gradients.h"
#include "kernels/attend/attend.h"

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
    {"head_size_1", whole(40), 2, 2, 1, 0.5},
    {"mha_dense", whole(97), 3, 3, 59, -1, Layout::gaps},
    {"gqa_dense", whole(70), 8, 2, 64, -1, Layout::heads_first},
    {"mqa_dense", whole(64), 5, 1, 32, -1},
    {"gqa_half", whole(97), 6, 2, 59, 0.5, Layout::gaps},
    {"mqa_half", whole(130), 7, 1, 16, 0.5, Layout::heads_first},
    {"gqa_sparse", whole(200), 4, 2, 32, 0.02},
    {"head_size_256", {{8, 1100, 1092}}, 4, 1, 256, 0.5, Layout::gaps},
    {"many_blocks_dense", {{20, 1500, 1480}}, 2, 1, 16, -1},
    {"many_blocks_half", {{30, 1025, 995}}, 4, 2, 20, 0.5},
    {"many_blocks_sparse", {{300, 1400, 1100}}, 2, 1, 24, 0.02, Layout::gaps},
    {"packed_dense", {{20, 20, 0}, {1, 1, 0}, {0, 5, 5}, {3, 50, 40}, {33, 64, 31}}, 4, 2, 16, -1},
    {"packed_half", {{20, 20, 0}, {1, 1, 0}, {0, 5, 5}, {3, 50, 40}, {33, 640, 607}}, 4, 2, 16, 0.5},
    {"sharp", {{30, 1300, 1270}}, 2, 1, 32, 0.5, Layout::tokens_first, 8},
};

const std::vector<Case> kMatrixUnitCases = {
    {"mha_64", {{130, 500, 370}}, 2, 2, 64, 0.3},
    {"group_2_128_dense", {{130, 300, 170}}, 4, 2, 128, -1},
    {"group_4_128", {{150, 600, 400}}, 8, 2, 128, 0.2},
    {"group_4_128_dense", whole(300), 4, 1, 128, -1},
    {"group_4_128_full", whole(200), 4, 1, 128, 1},
    {"group_8_128_sparse", {{200, 1500, 1300}}, 8, 1, 128, 0.02},
    {"group_16_128", {{70, 300, 230}}, 16, 1, 128, 0.4},
    {"packed_128", {{64, 64, 0}, {1, 1, 0}, {100, 300, 150}, {0, 5, 5}, {33, 640, 607}}, 4, 1, 128, 0.2},
    {"heads_first_128", {{97, 200, 103}}, 8, 2, 128, 0.3, Layout::heads_first},
    {"wide_gaps_128", {{97, 200, 103}}, 8, 2, 128, 0.3, Layout::wide_gaps},
    {"group_4_96", {{100, 300, 200}}, 4, 1, 96, 0.3},
    {"group_4_256", {{60, 300, 240}}, 4, 1, 256, 0.3},
    {"group_3_192", {{100, 300, 190}}, 6, 2, 192, 0.3},
    {"mha_180_dense", {{140, 300, 150}}, 2, 2, 180, -1},
    {"mha_250_dense", {{140, 300, 150}}, 2, 2, 250, -1},
    {"group_17_72_dense", whole(70), 17, 1, 72, -1},
    {"group_40_64", {{30, 200, 170}, {3, 9, 5}}, 40, 1, 64, 0.3},
};

class AttendBackward : public ::testing::TestWithParam<std::tuple<DType, Case>> {};

TEST_P(AttendBackward, MatchesTheReference) {
  const auto& [dtype, c] = GetParam();
  AttendProblem problem(dtype, c.batch, c.heads, c.kv_heads, c.size, c.density, c.layout, 4322, c.sharpness);
  const Tensor dout = random_dout(problem, c.layout);
  with_arithmetic(dtype, [&, dtype = dtype, &c = c](auto arithmetic) {
    using Exact = typename decltype(arithmetic)::Exact;
    using Plain = typename decltype(arithmetic)::Plain;
    reference::AttendGradients<Exact> exact;
    reference::AttendGradients<Plain> plain;
    for (std::size_t n = 0; n < problem.batch.spans.size(); ++n) {
      const std::int64_t q0 = problem.batch.q_begin(n), q1 = problem.batch.q_begin(n + 1);
      const auto exact_input = problem.input<Exact>(n);
      const auto e =
          reference::attend_backward(exact_input, reference::attend(exact_input), dout.values<Exact>(q0, q1));
      // As every implementation that keeps its output in the storage type, the plain one starts from that.
      const auto plain_input = problem.plain_input<Plain>(n);
      auto plain_forward = reference::attend(plain_input);
      for (Plain& x : plain_forward.out) x = static_cast<Plain>(round_to(dtype, static_cast<double>(x)));
      const auto p = reference::attend_backward(plain_input, plain_forward, dout.values<Plain>(q0, q1));
      append(exact.dq, e.dq), append(exact.dk, e.dk), append(exact.dv, e.dv);
      append(plain.dq, p.dq), append(plain.dk, p.dk), append(plain.dv, p.dv);
    }
    const DType real = real_of(dtype);
    // dP - delta cancels, wholly so for a query with one key (the plain implementation adds both in the same
    // order, so that even their errors cancel). With scale and a key both come to some ten; each is a sum of
    // `size` products, in one chain in float64 and in several otherwise.
    const double chain = static_cast<double>(problem.size) / (dtype == DType::f64 ? 1 : 16);
    const double terms = 10 * std::sqrt(std::max(1.0, chain));
    in_every_way([&] {
      const AttendResult forward = run_attend(problem, serial(), c.layout);
      const Gradients got = run_backward(problem, forward, dout, serial(), c.layout);
      EXPECT_TRUE(got.dq.gaps_intact());
      EXPECT_TRUE(accurate(got.dq, exact.dq, plain.dq, gradient_tolerance(dtype, terms))) << "dq";
      EXPECT_TRUE(accurate(got.dk, exact.dk, plain.dk, gradient_tolerance(real, terms))) << "dk";
      EXPECT_TRUE(accurate(got.dv, exact.dv, plain.dv, gradient_tolerance(real))) << "dv";
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Attend, AttendBackward,
                         ::testing::Combine(::testing::ValuesIn(every_dtype()),
                                            ::testing::ValuesIn(cases(kCases, kMatrixUnitCases))),
                         case_name<Case>);

// ---- finite differences, in float64

TEST(AttendGradients, AreFiniteDifferences) {
  if (!takes_double()) GTEST_SKIP() << "this backend has no float64";
  for (const double density : {-1.0, 0.4}) {
    AttendProblem problem(DType::f64, {{9, 14, 5}, {4, 4, 0}}, 4, 2, 5, density, Layout::tokens_first, 55);
    const Tensor dout = random_dout(problem);
    const Gradients got = run_backward(problem, run_attend(problem, serial()), dout, serial());
    const auto objective = [&] {
      const AttendResult forward = run_attend(problem, serial());
      const std::vector<double> out = forward.out.values<double>(), weight = dout.values<double>();
      double sum = 0;
      for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * weight[i];
      return sum;
    };
    EXPECT_TRUE(is_derivative(objective, problem.q, got.dq)) << "dq, density " << density;
    EXPECT_TRUE(is_derivative(objective, problem.k, got.dk)) << "dk, density " << density;
    EXPECT_TRUE(is_derivative(objective, problem.v, got.dv)) << "dv, density " << density;
  }
}

// ---- what bits depend on

class AttendBackwardBits : public EveryWay {
 protected:
  AttendProblem problem(double density) const {
    const Batch batch = {{97, 97, 0}, {1, 1, 0}, {40, 1200, 1150}, {2, 70, 40}, {30, 300, 200}};
    return AttendProblem(dtype(), batch, 4, 2, 20, density, Layout::tokens_first, 98);
  }
};

constexpr double kDensities[] = {-1, 0.5, 0.05};

// Every sequence has the gradients that it has alone.
void expect_same_alone(AttendProblem& all, const std::string& what) {
  const Tensor dout = random_dout(all);
  const AttendResult forward = run_attend(all, serial());
  const Gradients expected = run_backward(all, forward, dout, serial());
  for (std::size_t n = 0; n < all.batch.spans.size(); ++n) {
    const std::int64_t q0 = all.batch.q_begin(n), q1 = all.batch.q_begin(n + 1);
    const std::int64_t k0 = all.batch.k_begin(n), k1 = all.batch.k_begin(n + 1);
    AttendProblem part = all.part(n, 0, q1 - q0, k1 - k0);
    const Gradients got = run_backward(part, {forward.out.slice(q0, q1), forward.lse.slice(q0, q1)},
                                       dout.slice(q0, q1), serial());
    EXPECT_TRUE(same_bits(got.dq, expected.dq.slice(q0, q1))) << "sequence " << n << ", " << what;
    EXPECT_TRUE(same_bits(got.dk, expected.dk.slice(k0, k1))) << "sequence " << n << ", " << what;
    EXPECT_TRUE(same_bits(got.dv, expected.dv.slice(k0, k1))) << "sequence " << n << ", " << what;
  }
}

TEST_P(AttendBackwardBits, IgnoreBatchNeighbours) {
  for (const double density : kDensities) {
    AttendProblem all = problem(density);
    expect_same_alone(all, "density " + std::to_string(density));
  }
}

// Sequences of many tiles, whose sums run side by side; and sums so large that tiles start in groups.
TEST_P(AttendBackwardBits, IgnoreNeighboursOfManyTiles) {
  if (!backend::traits().matrix_units) GTEST_SKIP() << "this backend has no tile scheduler";
  for (const double density : {-1.0, 0.1}) {
    AttendProblem many(dtype(), {{200, 200, 0}, {1, 1, 0}, {300, 900, 590}, {130, 130, 0}, {64, 70, 3}}, 8, 2,
                       64, density, Layout::tokens_first, 99);
    expect_same_alone(many, "side by side, density " + std::to_string(density));
    AttendProblem large(dtype(), {{300, 5200, 4900}, {40, 40, 0}, {200, 5200, 5000}}, 32, 8, 128, density,
                        Layout::tokens_first, 97);
    expect_same_alone(large, "tile groups, density " + std::to_string(density));
  }
}

TEST_P(AttendBackwardBits, IgnoreThreads) {
  if (!backend::traits().threads) GTEST_SKIP() << "this backend has no threads of the caller";
  for (const double density : kDensities) {
    AttendProblem all = problem(density);
    const Tensor dout = random_dout(all);
    const AttendResult forward = run_attend(all, serial());
    const Gradients expected = run_backward(all, forward, dout, serial());
    for (const int threads : {1, 2, 3}) {
      const Gradients got = run_backward(all, forward, dout, ThreadParallel(threads));
      EXPECT_TRUE(same_bits(got.dq, expected.dq)) << threads << " threads";
      EXPECT_TRUE(same_bits(got.dk, expected.dk)) << threads << " threads";
      EXPECT_TRUE(same_bits(got.dv, expected.dv)) << threads << " threads";
    }
  }
}

TEST_P(AttendBackwardBits, RepeatAThousandTimes) {
  AttendProblem small(dtype(), {{21, 40, 19}}, 4, 2, 12, 0.4, Layout::tokens_first, 3);
  const Tensor dout = random_dout(small);
  const AttendResult forward = run_attend(small, serial());
  const Gradients expected = run_backward(small, forward, dout, serial());
  const ThreadParallel two(2);
  for (int i = 0; i < 1000; ++i) {
    const Gradients got =
        run_backward(small, forward, dout, i % 8 == 0 ? static_cast<const Parallel&>(two) : serial());
    ASSERT_TRUE(same_bits(got.dq, expected.dq)) << "repeat " << i;
    ASSERT_TRUE(same_bits(got.dk, expected.dk)) << "repeat " << i;
    ASSERT_TRUE(same_bits(got.dv, expected.dv)) << "repeat " << i;
  }
}

TEST_P(AttendBackwardBits, AddToWhatIsThere) {
  for (const double density : {-1.0, 0.3}) {
    AttendProblem small(dtype(), whole(50), 4, 2, 12, density, Layout::tokens_first, 4);
    const Tensor dout = random_dout(small);
    const AttendResult forward = run_attend(small, serial());
    const Gradients zero = run_backward(small, forward, dout, serial());
    const Gradients three = run_backward(small, forward, dout, serial(), Layout::tokens_first, 3);
    EXPECT_TRUE(same_bits(three.dq, zero.dq));  // overwritten
    const double unit = rounding_unit(real_of(dtype()));
    for (std::int64_t s = 0; s < 50; ++s) {
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t c = 0; c < 12; ++c) {
          // A sum of 50 queries x 2 heads that starts elsewhere.
          const double k = zero.dk.at(s, h, c), v = zero.dv.at(s, h, c);
          ASSERT_NEAR(three.dk.at(s, h, c), 3 + k, 100 * unit * (3 + std::abs(k)));
          ASSERT_NEAR(three.dv.at(s, h, c), 3 + v, 100 * unit * (3 + std::abs(v)));
        }
      }
    }
  }
}

// Keys that no query selected may hold NaN; they receive no gradient and give none.
TEST_P(AttendBackwardBits, IgnoreUnselectedKeys) {
  AttendProblem clean(dtype(), {{60, 1200, 1140}}, 4, 2, 20, 0.3, Layout::tokens_first, 5);
  const std::vector<std::int64_t> unwanted = {0, 31, 32, 700, 1199};
  for (std::int64_t i = 0; i < 60; ++i) {
    clean.mask.set(i, 1, true);
    for (const std::int64_t s : unwanted) clean.mask.set(i, s, false);
  }
  const Tensor dout = random_dout(clean);
  const AttendResult forward = run_attend(clean, serial());
  const Gradients expected = run_backward(clean, forward, dout, serial(), Layout::tokens_first, 2);
  AttendProblem changed = clean;
  for (const std::int64_t s : unwanted) changed.k.fill_token(s, kNan), changed.v.fill_token(s, kNan);
  const Gradients got = run_backward(changed, forward, dout, serial(), Layout::tokens_first, 2);
  EXPECT_TRUE(same_bits(got.dq, expected.dq));
  EXPECT_TRUE(same_bits(got.dk, expected.dk));
  EXPECT_TRUE(same_bits(got.dv, expected.dv));
  for (const std::int64_t s : unwanted) {
    EXPECT_EQ(got.dk.at(s, 1, 3), 2);
    EXPECT_EQ(got.dv.at(s, 1, 3), 2);
  }
}

// The past has no gradient from keys of the future.
TEST_P(AttendBackwardBits, KeysOfTheFutureGetNothing) {
  for (const double density : {-1.0, 0.3}) {
    AttendProblem problem(dtype(), {{30, 100, 20}}, 4, 2, 20, density, Layout::tokens_first, 6);
    for (std::int64_t s = 50; s < 100; ++s) problem.k.fill_token(s, kNan), problem.v.fill_token(s, kNan);
    const Gradients got =
        run_backward(problem, run_attend(problem, serial()), random_dout(problem), serial());
    for (std::int64_t s = 0; s < 100; ++s) {
      for (std::int64_t c = 0; c < 20; ++c) {
        ASSERT_TRUE(std::isfinite(got.dk.at(s, 0, c)) && std::isfinite(got.dv.at(s, 0, c))) << s;
        ASSERT_TRUE(s < 50 || (got.dk.at(s, 0, c) == 0 && got.dv.at(s, 0, c) == 0)) << s;
      }
    }
  }
}

// A query without keys has NaN in its own gradient and touches no other.
TEST_P(AttendBackwardBits, NothingSelectedGivesNan) {
  AttendProblem clean(dtype(), whole(40), 4, 2, 20, 0.3, Layout::tokens_first, 7);
  for (std::int64_t s = 0; s < 40; ++s) clean.mask.set(25, s, false);
  const AttendResult forward = run_attend(clean, serial());
  Tensor dout = random_dout(clean);
  const Gradients got = run_backward(clean, forward, dout, serial());
  dout.fill_token(25, 1000);
  const Gradients other = run_backward(clean, forward, dout, serial());
  EXPECT_TRUE(same_bits(got.dk, other.dk));
  EXPECT_TRUE(same_bits(got.dv, other.dv));
  for (std::int64_t t = 0; t < 40; ++t) {
    for (std::int64_t c = 0; c < 20; ++c) {
      ASSERT_EQ(std::isnan(got.dq.at(t, 1, c)), t == 25) << t;
      ASSERT_TRUE(std::isfinite(got.dk.at(t, 1, c)) && std::isfinite(got.dv.at(t, 1, c))) << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Attend, AttendBackwardBits, every_way(), way_name);

// ---- arguments

TEST(AttendBackwardArguments, NothingToDoIsFine) {
  for (const Batch& batch : {Batch{}, Batch{{0, 0, 0}}, Batch{{0, 9, 9}, {0, 0, 0}}}) {
    AttendProblem problem(backend::any_dtype(), batch, 2, 1, 8, -1, Layout::tokens_first, 1);
    const Gradients got = run_backward(problem, run_attend(problem, serial()), random_dout(problem), serial(),
                                       Layout::tokens_first, 5);
    for (std::int64_t s = 0; s < problem.batch.keys(); ++s) EXPECT_EQ(got.dk.at(s), 5);
  }
}

TEST(AttendBackwardArguments, MistakesAreNamed) {
  AttendProblem problem(backend::any_dtype(), {{3, 40, 37}, {2, 5, 3}}, 4, 2, 8, 0.5, Layout::tokens_first,
                        1);
  const AttendResult forward = run_attend(problem, serial());
  const Tensor dout = random_dout(problem);
  Gradients g{Tensor(backend::any_dtype(), 5, 4, 8), Tensor(DType::f32, 45, 2, 8),
              Tensor(DType::f32, 45, 2, 8)};
  const AttendBackwardArgs good = backward_args(problem, forward, dout, g);
  backend::attend_backward(good, serial());
  using Args = AttendBackwardArgs;
  const auto wrong = [&](const std::string& argument, const std::function<void(Args&)>& change) {
    Args args = good;
    change(args);
    return refuses("attend_backward", argument, [&] { backend::attend_backward(args, serial()); });
  };
  const std::int64_t early[] = {-1, 3};
  EXPECT_TRUE(wrong("heads", [](Args& a) { a.shape.heads = 3; }));
  EXPECT_TRUE(wrong("kv_heads", [](Args& a) { a.shape.kv_heads = 0; }));
  EXPECT_TRUE(wrong("head_size", [](Args& a) { a.shape.head_size = 257; }));
  EXPECT_TRUE(wrong("scale", [](Args& a) { a.shape.scale = kNan; }));
  EXPECT_TRUE(wrong("q", [](Args& a) { a.q.data = nullptr; }));
  EXPECT_TRUE(wrong("k", [](Args& a) { a.k.data = nullptr; }));
  EXPECT_TRUE(wrong("v", [](Args& a) { a.v.data = nullptr; }));
  EXPECT_TRUE(wrong("out", [](Args& a) { a.out.data = nullptr; }));
  EXPECT_TRUE(wrong("lse", [](Args& a) { a.lse = nullptr; }));
  EXPECT_TRUE(wrong("dout", [](Args& a) { a.dout.data = nullptr; }));
  EXPECT_TRUE(wrong("dq", [](Args& a) { a.dq.data = nullptr; }));
  EXPECT_TRUE(wrong("dk", [](Args& a) { a.dk = nullptr; }));
  EXPECT_TRUE(wrong("dv", [](Args& a) { a.dv = nullptr; }));
  EXPECT_TRUE(wrong("mask.words_per_query", [](Args& a) { a.mask.words_per_query = 1; }));
  EXPECT_TRUE(wrong("sequences.count", [](Args& a) { a.sequences.count = -1; }));
  EXPECT_TRUE(wrong("sequences.q_begin", [](Args& a) { a.sequences.q_begin = nullptr; }));
  EXPECT_TRUE(wrong("sequences.q_position", [&](Args& a) { a.sequences.q_position = early; }));
}

}  // namespace
}  // namespace gsa::testing
