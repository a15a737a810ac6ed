#include "reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace gsa::reference {
namespace {

template <typename Real>
Real dot(const Real* a, const Real* b, std::int64_t size) {
  Real sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

template <typename Real>
Real keep(Kept<Real> kept, Real x) {
  return kept == nullptr ? x : kept(x);
}

template <typename Real>
Real sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

// The argument of the activation for query i, indexer head j, key s.
template <typename Real>
Real preactivation(const IndexerInput<Real>& in, std::int64_t i, std::int64_t j, std::int64_t s) {
  const Real product = dot(&in.q[(i * in.heads + j) * in.size], &in.k[s * in.size], in.size);
  return static_cast<Real>(in.scale) * product + (in.bias.empty() ? Real(0) : in.bias[j]);
}

// The scaled product of query i, head h with key s.
template <typename Real>
Real logit(const AttendInput<Real>& in, std::int64_t i, std::int64_t h, std::int64_t s) {
  const std::int64_t g = h / (in.heads / in.kv_heads);
  const Real* q = &in.q[(i * in.heads + h) * in.size];
  return static_cast<Real>(in.scale) * dot(q, &in.k[(s * in.kv_heads + g) * in.size], in.size);
}

// p[i,s], the attention averaged over the heads.
template <typename Real>
Real target(const KlInput<Real>& in, std::int64_t i, std::int64_t s) {
  const std::int64_t heads = in.attention.heads;
  Real sum = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    sum += std::exp(logit(in.attention, i, h, s) - in.lse[i * heads + h]);
  }
  return sum / static_cast<Real>(heads);
}

template <typename Real>
Real log_sum_exp(const std::vector<Real>& x) {
  if (x.empty()) return std::numeric_limits<Real>::quiet_NaN();
  const Real top = *std::max_element(x.begin(), x.end());
  Real sum = 0;
  for (const Real value : x) sum += std::exp(value - top);
  return top + std::log(sum);
}

std::vector<std::int64_t> support(const Span& span, const Pairs& pairs, std::int64_t i) {
  std::vector<std::int64_t> keys;
  for (std::int64_t s = 0; s < span.visible(i); ++s) {
    if (pairs[i * span.keys + s]) keys.push_back(s);
  }
  return keys;
}

}  // namespace

Pairs every_visible(const Span& span) {
  Pairs pairs(span.queries * span.keys, 0);
  for (std::int64_t i = 0; i < span.queries; ++i) {
    std::fill_n(pairs.begin() + i * span.keys, span.visible(i), 1);
  }
  return pairs;
}

template <typename Real>
std::vector<Real> index_scores(const IndexerInput<Real>& in) {
  const Span& span = in.span;
  std::vector<Real> scores(span.queries * span.keys, -std::numeric_limits<Real>::infinity());
  for (std::int64_t i = 0; i < span.queries; ++i) {
    for (std::int64_t s = 0; s < span.visible(i); ++s) {
      Real sum = 0;
      for (std::int64_t j = 0; j < in.heads; ++j) {
        const Real x = preactivation(in, i, j, s);
        sum += in.w[i * in.heads + j] * (in.form == ScoreForm::relu ? std::max(x, Real(0)) : sigmoid(x));
      }
      scores[i * span.keys + s] = sum;
    }
  }
  return scores;
}

template <typename Real>
Real variance(const Real* scores, std::int64_t count) {
  const Real n = static_cast<Real>(count);
  const Real mean = std::accumulate(scores, scores + count, Real(0)) / n;
  Real sum = 0;
  for (std::int64_t s = 0; s < count; ++s) sum += (scores[s] - mean) * (scores[s] - mean);
  return sum / n;
}

std::int64_t budget_k(double variance, std::int64_t visible, const Budget& budget) {
  double wanted = static_cast<double>(budget.base);
  if (budget.mode != BudgetMode::fixed && budget.mean_variance >= 0) {
    const bool inverse = budget.mode == BudgetMode::inverse;
    const double infinity = std::numeric_limits<double>::infinity();
    if (variance == 0) {
      wanted = inverse ? infinity : 0;
    } else {
      wanted *= inverse ? budget.mean_variance / variance : variance / budget.mean_variance;
    }
  }
  const double low = static_cast<double>(budget.min), high = static_cast<double>(budget.max);
  return std::min(static_cast<std::int64_t>(std::clamp(std::floor(wanted), low, high)), visible);
}

