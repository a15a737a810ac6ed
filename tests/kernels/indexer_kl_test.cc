// indexer_kl: loss and gradients against the reference and finite differences; which bits depend on what.
#include "kernels/indexer_kl/indexer_kl.h"

#include <gtest/gtest.h>

#include "indexer_kl_problems.h"

namespace gsa::testing {
namespace {

using Case = KlCase;
using Problem = KlProblem;
using Loss = KlLoss;
using Gradients = KlGradients;

constexpr ScoreForm kSigmoid = ScoreForm::sigmoid, kRelu = ScoreForm::relu;

const std::vector<Case> kCases = {
    {"one", whole(1), 1, 1, 1, -1, 1, 1},
    {"mha_dense", whole(97), 3, 3, 59, -1, 3, 59, kSigmoid, Layout::gaps},
    {"gqa_dense_relu", whole(70), 8, 2, 32, -1, 4, 16, kRelu, Layout::heads_first},
    {"mqa_dense_no_bias", whole(64), 5, 1, 32, -1, 5, 20, kSigmoid, Layout::tokens_first, false},
    {"gqa_half", whole(97), 6, 2, 59, 0.5, 4, 64, kSigmoid, Layout::gaps},
    {"mqa_half_relu", whole(130), 7, 1, 16, 0.5, 2, 1, kRelu, Layout::heads_first, false},
    {"gqa_sparse", whole(200), 4, 2, 32, 0.02, 9, 24},
    {"head_size_256", {{9, 300, 280}}, 4, 1, 256, 0.5, 1, 256, kSigmoid, Layout::gaps},
    {"many_blocks_dense", {{15, 1500, 1480}}, 2, 1, 16, -1, 4, 16},
    {"many_blocks_half", {{20, 1025, 1005}}, 4, 2, 20, 0.5, 3, 20},
    {"many_blocks_sparse", {{150, 1300, 1150}}, 2, 1, 24, 0.02, 4, 12, kRelu, Layout::gaps},
    {"packed_dense", {{20, 20, 0}, {1, 1, 0}, {0, 5, 5}, {3, 50, 40}, {33, 64, 31}}, 4, 2, 16, -1, 4, 8},
    {"packed_half", {{20, 20, 0}, {1, 1, 0}, {0, 5, 5}, {3, 50, 40}, {33, 640, 607}}, 4, 2, 16, 0.5, 4, 8},
};

const std::vector<Case> kMatrixUnitCases = {
    {"gsa_dense", {{140, 300, 160}}, 8, 2, 128, -1, 4, 64},
    {"gsa_half", {{140, 300, 160}}, 8, 2, 128, 0.5, 4, 64},
    {"gsa_sparse", {{200, 1200, 1000}}, 4, 1, 128, 0.03, 4, 64},
    {"gsa_packed", {{64, 64, 0}, {1, 1, 0}, {100, 300, 150}, {0, 5, 5}}, 4, 1, 64, 0.3, 4, 64},
    {"gsa_packed_dense", {{64, 64, 0}, {1, 1, 0}, {100, 300, 150}, {0, 5, 5}}, 4, 1, 64, -1, 4, 64},
    {"gsa_wide_gaps", {{97, 200, 103}}, 8, 2, 128, 0.3, 4, 64, kSigmoid, Layout::wide_gaps},
    {"small_dense", {{140, 300, 160}}, 8, 2, 64, -1, 4, 32},
    {"small_half", {{140, 300, 160}}, 8, 2, 64, 0.5, 4, 32},
    {"small_sparse", {{200, 1200, 1000}}, 4, 1, 64, 0.03, 4, 32, kRelu},
    {"small_packed", {{64, 64, 0}, {1, 1, 0}, {100, 300, 150}, {0, 5, 5}}, 4, 1, 64, 0.3, 4, 32},
    {"small_wide_gaps", {{97, 200, 103}}, 8, 2, 64, 0.3, 3, 30, kSigmoid, Layout::wide_gaps},
    {"eight_heads_of_32", {{100, 400, 300}}, 4, 1, 64, 0.3, 8, 32},
    {"two_heads_of_64", {{100, 400, 300}}, 4, 1, 64, 0.3, 2, 64, kRelu},
    {"every_key", {{140, 1300, 1160}}, 4, 1, 64, 1.0, 4, 64},
    {"far_sparse", {{70, 33056, 32986}}, 2, 1, 16, 0.02, 4, 32},  // two words of the mask at a time
    {"dsa", {{100, 200, 100}}, 4, 4, 64, -1, 8, 128, kRelu},
    {"far_dense", {{20, 131090, 131070}}, 2, 1, 16, -1, 2, 16},  // windows of queries change their size here
};

class IndexerKl : public ::testing::TestWithParam<std::tuple<DType, Case>> {};

TEST_P(IndexerKl, MatchesTheReference) {
  const auto& [dtype, c] = GetParam();
  Problem problem(dtype, c, 71);
  with_arithmetic(dtype, [&, dtype = dtype, &c = c](auto arithmetic) {
    using Exact = typename decltype(arithmetic)::Exact;
    using Plain = typename decltype(arithmetic)::Plain;
    const auto compute = [&, dtype]<typename Real>(Real) {
      reference::KlOutput<Real> loss;
      reference::KlGradients<Real> all;
      all.dbias.assign(problem.indexer.bias.values<Real>().size(), 0);
      for (std::size_t n = 0; n < problem.batch().spans.size(); ++n) {
        reference::KlInput<Real> in = problem.input<Real>(n);
        if constexpr (std::is_same_v<Real, Plain>) in.attention.kept = kept_as<Real>(dtype);
        const reference::KlOutput<Real> out = reference::indexer_kl(in);
        const std::int64_t q0 = problem.batch().q_begin(n), q1 = problem.batch().q_begin(n + 1);
        const auto part =
            reference::indexer_kl_backward(in, out.index_lse, problem.weight.values<Real>(q0, q1));
        append(loss.loss, out.loss), append(loss.index_lse, out.index_lse);
        append(all.dq, part.dq), append(all.dk, part.dk), append(all.dw, part.dw);
        for (std::size_t j = 0; j < all.dbias.size(); ++j) all.dbias[j] += part.dbias[j];
      }
      return std::make_pair(loss, all);
    };
    const auto exact = compute(Exact());
    const auto plain = compute(Plain());
    const DType real = real_of(dtype);
    // A score that differs by definition moves the log-sum-exp of a row by no more, the loss by twice that.
    // Of the gradients, dI moves by that part of softmax, whose sum over a query is 1 (of a key's queries:
    // some); what follows it is at most a key or query (of order one), and for dbias a sum of queries that
    // err at random.
    const double defined = score_error(problem.indexer);
    const auto with = [](Tolerance tolerance, double by_definition) {
      tolerance.defined = by_definition;
      return tolerance;
    };
    const double queries = static_cast<double>(problem.batch().queries());
    const auto index_lse = with(forward_tolerance(real, 4), defined);  // as with the log-sum-exp of attend
    // The sums of p log p and of p I, and index_lse, are each about as large as index_lse and cancel.
    double terms = 0;
    for (const Exact x : exact.first.index_lse) terms = std::max(terms, static_cast<double>(std::abs(x)));
    const auto loss = with(forward_tolerance(real, 1, 8 * terms), 2 * defined);
    // dI sums to zero over each support, so that dbias is what is left of terms of order one.
    const auto dbias = with(gradient_tolerance(real, 4), defined * std::sqrt(queries));
    // dI is the difference of a softmax and a target, both 1 where a query has one key. The reference takes
    // the score of such a key from the same sum as lse and errs by nothing; ours is added in another order
    // than attend's. So each of the two may err by a rounding of one, which slope, scale and key or query
    // then scale.
    const double slope = problem.indexer.form == kSigmoid ? 0.25 : 1;
    const auto of_one_key = [](DType stored, double x) { return gradient_tolerance(stored, 2 * x); };
    const auto largest = [](const Tensor& x) {
      double result = 0;
      for (const double value : x.values<double>()) result = std::max(result, std::abs(value));
      return result;
    };
    const double factor = slope * problem.indexer.scale;
    const auto dq = with(of_one_key(dtype, factor * largest(problem.indexer.k)), defined);
    const auto dk = with(of_one_key(real, factor * largest(problem.indexer.q)), 2 * defined);
    const auto& [exact_loss, exact_gradients] = exact;
    const auto& [plain_loss, plain_gradients] = plain;
    in_every_way([&, &e = exact_loss, &p = plain_loss, &eg = exact_gradients, &pg = plain_gradients] {
      const Loss forward = run_kl(problem, serial());
      EXPECT_TRUE(accurate(forward.loss, e.loss, p.loss, loss)) << "loss";
      EXPECT_TRUE(accurate(forward.index_lse, e.index_lse, p.index_lse, index_lse)) << "index_lse";
      const Gradients g = run_backward(problem, forward, serial(), c.layout);
      EXPECT_TRUE(g.dq.gaps_intact() && g.dw.gaps_intact());
      EXPECT_TRUE(accurate(g.dq, eg.dq, pg.dq, dq)) << "dq";
      EXPECT_TRUE(accurate(g.dk, eg.dk, pg.dk, dk)) << "dk";
      EXPECT_TRUE(accurate(g.dw, eg.dw, pg.dw, with(gradient_tolerance(dtype), defined))) << "dw";
      EXPECT_TRUE(accurate(g.dbias, eg.dbias, pg.dbias, dbias)) << "dbias";
    });
  });
}

INSTANTIATE_TEST_SUITE_P(IndexerKl, IndexerKl,
                         ::testing::Combine(::testing::ValuesIn(every_dtype()),
                                            ::testing::ValuesIn(cases(kCases, kMatrixUnitCases))),
                         case_name<Case>);

TEST(IndexerKlGradients, AreFiniteDifferences) {
  if (!takes_double()) GTEST_SKIP() << "this backend has no float64";
  for (const ScoreForm form : {kSigmoid, kRelu}) {
    for (const double density : {-1.0, 0.4}) {
      const Case c = {"", {{9, 14, 5}, {4, 4, 0}}, 4, 2, 5, density, 5, 3, form};
      Problem problem(DType::f64, c, 72);
      const Gradients g = run_backward(problem, run_kl(problem, serial()), serial());
      const auto objective = [&] {  // the target, and with it lse, is a constant
        const std::vector<double> loss = run_kl(problem, serial()).loss.values<double>();
        const std::vector<double> weight = problem.weight.values<double>();
        double sum = 0;
        for (std::size_t i = 0; i < loss.size(); ++i) sum += loss[i] * weight[i];
        return sum;
      };
      EXPECT_TRUE(is_derivative(objective, problem.indexer.q, g.dq)) << "dq, density " << density;
      EXPECT_TRUE(is_derivative(objective, problem.indexer.k, g.dk)) << "dk, density " << density;
      EXPECT_TRUE(is_derivative(objective, problem.indexer.w, g.dw)) << "dw, density " << density;
      EXPECT_TRUE(is_derivative(objective, problem.indexer.bias, g.dbias)) << "dbias, density " << density;
    }
  }
}

// ---- values

class IndexerKlBits : public EveryWay {
 protected:
  Problem problem(double density) const {
    const Batch batch = {{97, 97, 0}, {1, 1, 0}, {140, 1200, 1050}, {2, 70, 40}, {30, 300, 200}};
    return Problem(dtype(), {"", batch, 4, 2, 20, density, 3, 12}, 73);
  }
};

constexpr double kDensities[] = {-1, 0.3};

// The KL of equal distributions is zero and so are its gradients: attention and indexer that see no
// difference between keys.
TEST_P(IndexerKlBits, EqualOpinionsLoseNothing) {
  for (const double density : kDensities) {
    Problem p = problem(density);
    p.attention.q.fill([] { return 0; });
    p.indexer.q.fill([] { return 0; });
    p.lse = run_attend(p.attention, serial()).lse;
    const Loss forward = run_kl(p, serial());
    const Gradients g = run_backward(p, forward, serial());
    // Up to 1,200 equal terms are added in as few as 2 lanes (4 of float32), and equal terms err alike; the
    // sum reaches log(1200) + I < 10. One rounding errs by half a unit on average.
    const double bound = 300 * 10 * rounding_unit(real_of(dtype()));
    for (std::int64_t t = 0; t < p.batch().queries(); ++t) {
      ASSERT_NEAR(forward.loss.at(t), 0, bound) << t;
      for (std::int64_t j = 0; j < 3; ++j) ASSERT_NEAR(g.dw.at(t, j), 0, bound) << t;
    }
  }
}

// A query with one key has nothing to predict.
TEST_P(IndexerKlBits, OneKeyLosesNothing) {
  Problem p = problem(0);
  const Loss forward = run_kl(p, serial());
  const Gradients g = run_backward(p, forward, serial());
  const double unit = rounding_unit(real_of(dtype()));
  for (std::int64_t t = 0; t < p.batch().queries(); ++t) {
    ASSERT_NEAR(forward.loss.at(t), 0, 50 * unit) << t;
    for (std::int64_t j = 0; j < 3; ++j) ASSERT_NEAR(g.dq.at(t, j, 5), 0, 50 * unit) << t;
  }
}

TEST_P(IndexerKlBits, LossIsNotNegative) {
  for (const double density : kDensities) {
    Problem p = problem(density);
    const Loss forward = run_kl(p, serial());
    for (std::int64_t t = 0; t < p.batch().queries(); ++t) {
      ASSERT_GE(forward.loss.at(t), -50 * rounding_unit(real_of(dtype()))) << t;
    }
  }
}

TEST_P(IndexerKlBits, IgnoreBatchNeighbours) {
  for (const double density : kDensities) {
    Problem all = problem(density);
    const Loss forward = run_kl(all, serial());
    const Gradients g = run_backward(all, forward, serial());
    for (std::size_t n = 0; n < all.batch().spans.size(); ++n) {
      const std::int64_t q0 = all.batch().q_begin(n), q1 = all.batch().q_begin(n + 1);
      const std::int64_t k0 = all.batch().k_begin(n), k1 = all.batch().k_begin(n + 1);
      Problem one = all.alone(n);
      const Loss loss = run_kl(one, serial());
      EXPECT_TRUE(same_bits(loss.loss, forward.loss.slice(q0, q1))) << n;
      EXPECT_TRUE(same_bits(loss.index_lse, forward.index_lse.slice(q0, q1))) << n;
      const Gradients got = run_backward(one, loss, serial());
      EXPECT_TRUE(same_bits(got.dq, g.dq.slice(q0, q1))) << n;
      EXPECT_TRUE(same_bits(got.dw, g.dw.slice(q0, q1))) << n;
      EXPECT_TRUE(same_bits(got.dk, g.dk.slice(k0, k1))) << n;
    }
  }
}

TEST_P(IndexerKlBits, IgnoreThreads) {
  if (!backend::traits().threads) GTEST_SKIP() << "this backend has no threads of the caller";
  for (const double density : kDensities) {
    Problem all = problem(density);
    const Loss forward = run_kl(all, serial());
    const Gradients g = run_backward(all, forward, serial());
    for (const int threads : {1, 2, 3}) {
      const ThreadParallel parallel(threads);
      const Loss loss = run_kl(all, parallel);
      const Gradients got = run_backward(all, forward, parallel);
      EXPECT_TRUE(same_bits(loss.loss, forward.loss)) << threads;
      EXPECT_TRUE(same_bits(loss.index_lse, forward.index_lse)) << threads;
      EXPECT_TRUE(same_bits(got.dq, g.dq)) << threads;
      EXPECT_TRUE(same_bits(got.dk, g.dk)) << threads;
      EXPECT_TRUE(same_bits(got.dw, g.dw)) << threads;
      EXPECT_TRUE(same_bits(got.dbias, g.dbias)) << threads;
    }
  }
}

TEST_P(IndexerKlBits, RepeatAThousandTimes) {
  Problem small(dtype(), {"", {{12, 30, 18}}, 4, 2, 8, 0.5, 3, 8}, 74);
  const Loss forward = run_kl(small, serial());
  const Gradients g = run_backward(small, forward, serial());
  const ThreadParallel two(2);
  for (int i = 0; i < 1000; ++i) {
    const Parallel& parallel = i % 8 == 0 ? static_cast<const Parallel&>(two) : serial();
    ASSERT_TRUE(same_bits(run_kl(small, parallel).loss, forward.loss)) << "repeat " << i;
    const Gradients got = run_backward(small, forward, parallel);
    ASSERT_TRUE(same_bits(got.dq, g.dq) && same_bits(got.dk, g.dk) && same_bits(got.dbias, g.dbias)) << i;
  }
}

TEST_P(IndexerKlBits, AddToWhatIsThere) {
  Problem p = problem(-1);
  const Loss forward = run_kl(p, serial());
  const Gradients zero = run_backward(p, forward, serial());
  const Gradients three = run_backward(p, forward, serial(), Layout::tokens_first, 3);
  EXPECT_TRUE(same_bits(three.dq, zero.dq) && same_bits(three.dw, zero.dw));  // overwritten
  const double unit = rounding_unit(real_of(dtype()));
  for (std::int64_t s = 0; s < p.batch().keys(); ++s) {
    for (std::int64_t c = 0; c < 12; ++c) {
      const double before = zero.dk.at(s, 0, c);  // eight parts are added, starting elsewhere
      ASSERT_NEAR(three.dk.at(s, 0, c), 3 + before, 20 * unit * (3 + std::abs(before)));
    }
  }
  for (std::int64_t j = 0; j < 3; ++j) {
    const double before = zero.dbias.at(0, 0, j);
    ASSERT_NEAR(three.dbias.at(0, 0, j), 3 + before, 4 * unit * (3 + std::abs(before)));
  }
}

// NaN in a key reaches the queries with that key in their support, and no other; the future is never read.
TEST_P(IndexerKlBits, NanReachesItsQueriesOnly) {
  for (const double density : kDensities) {
    for (const bool in_indexer : {false, true}) {
      Problem clean(dtype(), {"", {{60, 200, 140}}, 4, 2, 20, density, 3, 12}, 75);
      const Loss expected = run_kl(clean, serial());
      const Gradients before = run_backward(clean, expected, serial());
      Problem changed = clean;
      (in_indexer ? changed.indexer.k : changed.attention.k).set(160, 0, 3, kNan);
      const Loss got = run_kl(changed, serial());
      const Gradients g = run_backward(changed, got, serial());
      std::int64_t touched = 0;
      for (std::int64_t i = 0; i < 60; ++i) {
        const bool bad = 140 + i >= 160 && (density < 0 || clean.attention.mask.get(i, 160));
        touched += bad;
        ASSERT_EQ(std::isnan(got.loss.at(i)), bad) << i;
        ASSERT_EQ(std::isnan(g.dw.at(i, 1)), bad) << i;
        ASSERT_TRUE(bad || got.loss.bits(i) == expected.loss.bits(i)) << i;
        ASSERT_TRUE(bad || same_bits(g.dq.slice(i, i + 1), before.dq.slice(i, i + 1))) << i;
      }
      EXPECT_GT(touched, 0);
      EXPECT_LT(touched, 60);
    }
  }
}

// A query without keys has NaN for a loss and in its gradients, also in that of the bias, which it shares
// with all; other queries and the keys do not notice.
TEST_P(IndexerKlBits, EmptySupportGivesNan) {
  const Case c = {"", whole(50), 4, 2, 20, 0.4, 3, 12};
  Problem clean(dtype(), c, 76);
  for (std::int64_t s = 0; s < 50; ++s) clean.attention.mask.set(31, s, false);
  clean.lse = run_attend(clean.attention, serial()).lse;
  const Loss forward = run_kl(clean, serial());
  const Gradients g = run_backward(clean, forward, serial());
  for (std::int64_t t = 0; t < 50; ++t) {
    ASSERT_EQ(std::isnan(forward.loss.at(t)), t == 31) << t;
    ASSERT_EQ(std::isnan(forward.index_lse.at(t)), t == 31) << t;
    ASSERT_EQ(std::isnan(g.dq.at(t, 1, 5)), t == 31) << t;
    ASSERT_EQ(std::isnan(g.dw.at(t, 1)), t == 31) << t;
    ASSERT_TRUE(std::isfinite(g.dk.at(t, 0, 5))) << t;
  }
  for (std::int64_t j = 0; j < 3; ++j) ASSERT_TRUE(std::isnan(g.dbias.at(0, 0, j)));
}

INSTANTIATE_TEST_SUITE_P(IndexerKl, IndexerKlBits, every_way(), way_name);

// ---- arguments

TEST(IndexerKlArguments, NothingToDoIsFine) {
  for (const Batch& batch : {Batch{}, Batch{{0, 0, 0}}, Batch{{0, 9, 9}, {0, 0, 0}}}) {
    Problem problem(backend::any_dtype(), {"", batch, 2, 1, 8, -1, 2, 4}, 1);
    const Gradients g = run_backward(problem, run_kl(problem, serial()), serial(), Layout::tokens_first, 5);
    for (std::int64_t s = 0; s < batch.keys(); ++s) EXPECT_EQ(g.dk.at(s), 5);
  }
}

TEST(IndexerKlArguments, MistakesAreNamed) {
  Problem p(backend::any_dtype(), {"", {{3, 40, 37}, {2, 5, 3}}, 4, 2, 8, 0.5, 2, 4}, 1);
  Loss loss = run_kl(p, serial());
  Gradients g = run_backward(p, loss, serial());
  const IndexerKlArgs forward = {p.inputs(), loss.loss.data(), loss.index_lse.data()};
  const IndexerKlBackwardArgs backward = {.in = p.inputs(),
                                          .index_lse = loss.index_lse.data(),
                                          .weight = p.weight.data(),
                                          .dq = g.dq.rows(),
                                          .dw = g.dw.rows(),
                                          .dk = g.dk.data(),
                                          .dbias = g.dbias.data()};
  const auto wrong_input = [&](const std::string& argument,
                               const std::function<void(IndexerKlInputs&)>& change) {
    IndexerKlArgs f = forward;
    IndexerKlBackwardArgs b = backward;
    change(f.in), change(b.in);
    const auto first = refuses("indexer_kl", argument, [&] { backend::indexer_kl(f, serial()); });
    return first
               ? refuses("indexer_kl_backward", argument, [&] { backend::indexer_kl_backward(b, serial()); })
               : first;
  };
  const std::int64_t late[] = {38, 3};
  EXPECT_TRUE(wrong_input("heads", [](IndexerKlInputs& in) { in.shape.heads = 3; }));
  EXPECT_TRUE(wrong_input("kv_heads", [](IndexerKlInputs& in) { in.shape.kv_heads = 0; }));
  EXPECT_TRUE(wrong_input("head_size", [](IndexerKlInputs& in) { in.shape.head_size = 257; }));
  EXPECT_TRUE(wrong_input("scale", [](IndexerKlInputs& in) { in.shape.scale = kInf; }));
  EXPECT_TRUE(wrong_input("q", [](IndexerKlInputs& in) { in.q.data = nullptr; }));
  EXPECT_TRUE(wrong_input("k", [](IndexerKlInputs& in) { in.k.data = nullptr; }));
  EXPECT_TRUE(wrong_input("lse", [](IndexerKlInputs& in) { in.lse = nullptr; }));
  EXPECT_TRUE(wrong_input("indexer.heads", [](IndexerKlInputs& in) { in.indexer.heads = 129; }));
  EXPECT_TRUE(wrong_input("indexer.head_size", [](IndexerKlInputs& in) { in.indexer.head_size = 0; }));
  EXPECT_TRUE(wrong_input("indexer.scale", [](IndexerKlInputs& in) { in.indexer.scale = kNan; }));
  EXPECT_TRUE(wrong_input("indexer.q", [](IndexerKlInputs& in) { in.indexer.q.data = nullptr; }));
  EXPECT_TRUE(wrong_input("indexer.k", [](IndexerKlInputs& in) { in.indexer.k.data = nullptr; }));
  EXPECT_TRUE(wrong_input("indexer.w", [](IndexerKlInputs& in) { in.indexer.w.data = nullptr; }));
  EXPECT_TRUE(wrong_input("mask.words_per_query", [](IndexerKlInputs& in) { in.mask.words_per_query = 1; }));
  EXPECT_TRUE(wrong_input("sequences.count", [](IndexerKlInputs& in) { in.sequences.count = -1; }));
  EXPECT_TRUE(
      wrong_input("sequences.q_position", [&](IndexerKlInputs& in) { in.sequences.q_position = late; }));

  const auto wrong = [&](const std::string& argument, const std::function<void(IndexerKlArgs&)>& change) {
    IndexerKlArgs args = forward;
    change(args);
    return refuses("indexer_kl", argument, [&] { backend::indexer_kl(args, serial()); });
  };
  EXPECT_TRUE(wrong("loss", [](IndexerKlArgs& a) { a.loss = nullptr; }));
  EXPECT_TRUE(wrong("index_lse", [](IndexerKlArgs& a) { a.index_lse = nullptr; }));
  using Back = IndexerKlBackwardArgs;
  const auto wrong_back = [&](const std::string& argument, const std::function<void(Back&)>& change) {
    Back args = backward;
    change(args);
    return refuses("indexer_kl_backward", argument, [&] { backend::indexer_kl_backward(args, serial()); });
  };
  EXPECT_TRUE(wrong_back("index_lse", [](Back& a) { a.index_lse = nullptr; }));
  EXPECT_TRUE(wrong_back("weight", [](Back& a) { a.weight = nullptr; }));
  EXPECT_TRUE(wrong_back("dq", [](Back& a) { a.dq.data = nullptr; }));
  EXPECT_TRUE(wrong_back("dw", [](Back& a) { a.dw.data = nullptr; }));
  EXPECT_TRUE(wrong_back("dk", [](Back& a) { a.dk = nullptr; }));
  EXPECT_TRUE(wrong_back("dbias", [](Back& a) { a.dbias = nullptr; }));
}

}  // namespace
}  // namespace gsa::testing
