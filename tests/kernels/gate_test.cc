// gate: accuracy, gradients, special values, layouts, arguments.
#include "kernels/gate/gate.h"

#include <gtest/gtest.h>

#include <limits>

#include "problems.h"

namespace gsa::testing {
namespace {

struct Case {
  const char* name;
  std::int64_t tokens, heads, size;
  bool head_wise;
  Layout layout = Layout::tokens_first;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const std::vector<Case> kCases = {
    {"one", 1, 1, 1, false},
    {"one_head_wise", 1, 1, 1, true},
    {"odd", 97, 3, 59, false, Layout::gaps},
    {"odd_head_wise", 97, 3, 59, true, Layout::gaps},
    {"heads_first", 33, 4, 64, false, Layout::heads_first},
    {"heads_first_head_wise", 33, 4, 64, true, Layout::heads_first},
    {"head_size_1", 1025, 2, 1, false},
    {"head_size_256", 5, 2, 256, false},
    {"long_rows", 7, 1, 1025, false},
    {"long_rows_head_wise", 7, 1, 1025, true, Layout::gaps},
    {"many_tasks", 700, 2, 100, true},
};

struct Problem {
  GateShape shape;
  Tensor x, z, dy;

  Problem(DType dtype, const Case& c, std::uint64_t seed)
      : shape{dtype, c.tokens, c.heads, c.size, c.head_wise},
        x(dtype, c.tokens, c.heads, c.size, c.layout),
        z(dtype, c.tokens, c.heads, c.head_wise ? 1 : c.size, c.layout),
        dy(dtype, c.tokens, c.heads, c.size, c.layout) {
    Random random(seed);
    x.fill([&] { return 2 * random.normal(); });
    z.fill([&] { return 3 * random.normal(); });
    dy.fill([&] { return random.normal(); });
  }
};

struct Gradients {
  Tensor dx, dz;
};

Tensor run_gate(const Problem& p, const Parallel& parallel, Layout layout = Layout::tokens_first) {
  Tensor y(p.shape.dtype, p.shape.tokens, p.shape.heads, p.shape.head_size, layout);
  backend::gate({p.shape, p.x.rows(), p.z.rows(), y.rows()}, parallel);
  return y;
}

Gradients run_backward(const Problem& p, const Parallel& parallel, Layout layout = Layout::tokens_first) {
  Gradients g{Tensor(p.shape.dtype, p.shape.tokens, p.shape.heads, p.shape.head_size, layout),
              Tensor(p.shape.dtype, p.shape.tokens, p.shape.heads, p.z.size(), layout)};
  backend::gate_backward({p.shape, p.x.rows(), p.z.rows(), p.dy.rows(), g.dx.rows(), g.dz.rows()}, parallel);
  return g;
}

class Gate : public ::testing::TestWithParam<std::tuple<DType, Case>> {};

TEST_P(Gate, MatchesTheReference) {
  const auto& [dtype, c] = GetParam();
  const Problem problem(dtype, c, 11);
  with_arithmetic(dtype, [&, dtype = dtype, &c = c](auto arithmetic) {
    using Exact = typename decltype(arithmetic)::Exact;
    using Plain = typename decltype(arithmetic)::Plain;
    const auto compute = [&]<typename Real>(Real) {
      const auto x = problem.x.values<Real>(), z = problem.z.values<Real>(), dy = problem.dy.values<Real>();
      return std::make_pair(reference::gate(x, z), reference::gate_backward(x, z, dy));
    };
    const auto exact = compute(Exact());
    const auto plain = compute(Plain());
    in_every_way([&] {
      const Tensor y = run_gate(problem, serial(), c.layout);
      const Gradients g = run_backward(problem, serial(), c.layout);
      EXPECT_TRUE(y.gaps_intact() && g.dx.gaps_intact() && g.dz.gaps_intact());
      EXPECT_TRUE(accurate(y, exact.first, plain.first, forward_tolerance(dtype))) << "y";
      EXPECT_TRUE(accurate(g.dx, exact.second.dx, plain.second.dx, gradient_tolerance(dtype))) << "dx";
      EXPECT_TRUE(accurate(g.dz, exact.second.dz, plain.second.dz, gradient_tolerance(dtype))) << "dz";
    });
  });
}

TEST_P(Gate, IgnoresThreads) {
  if (!backend::traits().threads) GTEST_SKIP() << "this backend has no threads of the caller";
  const auto& [dtype, c] = GetParam();
  const Problem problem(dtype, c, 12);
  const Tensor y = run_gate(problem, serial());
  const Gradients g = run_backward(problem, serial());
  for (const int threads : {1, 2, 3}) {
    const ThreadParallel parallel(threads);
    EXPECT_TRUE(same_bits(run_gate(problem, parallel), y));
    const Gradients other = run_backward(problem, parallel);
    EXPECT_TRUE(same_bits(other.dx, g.dx));
    EXPECT_TRUE(same_bits(other.dz, g.dz));
  }
}

TEST_P(Gate, WorksInPlace) {
  const auto& [dtype, c] = GetParam();
  Problem problem(dtype, c, 13);
  const Tensor y = run_gate(problem, serial());
  backend::gate({problem.shape, problem.x.rows(), problem.z.rows(), problem.x.rows()}, serial());
  EXPECT_TRUE(same_bits(problem.x, y));
}

INSTANTIATE_TEST_SUITE_P(Gate, Gate,
                         ::testing::Combine(::testing::ValuesIn(backend::traits().gate_dtypes),
                                            ::testing::ValuesIn(kCases)),
                         case_name<Case>);

TEST(GateGradients, AreFiniteDifferences) {
  if (!takes_double()) GTEST_SKIP() << "this backend has no float64";
  for (const bool head_wise : {false, true}) {
    Problem problem(DType::f64, {"", 3, 2, 7, head_wise}, 14);
    const auto objective = [&] {
      const std::vector<double> y = run_gate(problem, serial()).values<double>(),
                                dy = problem.dy.values<double>();
      double sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
      return sum;
    };
    const Gradients g = run_backward(problem, serial());
    EXPECT_TRUE(is_derivative(objective, problem.x, g.dx)) << head_wise;
    EXPECT_TRUE(is_derivative(objective, problem.z, g.dz)) << head_wise;
  }
}

// ---- values

class GateValues : public EveryWay {};

// A gate of one half is exact, so this is the conversion of every number there is, with its roundings: halves
// of the odd smallest numbers are ties.
TEST_P(GateValues, HalvesEveryNumber) {
  const DType type = dtype();
  Problem problem(type, {"", 256, 1, 256, true}, 15);
  problem.z.fill([] { return 0; });
  std::uint64_t pattern = 0;
  problem.x.fill([&] {
    const std::uint64_t bits = pattern++;
    if (type == DType::f64) return decode(type, bits << 48 | 0x5555);
    return decode(type, type == DType::f32 ? bits << 16 | 0x5555 : bits);
  });
  const Tensor y = run_gate(problem, serial());
  for (std::int64_t t = 0; t < 256; ++t) {
    for (std::int64_t c = 0; c < 256; ++c) {
      const double x = problem.x.at(t, 0, c), expected = round_to(type, x / 2), got = y.at(t, 0, c);
      ASSERT_TRUE(std::isnan(x) ? std::isnan(got) : got == expected) << x << " became " << got;
    }
  }
}

TEST_P(GateValues, OpenAndClosed) {
  for (const bool head_wise : {false, true}) {
    Problem problem(dtype(), {"", 4, 1, 20, head_wise}, 16);
    const std::vector<double> gates = {kInf, -kInf, 2000, -2000};
    for (std::int64_t t = 0; t < 4; ++t) problem.z.fill_token(t, gates[static_cast<std::size_t>(t)]);
    const Tensor y = run_gate(problem, serial());
    const Gradients g = run_backward(problem, serial());
    for (std::int64_t t = 0; t < 4; ++t) {
      for (std::int64_t c = 0; c < 20; ++c) {
        const double x = problem.x.at(t, 0, c), dy = problem.dy.at(t, 0, c);
        // A closed gate may leave a rest that is lost in anything it is added to.
        ASSERT_NEAR(y.at(t, 0, c), gates[static_cast<std::size_t>(t)] > 0 ? x : 0, 1e-30);
        ASSERT_NEAR(g.dx.at(t, 0, c), gates[static_cast<std::size_t>(t)] > 0 ? dy : 0, 1e-30);
        ASSERT_NEAR(g.dz.at(t, 0, head_wise ? 0 : c), 0, 1e-30);
      }
    }
  }
}

TEST_P(GateValues, NanStaysInItsRow) {
  for (const bool head_wise : {false, true}) {
    for (const bool in_gate : {false, true}) {
      const Problem clean(dtype(), {"", 5, 2, 20, head_wise}, 17);
      Problem changed = clean;
      (in_gate ? changed.z : changed.x).set(3, 1, 0, kNan);
      const Tensor before = run_gate(clean, serial()), y = run_gate(changed, serial());
      const Gradients gradients_before = run_backward(clean, serial()), g = run_backward(changed, serial());
      for (std::int64_t t = 0; t < 5; ++t) {
        for (std::int64_t h = 0; h < 2; ++h) {
          for (std::int64_t c = 0; c < 20; ++c) {
            const bool bad = t == 3 && h == 1 && (c == 0 || (head_wise && in_gate));
            ASSERT_TRUE(bad ? std::isnan(y.at(t, h, c)) : y.bits(t, h, c) == before.bits(t, h, c));
            const bool bad_dx = bad && in_gate;
            ASSERT_TRUE(bad_dx ? std::isnan(g.dx.at(t, h, c))
                               : g.dx.bits(t, h, c) == gradients_before.dx.bits(t, h, c));
            const std::int64_t z = head_wise ? 0 : c;
            const bool bad_dz = t == 3 && h == 1 && z == 0;
            ASSERT_TRUE(bad_dz ? std::isnan(g.dz.at(t, h, z))
                               : g.dz.bits(t, h, z) == gradients_before.dz.bits(t, h, z));
          }
        }
      }
    }
  }
}

// The paper's gradient theorem: what passes back through a gate never grows.
TEST_P(GateValues, GradientsContract) {
  const Problem problem(dtype(), {"", 40, 2, 30, false}, 18);
  const Gradients g = run_backward(problem, serial());
  for (std::int64_t t = 0; t < 40; ++t) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t c = 0; c < 30; ++c) {
        const double dy = problem.dy.at(t, h, c), x = problem.x.at(t, h, c);
        ASSERT_LE(std::abs(g.dx.at(t, h, c)), std::abs(dy));
        // The slope of sigmoid is at most 1/4; the bound is rounded as the result was.
        ASSERT_LE(std::abs(g.dz.at(t, h, c)), std::abs(dy * x) / 4 * (1 + 2 * rounding_unit(dtype())));
      }
    }
  }
}

