// The mathematics of the kernels, written down once more as plainly as possible: one sequence, L x L
// matrices, no tiles, no SIMD, one obvious loop after another. In double it is what the kernels are tested
// against (their float64 form: in long double); in float (in double) it is the plain implementation whose
// rounding error the kernels' own error is compared with.
//
// Every tensor is contiguous and row-major. Matrices over pairs are [queries, keys].
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/select/select.h"

namespace gsa::reference {

// Query i stands at position first + i and sees keys 0 .. first + i.
struct Span {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t first = 0;

  std::int64_t visible(std::int64_t i) const { return first + i + 1; }
};

using Pairs = std::vector<char>;  // [queries, keys]: 1 where the query attends to the key

Pairs every_visible(const Span& span);

// ---- select

template <typename Real>
struct IndexerInput {
  Span span;
  std::int64_t heads = 0;
  std::int64_t size = 0;
  std::vector<Real> q;     // [queries, heads, size]
  std::vector<Real> k;     // [keys, size]
  std::vector<Real> w;     // [queries, heads]
  std::vector<Real> bias;  // [heads], or empty for zeros
  double scale = 1;
  ScoreForm form = ScoreForm::sigmoid;
};

// [queries, keys]; -infinity where the key is not visible.
template <typename Real>
std::vector<Real> index_scores(const IndexerInput<Real>& in);

// Population variance of count scores.
template <typename Real>
Real variance(const Real* scores, std::int64_t count);

// How many keys a query with this variance and this many visible keys selects.
std::int64_t budget_k(double variance, std::int64_t visible, const Budget& budget);

// The k highest of the visible scores by a full stable sort, so that of equal scores the lower position wins.
template <typename Real>
struct Choice {
  std::vector<char> chosen;  // [visible]
  Real threshold = 0;        // the lowest chosen score; -infinity when all are chosen
  std::int64_t tie_cut = 0;  // the last chosen position with that score; visible - 1 when all are chosen
};
template <typename Real>
Choice<Real> choose(const Real* scores, std::int64_t visible, std::int64_t k);

// ---- attend

// How a factor of a second product (probabilities, their gradients) is kept between the products. Matrix
// units take factors in the storage type of the inputs, so that an implementation on them rounds here.
template <typename Real>
using Kept = Real (*)(Real);

template <typename Real>
struct AttendInput {
  Span span;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t size = 0;
  double scale = 1;
  std::vector<Real> q;  // [queries, heads, size]
  std::vector<Real> k;  // [keys, kv_heads, size]
  std::vector<Real> v;  // [keys, kv_heads, size]
  Pairs pairs;
  Kept<Real> kept = nullptr;  // null: as it is
};

template <typename Real>
struct AttendOutput {
  std::vector<Real> out;  // [queries, heads, size]
  std::vector<Real> lse;  // [queries, heads]
};
template <typename Real>
AttendOutput<Real> attend(const AttendInput<Real>& in);

template <typename Real>
struct AttendGradients {
  std::vector<Real> dq, dk, dv;
};
template <typename Real>
AttendGradients<Real> attend_backward(const AttendInput<Real>& in, const AttendOutput<Real>& forward,
                                      const std::vector<Real>& dout);

// ---- gate: rows [rows, size]; z has the same shape, or [rows] when head-wise

template <typename Real>
std::vector<Real> gate(const std::vector<Real>& x, const std::vector<Real>& z);

template <typename Real>
struct GateGradients {
  std::vector<Real> dx, dz;
};
template <typename Real>
GateGradients<Real> gate_backward(const std::vector<Real>& x, const std::vector<Real>& z,
                                  const std::vector<Real>& dy);

// ---- indexer_kl

template <typename Real>
struct KlInput {
  AttendInput<Real> attention;  // v is not used
  std::vector<Real> lse;        // [queries, heads]
  IndexerInput<Real> indexer;
};

template <typename Real>
struct KlOutput {
  std::vector<Real> loss;       // [queries]
  std::vector<Real> index_lse;  // [queries]
};
template <typename Real>
KlOutput<Real> indexer_kl(const KlInput<Real>& in);

template <typename Real>
struct KlGradients {
  std::vector<Real> dq, dk, dw, dbias;
};
template <typename Real>
KlGradients<Real> indexer_kl_backward(const KlInput<Real>& in, const std::vector<Real>& index_lse,
                                      const std::vector<Real>& weight);

}  // namespace gsa::reference
