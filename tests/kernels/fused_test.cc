// rms_norm, rotary, swiglu, cross_entropy, adamw: accuracy, gradients, threads, special values, arguments.
#include <gtest/gtest.h>

#include <optional>

#include "fused_backend.h"
#include "problems.h"
#include "reference/fused.h"

namespace gsa::testing {
namespace {

// A contiguous tensor [tokens, size] of normal numbers.
Tensor normal_rows(DType dtype, std::int64_t tokens, std::int64_t size, Random& random, double scale = 1) {
  Tensor rows(dtype, tokens, 1, size);
  rows.fill([&] { return scale * random.normal(); });
  return rows;
}

Tensor blank(DType dtype, std::int64_t tokens, std::int64_t size) { return Tensor(dtype, tokens, 1, size); }

auto every_type_and(const auto& cases) {
  return ::testing::Combine(::testing::ValuesIn(backend::traits().gate_dtypes), ::testing::ValuesIn(cases));
}

struct RowCase {
  const char* name;
  std::int64_t tokens, size;
};
std::ostream& operator<<(std::ostream& out, const RowCase& c) { return out << c.name; }

// Rows of one warp and of one block, aligned or not, one vector a thread or several.
const std::vector<RowCase> kRowCases = {
    {"one", 1, 1},       {"odd", 97, 59},   {"warp", 33, 256},   {"two_vectors", 131, 512},
    {"block", 70, 2048}, {"long", 9, 4096}, {"longer", 3, 8192}, {"unaligned", 11, 1025},
    {"many", 4200, 64}};

// ---- rms_norm

constexpr double kEps = 1e-5;

struct NormProblem {
  RmsNormShape shape;
  Tensor x, branch, weight, dy, dsum;