TEST_P(GateValues, RepeatAThousandTimes) {
  const Problem problem(dtype(), {"", 9, 2, 11, true}, 19);
  const Tensor y = run_gate(problem, serial());
  const Gradients g = run_backward(problem, serial());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(same_bits(run_gate(problem, serial()), y)) << "repeat " << i;
    ASSERT_TRUE(same_bits(run_backward(problem, serial()).dz, g.dz)) << "repeat " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Gate, GateValues, every_way(backend::traits().gate_dtypes), way_name);

// ---- arguments

TEST(GateArguments, NothingToDoIsFine) {
  for (const Case& c : {Case{"", 0, 2, 8, false}, Case{"", 3, 0, 8, true}, Case{"", 3, 2, 0, false}}) {
    const Problem problem(backend::any_dtype(), c, 1);
    run_gate(problem, serial());
    run_backward(problem, serial());
  }
}

TEST(GateArguments, MistakesAreNamed) {
  Problem problem(backend::any_dtype(), {"", 3, 2, 8, false}, 1);
  Tensor y(backend::any_dtype(), 3, 2, 8), z(backend::any_dtype(), 3, 2, 8);
  const GateArgs forward = {problem.shape, problem.x.rows(), problem.z.rows(), y.rows()};
  const GateBackwardArgs backward = {problem.shape,     problem.x.rows(), problem.z.rows(),
                                     problem.dy.rows(), y.rows(),         z.rows()};
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  const auto wrong_shape = [&](const std::string& argument, const std::function<void(GateShape&)>& change) {
    GateArgs f = forward;
    GateBackwardArgs b = backward;
    change(f.shape), change(b.shape);
    const auto first = refuses("gate", argument, [&] { backend::gate(f, serial()); });
    return first ? refuses("gate_backward", argument, [&] { backend::gate_backward(b, serial()); }) : first;
  };
  EXPECT_TRUE(wrong_shape("tokens", [](GateShape& s) { s.tokens = -1; }));
  EXPECT_TRUE(wrong_shape("heads", [](GateShape& s) { s.heads = -1; }));
  EXPECT_TRUE(wrong_shape("head_size", [](GateShape& s) { s.head_size = -1; }));
  EXPECT_TRUE(wrong_shape("tokens x heads", [](GateShape& s) { s.tokens = s.heads = kHuge; }));
  EXPECT_TRUE(
      wrong_shape("tokens x heads x head_size", [](GateShape& s) { s.tokens = s.head_size = kHuge; }));
  const auto wrong = [&](const std::string& argument, const std::function<void(GateArgs&)>& change) {
    GateArgs args = forward;
    change(args);
    return refuses("gate", argument, [&] { backend::gate(args, serial()); });
  };
  EXPECT_TRUE(wrong("x", [](GateArgs& a) { a.x.data = nullptr; }));
  EXPECT_TRUE(wrong("z", [](GateArgs& a) { a.z.data = nullptr; }));
  EXPECT_TRUE(wrong("y", [](GateArgs& a) { a.y.data = nullptr; }));
  const auto wrong_back = [&](const std::string& argument,
                              const std::function<void(GateBackwardArgs&)>& change) {
    GateBackwardArgs args = backward;
    change(args);
    return refuses("gate_backward", argument, [&] { backend::gate_backward(args, serial()); });
  };
  EXPECT_TRUE(wrong_back("x", [](GateBackwardArgs& a) { a.x.data = nullptr; }));
  EXPECT_TRUE(wrong_back("z", [](GateBackwardArgs& a) { a.z.data = nullptr; }));
  EXPECT_TRUE(wrong_back("dy", [](GateBackwardArgs& a) { a.dy.data = nullptr; }));
  EXPECT_TRUE(wrong_back("dx", [](GateBackwardArgs& a) { a.dx.data = nullptr; }));
  EXPECT_TRUE(wrong_back("dz", [](GateBackwardArgs& a) { a.dz.data = nullptr; }));
}

}  // namespace
}  // namespace gsa::testing
