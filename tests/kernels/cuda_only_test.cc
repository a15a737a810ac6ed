// What only the CUDA operators promise: they can be captured in a graph, refuse other types, pass over bits
// that a mask has beyond a query's position, and add as they come where that is asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attend_gradients.h"
#include "cuda_call.h"

namespace gsa::testing {
namespace {

const Batch kBatch = {{97, 97, 0}, {1, 1, 0}, {40, 1200, 1150}, {30, 300, 200}};

// Runs body launched directly and from a graph, in every way, and hands both results to same().
template <typename Body, typename Same>
void expect_same_from_graph(const Body& body, const Same& same) {
  in_every_way([&] {
    const auto direct = body();
    CudaCall::as_graph(true);
    const auto captured = body();
    CudaCall::as_graph(false);
    same(direct, captured);
  });
}

class Graph : public ::testing::TestWithParam<DType> {
 protected:
  ~Graph() override { CudaCall::as_graph(false); }
};

TEST_P(Graph, HoldsSelect) {
  IndexerProblem problem(GetParam(), kBatch, 4, 64, ScoreForm::sigmoid, Layout::tokens_first, 1);
  const Budget budget = {BudgetMode::inverse, 40, 8, 300, 0.06};
  expect_same_from_graph([&] { return run_select(problem, budget, serial()); },
                         [&](const SelectResult& a, const SelectResult& b) {
                           EXPECT_EQ(a.mask.words, b.mask.words);
                           EXPECT_EQ(a.k_t, b.k_t);
                           EXPECT_TRUE(same_bits(a.threshold, b.threshold));
                         });
  const SelectResult selection = run_select(problem, budget, serial());
  expect_same_from_graph([&] { return run_select_mask(problem, selection, serial()); },
                         [&](const MaskWords& a, const MaskWords& b) { EXPECT_EQ(a.words, b.words); });
}

TEST_P(Graph, HoldsAttend) {
  for (const double density : {-1.0, 0.2}) {
    AttendProblem problem(GetParam(), kBatch, 8, 2, 128, density, Layout::tokens_first, 2);
    expect_same_from_graph([&] { return run_attend(problem, serial()); },
                           [&](const AttendResult& a, const AttendResult& b) {
                             EXPECT_TRUE(same_bits(a.out, b.out));
                             EXPECT_TRUE(same_bits(a.lse, b.lse));
                           });
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Graph, ::testing::Values(DType::bf16, DType::f16),
                         [](const ::testing::TestParamInfo<DType>& p) { return name_of(p.param); });

// A mask may come from a user: what it says about the future is not read.
TEST(CudaMask, BitsBeyondThePositionArePassedOver) {
  for (const std::int64_t size : {20, 128}) {
    AttendProblem clean(DType::bf16, {{90, 90, 0}, {70, 300, 150}}, 4, 1, size, 0.3, Layout::tokens_first, 3);
    AttendProblem dirty = clean;
    for (std::size_t n = 0; n < 2; ++n) {
      for (std::int64_t i = 0; i < clean.batch.spans[n].queries; ++i) {
        const std::int64_t row = clean.batch.q_begin(n) + i;
        for (std::int64_t s = clean.batch.spans[n].visible(i); s < 32 * dirty.mask.words_per_query; ++s) {
          dirty.mask.set(row, s, true);
        }
      }
    }
    in_every_way([&] {
      const AttendResult a = run_attend(clean, serial()), b = run_attend(dirty, serial());
      EXPECT_TRUE(same_bits(a.out, b.out)) << "head size " << size;
      EXPECT_TRUE(same_bits(a.lse, b.lse)) << "head size " << size;
    });
  }
}

// Tiles are numbered consecutively, whatever the lengths of packed sequences.
TEST(CudaPacked, OneLongSequenceAmongManyShortOnes) {
  Batch batch;
  for (std::int64_t i = 0; i < 300; ++i) {
    batch.spans.push_back(i == 150 ? reference::Span{700, 700, 0}
                                   : reference::Span{1 + i % 5, 9, 9 - 1 - i % 5});
  }
  AttendProblem all(DType::bf16, batch, 4, 2, 128, -1, Layout::tokens_first, 6);
  in_every_way([&] {
    const AttendResult together = run_attend(all, serial());
    for (const std::size_t n : {0, 1, 149, 150, 151, 299}) {
      const std::int64_t begin = batch.q_begin(n), end = begin + batch.spans[n].queries;
      AttendProblem alone = all.part(n, 0, end - begin, batch.spans[n].keys);
      const AttendResult expected = run_attend(alone, serial());
      EXPECT_TRUE(same_bits(expected.out, together.out.slice(begin, end))) << n;
      EXPECT_TRUE(same_bits(expected.lse, together.lse.slice(begin, end))) << n;
    }
  });
}

Gradients run_backward(AttendProblem& problem, const AttendResult& forward, const Tensor& dout,
                       cuda::Accumulation accumulation) {
  backend::accumulation = accumulation;
  const Gradients gradients = run_backward(problem, forward, dout, serial());
  backend::accumulation = cuda::Accumulation::ordered;
  return gradients;
}

// Sums as they come: dq is added up within a tile, so it has the same bits; dk and dv differ by roundings of
// fp32. The cache decides in which order the tiles start.
TEST(CudaAtomicSums, AreThoseInOrderButForRoundings) {
  struct Shape {
    Batch batch;
    std::int64_t heads, kv_heads, size;
    double density;
  };
  const std::vector<Shape> shapes = {
      {whole(900), 4, 2, 128, 0.2},
      {{{150, 1500, 1300}}, 8, 2, 128, 0.02},
      {whole(700), 2, 2, 64, 0.5},
      {whole(500), 16, 1, 128, 0.4},
      {{{64, 64, 0}, {1, 1, 0}, {100, 900, 750}, {0, 5, 5}}, 4, 1, 64, 0.2},
      {whole(300), 4, 1, 128, -1},
      {whole(200), 4, 2, 128, 0.0},
  };
  for (const Shape& shape : shapes) {
    AttendProblem problem(DType::bf16, shape.batch, shape.heads, shape.kv_heads, shape.size, shape.density,
                          Layout::tokens_first, 11);
    const Tensor dout = random_dout(problem);
    const AttendResult forward = run_attend(problem, serial());
    const Gradients ordered = run_backward(problem, forward, dout, cuda::Accumulation::ordered);
    for (const std::size_t cache : {std::size_t(50) << 20, std::size_t(300) << 10, std::size_t(20) << 10}) {
      SCOPED_TRACE(concat(shape.heads, " heads of ", shape.size, ", ", shape.density, ", cache of ", cache));
      cuda::Device device = cuda::current_device();
      device.l2_cache = cache;
      CudaCall::pretend(&device);
      const Gradients atomic = run_backward(problem, forward, dout, cuda::Accumulation::atomic);
      CudaCall::pretend(nullptr);
      EXPECT_TRUE(same_bits(atomic.dq, ordered.dq));
      const auto close = [](const Tensor& a, const Tensor& b) {
        const std::vector<double> x = a.values<double>(0, a.tokens()), y = b.values<double>(0, b.tokens());
        double largest = 0, difference = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
          largest = std::max(largest, std::abs(y[i]));
          difference = std::max(difference, std::abs(x[i] - y[i]));
        }
        return difference <= 1e-5 * largest;
      };
      EXPECT_TRUE(close(atomic.dk, ordered.dk));
      EXPECT_TRUE(close(atomic.dv, ordered.dv));
    }
  }
}

TEST(CudaTypes, OthersAreRefused) {
  for (const DType type : {DType::f32, DType::f64}) {
    AttendProblem attention(type, whole(5), 2, 1, 8, -1, Layout::tokens_first, 4);
    EXPECT_TRUE(refuses("attend", "dtype", [&] { run_attend(attention, serial()); }));
    IndexerProblem indexer(type, whole(5), 2, 8, ScoreForm::sigmoid, Layout::tokens_first, 5);
    EXPECT_TRUE(refuses("select", "dtype", [&] { run_select(indexer, Budget(), serial()); }));
    EXPECT_TRUE(refuses("index_scores", "dtype", [&] { run_index_scores(indexer, serial()); }));
  }
}

}  // namespace
}  // namespace gsa::testing