  NormProblem(DType dtype, const RowCase& c, std::uint64_t seed) : shape{dtype, c.tokens, c.size, kEps} {
    Random random(seed);
    x = normal_rows(dtype, c.tokens, c.size, random, 2);
    branch = normal_rows(dtype, c.tokens, c.size, random);
    weight = Tensor(dtype, 1, 1, c.size);
    weight.fill([&] { return 1 + 0.3 * random.normal(); });
    dy = normal_rows(dtype, c.tokens, c.size, random);
    dsum = normal_rows(dtype, c.tokens, c.size, random);
  }
};

struct Norms {
  Tensor y, sum, rstd;
};
Norms run_norm(const NormProblem& p, bool with_branch, const Parallel& parallel) {
  const auto& [dtype, tokens, size, eps] = p.shape;
  Norms out{blank(dtype, tokens, size), blank(dtype, tokens, size), Tensor::reals(dtype, tokens)};
  backend::rms_norm({p.shape, p.x.data(), with_branch ? p.branch.data() : nullptr, p.weight.data(),
                     out.y.data(), with_branch ? out.sum.data() : nullptr, out.rstd.data()},
                    parallel);
  return out;
}

struct NormGradients {
  Tensor dx, dweight;
};
NormGradients run_norm_backward(const NormProblem& p, const Tensor& sum, const Tensor& rstd, bool with_dsum,
                                const Parallel& parallel) {
  const auto& [dtype, tokens, size, eps] = p.shape;
  NormGradients out{blank(dtype, tokens, size), Tensor::reals(dtype, size)};
  backend::rms_norm_backward({p.shape, p.dy.data(), with_dsum ? p.dsum.data() : nullptr, sum.data(),
                              p.weight.data(), rstd.data(), out.dx.data(), out.dweight.data()},
                             parallel);
  return out;
}

class RmsNorm : public ::testing::TestWithParam<std::tuple<DType, RowCase>> {};

TEST_P(RmsNorm, MatchesTheReference) {
  const auto& [dtype, c] = GetParam();
  const NormProblem problem(dtype, c, 21);
  for (const bool with_branch : {false, true}) {
    SCOPED_TRACE(with_branch ? "with a branch" : "alone");
    in_every_way([&, dtype = dtype] {
      const Norms got = run_norm(problem, with_branch, serial());
      const Tensor& sum = with_branch ? got.sum : problem.x;
      const NormGradients back = run_norm_backward(problem, sum, got.rstd, with_branch, serial());
      with_arithmetic(dtype, [&](auto arithmetic) {
        const auto compute = [&]<typename Real>(Real) {
          const auto s = sum.values<Real>(), weight = problem.weight.values<Real>();
          const auto dsum = with_branch ? problem.dsum.values<Real>() : std::vector<Real>();
          return std::make_pair(reference::rms_norm(s, weight, static_cast<Real>(kEps)),
                                reference::rms_norm_backward(problem.dy.values<Real>(), dsum, s, weight,
                                                             static_cast<Real>(kEps)));
        };
        const auto exact = compute(typename decltype(arithmetic)::Exact());
        const auto plain = compute(typename decltype(arithmetic)::Plain());
        EXPECT_TRUE(accurate(got.y, exact.first, plain.first, forward_tolerance(dtype)));
        EXPECT_TRUE(accurate(back.dx, exact.second.dx, plain.second.dx, gradient_tolerance(dtype))) << "dx";
        EXPECT_TRUE(accurate(back.dweight, exact.second.dweight, plain.second.dweight,
                             gradient_tolerance(real_of(dtype))))
            << "dweight";
      });
      if (!with_branch) return;
      for (std::int64_t t = 0; t < problem.shape.tokens; ++t) {
        for (std::int64_t i = 0; i < problem.shape.size; ++i) {
          const double wide = problem.x.at(t, 0, i) + problem.branch.at(t, 0, i);
          const double rounded = dtype == DType::f64 ? wide : round_to(dtype, wide);
          ASSERT_EQ(got.sum.at(t, 0, i), rounded) << t << ", " << i;
        }
      }
    });
  }
}

TEST_P(RmsNorm, IgnoresThreads) {
  if (!backend::traits().threads) GTEST_SKIP() << "this backend has no threads of the caller";
  const auto& [dtype, c] = GetParam();
  const NormProblem problem(dtype, c, 22);
  const Norms once = run_norm(problem, true, serial());
  const NormGradients back = run_norm_backward(problem, once.sum, once.rstd, true, serial());
  for (const int threads : {2, 3}) {
    const ThreadParallel parallel(threads);
    const Norms again = run_norm(problem, true, parallel);
    EXPECT_TRUE(same_bits(again.y, once.y));
    const NormGradients other = run_norm_backward(problem, again.sum, again.rstd, true, parallel);
    EXPECT_TRUE(same_bits(other.dx, back.dx));
    EXPECT_TRUE(same_bits(other.dweight, back.dweight));
  }
}

TEST_P(RmsNorm, RepeatsBitForBit) {
  const auto& [dtype, c] = GetParam();
  const NormProblem problem(dtype, c, 23);
  const Norms once = run_norm(problem, true, serial());
  const NormGradients back = run_norm_backward(problem, once.sum, once.rstd, true, serial());
  for (int i = 0; i < 5; ++i) {
    const NormGradients again = run_norm_backward(problem, once.sum, once.rstd, true, serial());
    EXPECT_TRUE(same_bits(again.dx, back.dx));
    EXPECT_TRUE(same_bits(again.dweight, back.dweight));
  }
}

INSTANTIATE_TEST_SUITE_P(Fused, RmsNorm, every_type_and(kRowCases), case_name<RowCase>);

TEST(RmsNormEdges, NoTokensGiveAZeroGradient) {
  const DType dtype = backend::any_dtype();
  Tensor dweight = Tensor::reals(dtype, 8);
  backend::rms_norm_backward(
      {{dtype, 0, 8, kEps}, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, dweight.data()}, serial());
  for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(dweight.at(i), 0);
}

TEST(RmsNormEdges, RefusesWhatItCannotDo) {
  NormProblem p(backend::any_dtype(), {"", 2, 8}, 24);
  Norms out{blank(p.shape.dtype, 2, 8), blank(p.shape.dtype, 2, 8), Tensor::reals(p.shape.dtype, 2)};
  RmsNormArgs args{p.shape, p.x.data(), nullptr, p.weight.data(), out.y.data(), nullptr, out.rstd.data()};
  const auto with = [&](auto change) {
    RmsNormArgs changed = args;
    change(changed);
    return [changed] { backend::rms_norm(changed, serial()); };
  };
  EXPECT_TRUE(refuses("rms_norm", "tokens", with([](RmsNormArgs& a) { a.shape.tokens = -1; })));
  EXPECT_TRUE(refuses("rms_norm", "size", with([](RmsNormArgs& a) { a.shape.size = 0; })));
  EXPECT_TRUE(refuses("rms_norm", "eps", with([](RmsNormArgs& a) { a.shape.eps = kNan; })));
  EXPECT_TRUE(refuses("rms_norm", "x", with([](RmsNormArgs& a) { a.x = nullptr; })));
  EXPECT_TRUE(refuses("rms_norm", "sum", with([&](RmsNormArgs& a) { a.branch = p.branch.data(); })));
}

// ---- rotary

struct RotaryCase {
  const char* name;
  std::int64_t tokens, q_heads, k_heads, v_heads, size, pairs;
};
std::ostream& operator<<(std::ostream& out, const RotaryCase& c) { return out << c.name; }

const std::vector<RotaryCase> kRotaryCases = {{"one", 1, 1, 1, 1, 2, 1},
                                              {"layer", 37, 8, 2, 2, 64, 32},
                                              {"indexer", 29, 4, 1, 0, 32, 8},
                                              {"odd", 13, 3, 1, 2, 59, 20},
                                              {"queries_only", 7, 5, 0, 0, 16, 8},
                                              {"nothing_rotates", 5, 2, 2, 1, 24, 0},
                                              {"long_heads", 6, 2, 1, 1, 256, 128},
                                              {"values_only", 9, 0, 0, 3, 8, 4}};

class Rotary : public ::testing::TestWithParam<std::tuple<DType, RotaryCase>> {};

TEST_P(Rotary, MatchesTheReferenceBothWays) {
  const auto& [dtype, c] = GetParam();
  const RotaryShape shape{dtype, c.tokens, c.q_heads, c.k_heads, c.v_heads, c.size, c.pairs};
  const std::int64_t heads = c.q_heads + c.k_heads + c.v_heads, rotating = c.q_heads + c.k_heads;
  Random random(31);
  const Tensor x = normal_rows(dtype, c.tokens, heads * c.size, random);
  Tensor cos(real_of(dtype), c.tokens, 1, c.pairs), sin(real_of(dtype), c.tokens, 1, c.pairs);
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t i = 0; i < c.pairs; ++i) {
      const double angle = 6.3 * random.uniform();
      cos.set(t, 0, i, std::cos(angle));
      sin.set(t, 0, i, std::sin(angle));
    }
  }
  // Heads [first, first + count) of the joint rows, as [tokens, count, size].
  const auto part = [&, &c = c]<typename Real>(const std::vector<Real>& joint, std::int64_t first,
                                               std::int64_t count) {
    std::vector<Real> rows;
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      const auto begin = joint.begin() + (t * heads + first) * c.size;
      rows.insert(rows.end(), begin, begin + count * c.size);
    }
    return rows;
  };
  in_every_way([&, dtype = dtype, &c = c] {
    Tensor q(dtype, c.tokens, c.q_heads, c.size), k(dtype, c.tokens, c.k_heads, c.size);
    Tensor v(dtype, c.tokens, c.v_heads, c.size), back(dtype, c.tokens, heads, c.size);
    backend::rotary({shape, x.data(), cos.data(), sin.data(), q.data(), k.data(), v.data()}, serial());
    // The joint tensor cut up without rotation: gradients to rotate back.
    Tensor dq(dtype, c.tokens, c.q_heads, c.size), dk(dtype, c.tokens, c.k_heads, c.size);
    Tensor dv(dtype, c.tokens, c.v_heads, c.size);
    RotaryShape still = shape;
    still.pairs = 0;
    backend::rotary({still, x.data(), nullptr, nullptr, dq.data(), dk.data(), dv.data()}, serial());
    backend::rotary_backward({shape, dq.data(), dk.data(), dv.data(), cos.data(), sin.data(), back.data()},
                             serial());
    with_arithmetic(dtype, [&](auto arithmetic) {
      const auto rotate = [&]<typename Real>(Real sign) {
        auto joint = x.values<Real>();
        const auto rotated =
            reference::rotated(joint, heads, c.size, cos.values<Real>(), sin.values<Real>(), c.pairs, sign);
        for (std::int64_t t = 0; t < c.tokens; ++t) {  // values stay as they are
          const std::int64_t begin = t * heads * c.size;
          std::copy_n(rotated.begin() + begin, rotating * c.size, joint.begin() + begin);
        }
        return joint;
      };
      using Exact = typename decltype(arithmetic)::Exact;
      using Plain = typename decltype(arithmetic)::Plain;
      const auto exact = rotate(Exact(1));
      const auto plain = rotate(Plain(1));
      const auto check = [&](const Tensor& got, std::int64_t first, std::int64_t count, const char* name) {
        EXPECT_TRUE(
            accurate(got, part(exact, first, count), part(plain, first, count), forward_tolerance(dtype)))
            << name;
      };
      check(q, 0, c.q_heads, "q");
      check(k, c.q_heads, c.k_heads, "k");
      check(v, rotating, c.v_heads, "v");
      EXPECT_TRUE(accurate(back, rotate(Exact(-1)), rotate(Plain(-1)), forward_tolerance(dtype)))
          << "backward";
    });
  });
}