template <typename Real>
Choice<Real> choose(const Real* scores, std::int64_t visible, std::int64_t k) {
  std::vector<std::int64_t> order(visible);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return scores[a] > scores[b]; });
  Choice<Real> choice{std::vector<char>(visible, 0), -std::numeric_limits<Real>::infinity(), visible - 1};
  for (std::int64_t n = 0; n < k; ++n) choice.chosen[order[n]] = 1;
  if (k < visible) {
    choice.tie_cut = order[k - 1];
    choice.threshold = scores[choice.tie_cut];
  }
  return choice;
}

template <typename Real>
AttendOutput<Real> attend(const AttendInput<Real>& in) {
  const std::int64_t group = in.heads / in.kv_heads;
  AttendOutput<Real> result{std::vector<Real>(in.span.queries * in.heads * in.size, 0),
                            std::vector<Real>(in.span.queries * in.heads)};
  for (std::int64_t i = 0; i < in.span.queries; ++i) {
    const std::vector<std::int64_t> keys = support(in.span, in.pairs, i);
    for (std::int64_t h = 0; h < in.heads; ++h) {
      std::vector<Real> logits;
      for (const std::int64_t s : keys) logits.push_back(logit(in, i, h, s));
      const Real lse = log_sum_exp(logits);
      result.lse[i * in.heads + h] = lse;
      Real* out = &result.out[(i * in.heads + h) * in.size];
      if (keys.empty()) std::fill_n(out, in.size, std::numeric_limits<Real>::quiet_NaN());
      for (std::size_t n = 0; n < keys.size(); ++n) {
        const Real p = keep(in.kept, std::exp(logits[n] - lse));
        const Real* v = &in.v[(keys[n] * in.kv_heads + h / group) * in.size];
        for (std::int64_t c = 0; c < in.size; ++c) out[c] += p * v[c];
      }
    }
  }
  return result;
}

template <typename Real>
AttendGradients<Real> attend_backward(const AttendInput<Real>& in, const AttendOutput<Real>& forward,
                                      const std::vector<Real>& dout) {
  const std::int64_t group = in.heads / in.kv_heads;
  AttendGradients<Real> g{std::vector<Real>(in.q.size(), 0), std::vector<Real>(in.k.size(), 0),
                          std::vector<Real>(in.v.size(), 0)};
  for (std::int64_t i = 0; i < in.span.queries; ++i) {
    const std::vector<std::int64_t> keys = support(in.span, in.pairs, i);
    for (std::int64_t h = 0; h < in.heads; ++h) {
      const std::int64_t row = (i * in.heads + h) * in.size;
      const Real delta = dot(&dout[row], &forward.out[row], in.size);
      for (const std::int64_t s : keys) {
        const std::int64_t key = (s * in.kv_heads + h / group) * in.size;
        const Real p = std::exp(logit(in, i, h, s) - forward.lse[i * in.heads + h]);
        const Real dp = dot(&dout[row], &in.v[key], in.size);
        const Real da = keep(in.kept, p * (dp - delta) * static_cast<Real>(in.scale));
        const Real kept_p = keep(in.kept, p);
        for (std::int64_t c = 0; c < in.size; ++c) {
          g.dv[key + c] += kept_p * dout[row + c];
          g.dq[row + c] += da * in.k[key + c];
          g.dk[key + c] += da * in.q[row + c];
        }
      }
    }
  }
  return g;
}

template <typename Real>
std::vector<Real> gate(const std::vector<Real>& x, const std::vector<Real>& z) {
  const std::size_t share = x.empty() ? 1 : x.size() / z.size();  // elements of x that share a z
  std::vector<Real> y(x.size());
  for (std::size_t n = 0; n < x.size(); ++n) y[n] = x[n] * sigmoid(z[n / share]);
  return y;
}

