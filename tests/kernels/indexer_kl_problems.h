// Seeded random problems for indexer_kl.
#pragma once

#include "kernels/indexer_kl/indexer_kl.h"
#include "problems.h"

namespace gsa::testing {

struct KlCase {
  const char* name;
  Batch batch;
  std::int64_t heads, kv_heads, size;  // of the attention
  double density;                      // negative: warm-up, every visible key
  std::int64_t index_heads, index_size;
  ScoreForm form = ScoreForm::sigmoid;
  Layout layout = Layout::tokens_first;
  bool bias = true;
};

inline std::ostream& operator<<(std::ostream& out, const KlCase& c) { return out << c.name; }

struct KlProblem {
  AttendProblem attention;
  IndexerProblem indexer;
  Tensor lse, weight;
  QueryTiles tiles = {};

  KlProblem(DType dtype, const KlCase& c, std::uint64_t seed)
      : attention(dtype, c.batch, c.heads, c.kv_heads, c.size, c.density, c.layout, seed),
        indexer(dtype, c.batch, c.index_heads, c.index_size, c.form, c.layout, seed + 1),
        lse(run_attend(attention, serial()).lse),
        weight(Tensor::reals(dtype, c.batch.queries())) {
    if (!c.bias) indexer.bias = Tensor();
    Random random(seed + 2);
    weight.fill([&] { return 0.2 + random.uniform(); });
  }

  DType dtype() const { return attention.dtype; }
  Batch& batch() { return attention.batch; }

  IndexerKlInputs inputs() {
    return {.shape = attention.shape(),
            .q = attention.q.rows(),
            .k = attention.k.rows(),
            .lse = lse.data(),
            .indexer = indexer.view(),
            .mask = attention.mask_view(),
            .sequences = attention.batch.view(),
            .tiles = tiles};
  }

  // Sequence n alone.
  KlProblem alone(std::size_t n) const {
    KlProblem result(*this);
    const std::int64_t q0 = attention.batch.q_begin(n), q1 = attention.batch.q_begin(n + 1);
    const std::int64_t keys = attention.batch.spans[n].keys;
    result.attention = attention.part(n, 0, q1 - q0, keys);
    result.indexer = indexer.part(n, 0, q1 - q0, keys);
    result.lse = lse.slice(q0, q1);
    result.weight = weight.slice(q0, q1);
    return result;
  }

  template <typename Real>
  reference::KlInput<Real> input(std::size_t n) const {
    reference::KlInput<Real> in{attention.input<Real>(n), {}, indexer.input<Real>(n)};
    in.lse = reference::attend(in.attention).lse;
    return in;
  }
};

struct KlLoss {
  Tensor loss, index_lse;
};

struct KlGradients {
  Tensor dq, dk, dw, dbias;
};

inline KlLoss run_kl(KlProblem& p, const Parallel& parallel) {
  KlLoss result{Tensor::reals(p.dtype(), p.batch().queries()), Tensor::reals(p.dtype(), p.batch().queries())};
  backend::indexer_kl({p.inputs(), result.loss.data(), result.index_lse.data()}, parallel);
  return result;
}

// The gradients of sum(weight * loss), added to dk = dbias = `start`.
inline KlGradients run_backward(KlProblem& p, const KlLoss& forward, const Parallel& parallel,
                                Layout layout = Layout::tokens_first, double start = 0) {
  const IndexerProblem& x = p.indexer;
  const DType real = real_of(p.dtype());
  KlGradients g{
      Tensor(p.dtype(), x.batch.queries(), x.heads, x.size, layout), Tensor(real, x.batch.keys(), 1, x.size),
      Tensor(p.dtype(), x.batch.queries(), x.heads, 1, layout), Tensor(real, x.bias.tokens(), 1, x.heads)};
  g.dk.fill([&] { return start; });
  g.dbias.fill([&] { return start; });
  backend::indexer_kl_backward({.in = p.inputs(),
                                .index_lse = forward.index_lse.data(),
                                .weight = p.weight.data(),
                                .dq = g.dq.rows(),
                                .dw = g.dw.rows(),
                                .dk = g.dk.data(),
                                .dbias = g.dbias.data()},
                               parallel);
  return g;
}

}  // namespace gsa::testing