TEST_P(Rotary, IgnoresThreads) {
  if (!backend::traits().threads) GTEST_SKIP() << "this backend has no threads of the caller";
  const auto& [dtype, c] = GetParam();
  const RotaryShape shape{dtype, c.tokens, c.q_heads, c.k_heads, c.v_heads, c.size, c.pairs};
  Random random(32);
  const Tensor x = normal_rows(dtype, c.tokens, (c.q_heads + c.k_heads + c.v_heads) * c.size, random);
  const Tensor cos = normal_rows(real_of(dtype), c.tokens, c.pairs, random);
  const auto run = [&, dtype = dtype, &c = c](const Parallel& parallel) {
    std::vector<Tensor> parts = {Tensor(dtype, c.tokens, c.q_heads, c.size),
                                 Tensor(dtype, c.tokens, c.k_heads, c.size),
                                 Tensor(dtype, c.tokens, c.v_heads, c.size)};
    backend::rotary(
        {shape, x.data(), cos.data(), cos.data(), parts[0].data(), parts[1].data(), parts[2].data()},
        parallel);
    return parts;
  };
  const auto once = run(serial()), again = run(ThreadParallel(3));
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(same_bits(once[i], again[i]));
}

INSTANTIATE_TEST_SUITE_P(Fused, Rotary, every_type_and(kRotaryCases), case_name<RotaryCase>);

