// indexer_kl of a sample of queries: loss and gradients are those of all queries, taken apart.
#include <gtest/gtest.h>

#include <functional>

#include "indexer_kl_problems.h"
#include "query_samples.h"

namespace gsa::testing {
namespace {

class IndexerKlSample : public EveryWay {
 protected:
  // Odd lengths, queries that begin inside a tile, sequences of less than a tile and of none.
  KlProblem problem(ScoreForm form = ScoreForm::sigmoid) const {
    const Batch batch = {{197, 197, 0},     {1, 1, 0},   {0, 7, 7},
                         {150, 1200, 1010}, {2, 70, 40}, {100, 300, 150}};
    return KlProblem(dtype(), {"", batch, 4, 2, 20, -1, 3, 12, form, Layout::gaps}, 173);
  }
};

// The largest difference, against the largest number. Backends that take queries together may add in another
// order; the CPU's bits of a query do not depend on who else is there.
double distance(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.values<double>(), y = b.values<double>();
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    largest = std::max(largest, std::abs(y[i]));
    difference = std::max(difference, std::abs(x[i] - y[i]));
    if (std::isnan(x[i]) != std::isnan(y[i])) return kInf;
  }
  return largest == 0 ? difference : difference / largest;
}

Tensor sum(std::vector<Tensor> parts) {
  Tensor total = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) {
    for (std::int64_t t = 0; t < total.tokens(); ++t) {
      for (std::int64_t h = 0; h < total.heads(); ++h) {
        for (std::int64_t c = 0; c < total.size(); ++c) {
          total.set(t, h, c, total.at(t, h, c) + parts[i].at(t, h, c));
        }
      }
    }
  }
  return total;
}

TEST_P(IndexerKlSample, PartsAddUpToTheWhole) {
  for (const ScoreForm form : {ScoreForm::sigmoid, ScoreForm::relu}) {
    KlProblem p = problem(form);
    const KlLoss whole = run_kl(p, serial());
    const KlGradients all = run_backward(p, whole, serial());
    std::vector<Tensor> loss, index_lse, dq, dk, dw, dbias;
    for (const Sample& sample : partition(p.batch(), 3, 11)) {
      p.tiles = sample.view();
      const KlLoss forward = run_kl(p, serial());
      const KlGradients g = run_backward(p, forward, serial(), Layout::gaps);
      EXPECT_TRUE(g.dq.gaps_intact() && g.dw.gaps_intact());
      const std::vector<char> in = covered(p.batch(), sample);
      for (std::int64_t t = 0; t < p.batch().queries(); ++t) {
        if (in[static_cast<std::size_t>(t)] != 0) continue;
        ASSERT_EQ(forward.loss.at(t), 0) << t;
        ASSERT_EQ(forward.index_lse.at(t), 0) << t;
        for (std::int64_t j = 0; j < 3; ++j) {
          ASSERT_EQ(g.dw.at(t, j), 0) << t;
          for (std::int64_t c = 0; c < 12; ++c) ASSERT_EQ(g.dq.at(t, j, c), 0) << t;
        }
      }
      loss.push_back(forward.loss), index_lse.push_back(forward.index_lse);
      dq.push_back(g.dq), dk.push_back(g.dk), dw.push_back(g.dw), dbias.push_back(g.dbias);
    }
    if (backend::traits().threads) {
      EXPECT_TRUE(same_bits(sum(loss), whole.loss));
      EXPECT_TRUE(same_bits(sum(index_lse), whole.index_lse));
      EXPECT_EQ(distance(sum(dq), all.dq), 0);
      EXPECT_EQ(distance(sum(dw), all.dw), 0);
    }
    const double stored = 4 * rounding_unit(dtype()), real = 64 * rounding_unit(real_of(dtype()));
    EXPECT_LT(distance(sum(loss), whole.loss), real);
    EXPECT_LT(distance(sum(index_lse), whole.index_lse), real);
    EXPECT_LT(distance(sum(dq), all.dq), stored + real);
    EXPECT_LT(distance(sum(dw), all.dw), stored + real);
    EXPECT_LT(distance(sum(dk), all.dk), real);
    // What is left of terms that cancel.
    EXPECT_LT(distance(sum(dbias), all.dbias), 64 * real);
  }
}

TEST_P(IndexerKlSample, EveryTileIsTheWhole) {
  KlProblem p = problem();
  const KlLoss whole = run_kl(p, serial());
  const Sample every = partition(p.batch(), 1, 1)[0];
  p.tiles = every.view();
  EXPECT_LT(distance(run_kl(p, serial()).loss, whole.loss), 64 * rounding_unit(real_of(dtype())));
}

// lse of the other queries is not read.
TEST_P(IndexerKlSample, OtherQueriesAreNotRead) {
  KlProblem p = problem();
  const Sample sample = partition(p.batch(), 2, 12)[0];
  p.tiles = sample.view();
  const KlLoss expected = run_kl(p, serial());
  const KlGradients before = run_backward(p, expected, serial());
  const std::vector<char> in = covered(p.batch(), sample);
  for (std::int64_t t = 0; t < p.batch().queries(); ++t) {
    if (in[static_cast<std::size_t>(t)] != 0) continue;
    p.weight.set(t, 0, 0, kNan);
    for (std::int64_t h = 0; h < 4; ++h) p.lse.set(t, h, 0, kNan);
  }
  const KlLoss got = run_kl(p, serial());
  const KlGradients g = run_backward(p, got, serial());
  EXPECT_TRUE(same_bits(got.loss, expected.loss) && same_bits(got.index_lse, expected.index_lse));
  EXPECT_TRUE(same_bits(g.dq, before.dq) && same_bits(g.dw, before.dw));
  EXPECT_TRUE(same_bits(g.dk, before.dk) && same_bits(g.dbias, before.dbias));
}

