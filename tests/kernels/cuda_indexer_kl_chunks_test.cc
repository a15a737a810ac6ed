// indexer_kl over a mask on CUDA goes through its queries in chunks that the device cuts: how it cuts them
// changes no bit, and neither do lists of very different lengths or queries that come later.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cuda_call.h"
#include "indexer_kl_limits.h"
#include "indexer_kl_problems.h"

namespace gsa::testing {
namespace {

using cuda::kl::ListLimits;

struct Heads {
  const char* name;
  std::int64_t index_heads, index_size;
};

// What list_gradients takes, and what it does not.
constexpr Heads kHeads[] = {{"4x32", 4, 32}, {"3x20", 3, 20}, {"4x64", 4, 64},
                            {"1x64", 1, 64}, {"6x64", 6, 64}, {"2x128", 2, 128}};

class CudaKlChunks : public ::testing::TestWithParam<std::tuple<DType, Heads>> {
 protected:
  ~CudaKlChunks() override {
    limit_kl(nullptr);
    CudaCall::as_graph(false);
  }

  // Odd lengths, tiles of one query, a sequence without queries, and one with tiles of every kind: all keys,
  // no key, a single one, and every density between.
  KlProblem problem() const {
    const auto& [dtype, heads] = GetParam();
    const Batch batch = {{97, 97, 0}, {1, 1, 0},      {0, 5, 5},     {230, 2300, 2070},
                         {1, 65, 64}, {30, 300, 200}, {33, 600, 511}};
    KlProblem p(dtype, {"", batch, 4, 1, 64, 0.05, heads.index_heads, heads.index_size}, 81);
    Random random(82);
    const std::int64_t q0 = batch.q_begin(3);
    for (std::int64_t i = 0; i < 230; ++i) {
      const std::int64_t position = 2070 + i, kind = position / 32 % 5;
      if (kind == 4) continue;
      for (std::int64_t s = 0; s <= position; ++s) {
        const bool on = kind == 0 || (kind == 1 && s == position) ||
                        (kind == 2 && random.uniform() < 0.3 * static_cast<double>(i) / 230);
        p.attention.mask.set(q0 + i, s, on);
      }
    }
    p.lse = run_attend(p.attention, serial()).lse;
    return p;
  }
};

void expect_same(const KlLoss& a, const KlLoss& b) {
  EXPECT_TRUE(same_bits(a.loss, b.loss));
  EXPECT_TRUE(same_bits(a.index_lse, b.index_lse));
}

void expect_same(const KlGradients& a, const KlGradients& b) {
  EXPECT_TRUE(same_bits(a.dq, b.dq)) << "dq";
  EXPECT_TRUE(same_bits(a.dk, b.dk)) << "dk";
  EXPECT_TRUE(same_bits(a.dw, b.dw)) << "dw";
  EXPECT_TRUE(same_bits(a.dbias, b.dbias)) << "dbias";
}

TEST_P(CudaKlChunks, ChangeNoBit) {
  KlProblem p = problem();
  in_every_way([&] {
    limit_kl(nullptr);
    const KlLoss forward = run_kl(p, serial());
    const KlGradients g = run_backward(p, forward, serial(), Layout::tokens_first, 1);
    // The longest list may need 5 slots; a limit below is raised to that.
    for (const ListLimits& limits :
         {ListLimits{.slots = 1}, ListLimits{.slots = 6}, ListLimits{.slots = 11}, ListLimits{.tiles = 1},
          ListLimits{.tiles = 3}, ListLimits{.slots = 7, .tiles = 2}, ListLimits{.word_bytes = 1}}) {
      SCOPED_TRACE(::testing::Message() << limits.slots << " slots, " << limits.tiles << " tiles");
      limit_kl(&limits);
      for (const bool graph : {false, true}) {
        CudaCall::as_graph(graph);
        expect_same(run_kl(p, serial()), forward);
        expect_same(run_backward(p, forward, serial(), Layout::tokens_first, 1), g);
      }
      CudaCall::as_graph(false);
    }
  });
}

// A tile without any key gives NaN to its queries, and nothing to keys; the others' losses are numbers.
TEST_P(CudaKlChunks, EmptyTilesGiveNanToTheirOwn) {
  KlProblem p = problem();
  const std::int64_t q0 = p.batch().q_begin(3);
  in_every_way([&] {
    const KlLoss forward = run_kl(p, serial());
    const KlGradients g = run_backward(p, forward, serial());
    std::int64_t empty = 0;
    for (std::int64_t t = 0; t < p.batch().queries(); ++t) {
      const bool inside = t >= q0 && t < q0 + 230;
      bool any = false;
      for (std::int64_t s = 0; inside && s <= 2070 + t - q0; ++s) any = any || p.attention.mask.get(t, s);
      if (!inside) any = true;
      empty += !any;
      ASSERT_EQ(std::isnan(forward.loss.at(t)), !any) << t;
      ASSERT_EQ(std::isnan(g.dw.at(t, 0)), !any) << t;
    }
    EXPECT_GE(empty, 32);
    const std::int64_t columns = std::get<1>(GetParam()).index_size;
    for (std::int64_t s = 0; s < p.batch().keys(); ++s) {
      for (std::int64_t c = 0; c < columns; ++c) ASSERT_FALSE(std::isnan(g.dk.at(s, 0, c))) << s;
    }
  });
}

// Where a key stands in a tile's list depends on the queries up to the first that selects it.
TEST_P(CudaKlChunks, LaterQueriesChangeNoBit) {
  const auto& [dtype, heads] = GetParam();
  constexpr std::int64_t kQueries = 32, kFirst = 1216, kKept = 13;
  KlProblem p(dtype, {"", {{kQueries, 1300, kFirst}}, 4, 1, 64, 0.3, heads.index_heads, heads.index_size},
              83);
  KlProblem changed = p;
  for (std::int64_t i = kKept; i < kQueries; ++i) {
    for (std::int64_t s = 0; s <= kFirst + i; ++s) changed.attention.mask.set(i, s, (s * 7 + i) % 3 == 0);
    for (std::int64_t j = 0; j < heads.index_heads; ++j) changed.indexer.q.set(i, j, 3, 0.5);
  }
  changed.lse = run_attend(changed.attention, serial()).lse;
  in_every_way([&] {
    const KlLoss a = run_kl(p, serial()), b = run_kl(changed, serial());
    EXPECT_TRUE(same_bits(a.loss.slice(0, kKept), b.loss.slice(0, kKept)));
    EXPECT_TRUE(same_bits(a.index_lse.slice(0, kKept), b.index_lse.slice(0, kKept)));
    EXPECT_FALSE(same_bits(a.loss.slice(kKept, kQueries), b.loss.slice(kKept, kQueries)));
    const KlGradients ga = run_backward(p, a, serial()), gb = run_backward(changed, b, serial());
    EXPECT_TRUE(same_bits(ga.dq.slice(0, kKept), gb.dq.slice(0, kKept)));
    EXPECT_TRUE(same_bits(ga.dw.slice(0, kKept), gb.dw.slice(0, kKept)));
  });
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaKlChunks,
                         ::testing::Combine(::testing::Values(DType::bf16, DType::f16),
                                            ::testing::ValuesIn(kHeads)),
                         [](const ::testing::TestParamInfo<std::tuple<DType, Heads>>& p) {
                           return std::string(name_of(std::get<0>(p.param))) + "_" +
                                  std::get<1>(p.param).name;
                         });

}  // namespace
}  // namespace gsa::testing