TEST(RotaryEdges, RefusesWhatItCannotDo) {
  const RotaryShape good{backend::any_dtype(), 2, 1, 1, 1, 8, 4};
  Random random(33);
  const Tensor x = normal_rows(good.dtype, 2, 24, random),
               table = normal_rows(real_of(good.dtype), 2, 4, random);
  Tensor q = blank(good.dtype, 2, 8), k = blank(good.dtype, 2, 8), v = blank(good.dtype, 2, 8);
  const RotaryArgs args{good, x.data(), table.data(), table.data(), q.data(), k.data(), v.data()};
  const auto with = [&](auto change) {
    RotaryArgs changed = args;
    change(changed);
    return [changed] { backend::rotary(changed, serial()); };
  };
  EXPECT_TRUE(refuses("rotary", "pairs", with([](RotaryArgs& a) { a.shape.pairs = 5; })));
  EXPECT_TRUE(refuses("rotary", "head_size", with([](RotaryArgs& a) { a.shape.head_size = 257; })));
  EXPECT_TRUE(refuses("rotary", "k_heads", with([](RotaryArgs& a) { a.shape.k_heads = -1; })));
  EXPECT_TRUE(refuses("rotary", "sin", with([](RotaryArgs& a) { a.sin = nullptr; })));
  EXPECT_TRUE(refuses("rotary", "v", with([](RotaryArgs& a) { a.v = nullptr; })));
}