template <typename Real>
GateGradients<Real> gate_backward(const std::vector<Real>& x, const std::vector<Real>& z,
                                  const std::vector<Real>& dy) {
  const std::size_t share = x.empty() ? 1 : x.size() / z.size();
  GateGradients<Real> g{std::vector<Real>(x.size()), std::vector<Real>(z.size(), 0)};
  for (std::size_t n = 0; n < x.size(); ++n) {
    const Real open = sigmoid(z[n / share]);
    g.dx[n] = dy[n] * open;
    g.dz[n / share] += dy[n] * x[n] * open * (1 - open);
  }
  return g;
}

template <typename Real>
KlOutput<Real> indexer_kl(const KlInput<Real>& in) {
  const Span& span = in.attention.span;
  const std::vector<Real> scores = index_scores(in.indexer);
  KlOutput<Real> result{std::vector<Real>(span.queries, 0), std::vector<Real>(span.queries)};
  for (std::int64_t i = 0; i < span.queries; ++i) {
    const std::vector<std::int64_t> keys = support(span, in.attention.pairs, i);
    std::vector<Real> row;
    for (const std::int64_t s : keys) row.push_back(scores[i * span.keys + s]);
    const Real lse = log_sum_exp(row);
    result.index_lse[i] = lse;
    if (keys.empty()) result.loss[i] = lse;  // NaN: there is nothing to compare
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const Real p = target(in, i, keys[n]);
      if (p != 0) result.loss[i] += p * (std::log(p) - (row[n] - lse));
    }
  }
  return result;
}

template <typename Real>
KlGradients<Real> indexer_kl_backward(const KlInput<Real>& in, const std::vector<Real>& index_lse,
                                      const std::vector<Real>& weight) {
  const Span& span = in.attention.span;
  const IndexerInput<Real>& x = in.indexer;
  const std::vector<Real> scores = index_scores(x);
  KlGradients<Real> g{std::vector<Real>(x.q.size(), 0), std::vector<Real>(x.k.size(), 0),
                      std::vector<Real>(x.w.size(), 0), std::vector<Real>(x.bias.size(), 0)};
  for (std::int64_t i = 0; i < span.queries; ++i) {
    for (const std::int64_t s : support(span, in.attention.pairs, i)) {
      const Real soft = std::exp(scores[i * span.keys + s] - index_lse[i]);
      const Real d_score = (soft - target(in, i, s)) * weight[i];
      for (std::int64_t j = 0; j < x.heads; ++j) {
        const std::int64_t head = i * x.heads + j;
        const Real pre = preactivation(x, i, j, s);
        const bool relu = x.form == ScoreForm::relu;
        const Real value = relu ? std::max(pre, Real(0)) : sigmoid(pre);
        const Real slope = relu ? Real(pre > 0) : value * (1 - value);
        const Real d_pre = d_score * x.w[head] * slope;
        const Real d_dot = keep(in.attention.kept, d_pre * static_cast<Real>(x.scale));
        g.dw[head] += d_score * value;
        if (!x.bias.empty()) g.dbias[j] += d_pre;
        for (std::int64_t c = 0; c < x.size; ++c) {
          g.dq[head * x.size + c] += d_dot * x.k[s * x.size + c];
          g.dk[s * x.size + c] += d_dot * x.q[head * x.size + c];
        }
      }
    }
  }
  return g;
}

#define GSA_INSTANTIATE(Real)                                                                         \
  template std::vector<Real> index_scores(const IndexerInput<Real>&);                                 \
  template Real variance(const Real*, std::int64_t);                                                  \
  template Choice<Real> choose(const Real*, std::int64_t, std::int64_t);                              \
  template AttendOutput<Real> attend(const AttendInput<Real>&);                                       \
  template AttendGradients<Real> attend_backward(const AttendInput<Real>&, const AttendOutput<Real>&, \
                                                 const std::vector<Real>&);                           \
  template std::vector<Real> gate(const std::vector<Real>&, const std::vector<Real>&);                \
  template GateGradients<Real> gate_backward(const std::vector<Real>&, const std::vector<Real>&,      \
                                             const std::vector<Real>&);                               \
  template KlOutput<Real> indexer_kl(const KlInput<Real>&);                                           \
  template KlGradients<Real> indexer_kl_backward(const KlInput<Real>&, const std::vector<Real>&,      \
                                                 const std::vector<Real>&);

GSA_INSTANTIATE(float)
GSA_INSTANTIATE(double)
GSA_INSTANTIATE(long double)

}  // namespace gsa::reference