TEST_P(IndexerKlSample, IgnoresThreads) {
  if (!backend::traits().threads) GTEST_SKIP() << "this backend has no threads of the caller";
  KlProblem p = problem();
  const Sample sample = partition(p.batch(), 2, 13)[1];
  p.tiles = sample.view();
  const KlLoss forward = run_kl(p, serial());
  const KlGradients g = run_backward(p, forward, serial());
  for (const int threads : {2, 3}) {
    const ThreadParallel parallel(threads);
    const KlLoss loss = run_kl(p, parallel);
    const KlGradients got = run_backward(p, forward, parallel);
    EXPECT_TRUE(same_bits(loss.loss, forward.loss) && same_bits(loss.index_lse, forward.index_lse));
    EXPECT_TRUE(same_bits(got.dq, g.dq) && same_bits(got.dk, g.dk) && same_bits(got.dw, g.dw));
    EXPECT_TRUE(same_bits(got.dbias, g.dbias));
  }
}

TEST_P(IndexerKlSample, IgnoresBatchNeighbours) {
  KlProblem all = problem();
  const Sample sample = partition(all.batch(), 2, 14)[0];
  all.tiles = sample.view();
  const KlLoss forward = run_kl(all, serial());
  const KlGradients g = run_backward(all, forward, serial());
  for (std::size_t n = 0; n < all.batch().spans.size(); ++n) {
    const std::int64_t q0 = all.batch().q_begin(n), q1 = all.batch().q_begin(n + 1);
    const std::int64_t k0 = all.batch().k_begin(n), k1 = all.batch().k_begin(n + 1);
    KlProblem one = all.alone(n);
    const Sample own = sample_of(all.batch(), sample, n);
    one.tiles = own.view();
    const KlLoss loss = run_kl(one, serial());
    const KlGradients got = run_backward(one, loss, serial());
    EXPECT_TRUE(same_bits(loss.loss, forward.loss.slice(q0, q1))) << n;
    EXPECT_TRUE(same_bits(got.dq, g.dq.slice(q0, q1))) << n;
    EXPECT_TRUE(same_bits(got.dw, g.dw.slice(q0, q1))) << n;
    EXPECT_TRUE(same_bits(got.dk, g.dk.slice(k0, k1))) << n;
  }
}

TEST_P(IndexerKlSample, NoTileTeachesNothing) {
  KlProblem p = problem();
  p.tiles = Sample{}.view();
  const KlLoss forward = run_kl(p, serial());
  const KlGradients g = run_backward(p, forward, serial(), Layout::tokens_first, 5);
  for (std::int64_t t = 0; t < p.batch().queries(); ++t) {
    ASSERT_EQ(forward.loss.at(t), 0);
    ASSERT_EQ(g.dq.at(t, 2, 11), 0);
  }
  for (std::int64_t s = 0; s < p.batch().keys(); ++s) ASSERT_EQ(g.dk.at(s, 0, 3), 5);
  for (std::int64_t j = 0; j < 3; ++j) ASSERT_EQ(g.dbias.at(0, 0, j), 5);
}

INSTANTIATE_TEST_SUITE_P(IndexerKl, IndexerKlSample, every_way(), way_name);

TEST(IndexerKlSampleArguments, MistakesAreNamed) {
  KlProblem p(backend::any_dtype(), {"", {{3, 40, 37}, {70, 75, 5}}, 4, 2, 8, -1, 2, 4}, 1);
  KlLoss loss = run_kl(p, serial());
  KlGradients g = run_backward(p, loss, serial());
  const auto wrong = [&](const std::string& argument, const std::vector<std::int32_t>& numbers,
                         std::int64_t count, bool mask = false) {
    p.tiles = {numbers.data(), count};
    IndexerKlInputs in = p.inputs();
    if (mask) in.mask = p.attention.mask.view();
    const auto first = refuses("indexer_kl", argument, [&] {
      backend::indexer_kl({in, loss.loss.data(), loss.index_lse.data()}, serial());
    });
    if (!first) return first;
    return refuses("indexer_kl_backward", argument, [&] {
      backend::indexer_kl_backward({.in = in,
                                    .index_lse = loss.index_lse.data(),
                                    .weight = p.weight.data(),
                                    .dq = g.dq.rows(),
                                    .dw = g.dw.rows(),
                                    .dk = g.dk.data(),
                                    .dbias = g.dbias.data()},
                                   serial());
    });
  };
  EXPECT_TRUE(wrong("tiles.number", {1, 3}, 2));
  EXPECT_TRUE(wrong("tiles.number", {-1}, 1));
  EXPECT_TRUE(wrong("tiles.number", {1, 1}, 2));
  EXPECT_TRUE(wrong("tiles.number", {1, 0}, 2));
  EXPECT_TRUE(wrong("tiles.count", {0, 1, 2, 3}, 4));
  EXPECT_TRUE(wrong("tiles.count", {0}, -1));
  EXPECT_TRUE(wrong("tiles", {0, 1}, 2, /*mask=*/true));
}

}  // namespace
}  // namespace gsa::testing