// ---- swiglu

class Swiglu : public ::testing::TestWithParam<std::tuple<DType, RowCase>> {};

TEST_P(Swiglu, MatchesTheReference) {
  const auto& [dtype, c] = GetParam();
  Random random(41);
  const Tensor x = normal_rows(dtype, c.tokens, 2 * c.size, random, 3);
  const Tensor dy = normal_rows(dtype, c.tokens, c.size, random);
  const SwigluShape shape{dtype, c.tokens, c.size};
  in_every_way([&, dtype = dtype, &c = c] {
    Tensor y = blank(dtype, c.tokens, c.size), dx = blank(dtype, c.tokens, 2 * c.size);
    backend::swiglu({shape, x.data(), y.data()}, serial());
    backend::swiglu_backward({shape, x.data(), dy.data(), dx.data()}, serial());
    with_arithmetic(dtype, [&](auto arithmetic) {
      const auto compute = [&]<typename Real>(Real) {
        const auto in = x.values<Real>();
        return std::make_pair(reference::swiglu(in, c.size),
                              reference::swiglu_backward(in, dy.values<Real>(), c.size));
      };
      const auto exact = compute(typename decltype(arithmetic)::Exact());
      const auto plain = compute(typename decltype(arithmetic)::Plain());
      EXPECT_TRUE(accurate(y, exact.first, plain.first, forward_tolerance(dtype))) << "y";
      EXPECT_TRUE(accurate(dx, exact.second, plain.second, gradient_tolerance(dtype))) << "dx";
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Fused, Swiglu, every_type_and(kRowCases), case_name<RowCase>);

TEST(SwigluEdges, SaturatesAndKeepsNaN) {
  const DType dtype = backend::any_dtype();
  Tensor x(dtype, 1, 1, 8), y = blank(dtype, 1, 4);
  const double gates[] = {100, -100, 0, kNan};
  for (std::int64_t i = 0; i < 4; ++i) {
    x.set(0, 0, i, gates[i]);
    x.set(0, 0, 4 + i, 2);
  }
  backend::swiglu({{dtype, 1, 4}, x.data(), y.data()}, serial());
  EXPECT_EQ(y.at(0, 0, 0), 200);
  EXPECT_LT(std::abs(y.at(0, 0, 1)), 1e-30);
  EXPECT_EQ(y.at(0, 0, 2), 0);
  EXPECT_TRUE(std::isnan(y.at(0, 0, 3)));
}

// ---- cross_entropy

constexpr std::int64_t kIgnored = -100;

struct Losses {
  Tensor loss, gradient;
};
Losses run_cross_entropy(const Tensor& logits, const std::vector<std::int64_t>& targets, bool gradient,
                         const Parallel& parallel) {
  Losses out{Tensor::reals(logits.dtype(), logits.tokens()), logits};
  backend::cross_entropy({.dtype = logits.dtype(),
                          .tokens = logits.tokens(),
                          .classes = logits.size(),
                          .logits = out.gradient.data(),
                          .targets = targets.data(),
                          .ignored = kIgnored,
                          .gradient = gradient,
                          .loss = out.loss.data()},
                         parallel);
  return out;
}

class CrossEntropy : public ::testing::TestWithParam<std::tuple<DType, RowCase>> {};

TEST_P(CrossEntropy, MatchesTheReference) {
  const auto& [dtype, c] = GetParam();
  Random random(51);
  const Tensor logits = normal_rows(dtype, c.tokens, c.size, random, 4);
  std::vector<std::int64_t> targets;
  for (std::int64_t t = 0; t < c.tokens; ++t) targets.push_back(t % 5 == 3 ? kIgnored : random.below(c.size));
  in_every_way([&, dtype = dtype, &c = c] {
    const Losses got = run_cross_entropy(logits, targets, true, serial());
    with_arithmetic(dtype, [&](auto arithmetic) {
      const auto compute = [&]<typename Real>(Real) {
        return reference::cross_entropy(logits.values<Real>(), targets, c.size, kIgnored);
      };
      const auto exact = compute(typename decltype(arithmetic)::Exact());
      const auto plain = compute(typename decltype(arithmetic)::Plain());
      // The logarithm of the sum and the target's logit cancel: their size counts, not the loss's.
      EXPECT_TRUE(accurate(got.loss, exact.loss, plain.loss, forward_tolerance(real_of(dtype), 1, 32)));
      EXPECT_TRUE(accurate(got.gradient, exact.gradient, plain.gradient, gradient_tolerance(dtype)));
    });
    const Losses alone = run_cross_entropy(logits, targets, false, serial());
    EXPECT_TRUE(same_bits(alone.loss, got.loss));
    EXPECT_TRUE(same_bits(alone.gradient, logits)) << "logits were written to without a need";
  });
}

INSTANTIATE_TEST_SUITE_P(Fused, CrossEntropy, every_type_and(kRowCases), case_name<RowCase>);

TEST(CrossEntropyEdges, InfinityAndNaN) {
  const DType dtype = backend::any_dtype();
  Random random(52);
  Tensor logits = normal_rows(dtype, 4, 700, random);
  for (std::int64_t j = 0; j < 690; ++j) logits.set(0, 0, j, -kInf);  // whole vectors of nothing
  logits.set(1, 0, 3, kNan);
  logits.set(2, 0, 650, kInf);
  for (std::int64_t j = 0; j < 700; ++j) logits.set(3, 0, j, -kInf);
  const Losses got = run_cross_entropy(logits, {695, 5, 650, 0}, true, serial());
  EXPECT_TRUE(std::isfinite(got.loss.at(0)));
  double sum = 0;
  for (std::int64_t j = 0; j < 700; ++j) sum += got.gradient.at(0, 0, j);
  EXPECT_NEAR(sum, 0, 0.05);
  for (const std::int64_t row : {1, 2, 3}) EXPECT_TRUE(std::isnan(got.loss.at(row))) << row;
}

TEST(CrossEntropyEdges, ATargetOutOfRange) {
  const DType dtype = backend::any_dtype();
  Random random(53);
  const Tensor logits = normal_rows(dtype, 2, 16, random);
  if (backend::traits().threads) {
    EXPECT_TRUE(refuses("cross_entropy_", "targets", [&] {
      run_cross_entropy(logits, {3, 16}, true, serial());
    }));
    EXPECT_TRUE(refuses("cross_entropy_", "targets", [&] {
      run_cross_entropy(logits, {-1, 3}, true, serial());
    }));
  } else {
    const Losses got = run_cross_entropy(logits, {3, 16}, true, serial());
    EXPECT_TRUE(std::isfinite(got.loss.at(0)));
    EXPECT_TRUE(std::isnan(got.loss.at(1)));
  }
}

// ---- adamw

struct AdamWCase {
  const char* name;
  DType gradient;
  std::optional<DType> weight;  // absent: the master is the weight
  std::int64_t count;
};
class AdamW : public ::testing::TestWithParam<AdamWCase> {};

TEST_P(AdamW, FollowsTheReferenceOverSteps) {
  const auto& [name, gradient_type, weight_type, count] = GetParam();
  constexpr double kLr = 1e-2, kBeta1 = 0.9, kBeta2 = 0.95, kSmall = 1e-8, kDecay = 0.1, kFactor = 0.5;
  in_every_way([&, gradient_type = gradient_type, weight_type = weight_type, count = count] {
    Random random(61);
    Tensor master = normal_rows(DType::f32, count, 1, random);
    Tensor mean(DType::f32, count, 1, 1), square(DType::f32, count, 1, 1);
    mean.fill([] { return 0.0; });
    square.fill([] { return 0.0; });
    Tensor weight(weight_type.value_or(DType::f32), count, 1, 1);
    reference::AdamWState exact{master.values<double>(), mean.values<double>(), square.values<double>()};
    const auto floats = [](Tensor& tensor) { return static_cast<float*>(tensor.data()); };
    for (int step = 1; step <= 5; ++step) {
      const Tensor gradient = normal_rows(gradient_type, count, 1, random);
      backend::adamw({.count = count,
                      .gradient_type = gradient_type,
                      .weight_type = weight_type.value_or(DType::f32),
                      .gradient = gradient.data(),
                      .master = floats(master),
                      .mean = floats(mean),
                      .square = floats(square),
                      .weight = weight_type ? weight.data() : nullptr,
                      .lr = kLr,
                      .beta1 = kBeta1,
                      .beta2 = kBeta2,
                      .eps = kSmall,
                      .decay = kDecay,
                      .factor = kFactor,
                      .step = step},
                     serial());
      reference::adamw(exact, gradient.values<double>(), kFactor, kLr, kBeta1, kBeta2, kSmall, kDecay, step);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      // Some ten roundings a step of numbers around 1 (steps are of size lr).
      ASSERT_NEAR(master.at(i), exact.w[static_cast<std::size_t>(i)], 5e-6) << i;
      ASSERT_NEAR(mean.at(i), exact.m[static_cast<std::size_t>(i)], 5e-6) << i;
      ASSERT_NEAR(square.at(i), exact.v[static_cast<std::size_t>(i)], 5e-6) << i;
      if (!weight_type) continue;
      ASSERT_EQ(weight.at(i), round_to(*weight_type, master.at(i))) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Fused, AdamW,
                         ::testing::Values(AdamWCase{"plain", DType::f32, std::nullopt, 1000},
                                           AdamWCase{"odd", DType::f32, std::nullopt, 97},
                                           AdamWCase{"bf16", DType::bf16, DType::bf16, 70000},
                                           AdamWCase{"bf16_gathered", DType::f32, DType::bf16, 1023},
                                           AdamWCase{"f16", DType::f16, DType::f16, 33},
                                           AdamWCase{"one", DType::bf16, DType::f32, 1}),
                         [](const auto& given) { return given.param.name; });

TEST(AdamWEdges, RefusesWhatItCannotDo) {
  Random random(62);
  Tensor numbers = normal_rows(DType::f32, 4, 1, random);
  float* const data = static_cast<float*>(numbers.data());
  const AdamWArgs args{.count = 4, .gradient = data, .master = data, .mean = data, .square = data, .lr = 1};
  const auto with = [&](auto change) {
    AdamWArgs changed = args;
    change(changed);
    return [changed] { backend::adamw(changed, serial()); };
  };
  EXPECT_TRUE(refuses("adamw_", "step", with([](AdamWArgs& a) { a.step = 0; })));
  EXPECT_TRUE(refuses("adamw_", "lr", with([](AdamWArgs& a) { a.lr = kNan; })));
  EXPECT_TRUE(refuses("adamw_", "beta2", with([](AdamWArgs& a) { a.beta2 = 1; })));
  EXPECT_TRUE(refuses("adamw_", "gradient", with([](AdamWArgs& a) { a.gradient_type = DType::f64; })));
  EXPECT_TRUE(refuses("adamw_", "square", with([](AdamWArgs& a) { a.square = nullptr; })));
}

}  // namespace
}  // namespace gsa::testing
