// The plain form of rms_norm, rotary, swiglu and cross_entropy: rows of contiguous tensors, one loop after
// another.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace gsa::reference {

template <typename Real>
struct RmsNormGradients {
  std::vector<Real> dx, dweight;
};

// s [tokens, size] (the sum of stream and branch, rounded as it is stored), weight [size].
template <typename Real>
std::vector<Real> rms_norm(const std::vector<Real>& s, const std::vector<Real>& weight, Real eps) {
  const std::size_t size = weight.size();
  std::vector<Real> y(s.size());
  for (std::size_t t = 0; t * size < s.size(); ++t) {
    Real square = 0;
    for (std::size_t i = 0; i < size; ++i) square += s[t * size + i] * s[t * size + i];
    const Real rstd = 1 / std::sqrt(square / static_cast<Real>(size) + eps);
    for (std::size_t i = 0; i < size; ++i) y[t * size + i] = s[t * size + i] * rstd * weight[i];
  }
  return y;
}

// dsum: as dy, or empty for none.
template <typename Real>
RmsNormGradients<Real> rms_norm_backward(const std::vector<Real>& dy, const std::vector<Real>& dsum,
                                         const std::vector<Real>& s, const std::vector<Real>& weight,
                                         Real eps) {
  const std::size_t size = weight.size();
  RmsNormGradients<Real> result{std::vector<Real>(s.size()), std::vector<Real>(size)};
  for (std::size_t t = 0; t * size < s.size(); ++t) {
    Real square = 0;
    for (std::size_t i = 0; i < size; ++i) square += s[t * size + i] * s[t * size + i];
    const Real rstd = 1 / std::sqrt(square / static_cast<Real>(size) + eps);
    Real mean = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const Real normal = s[t * size + i] * rstd;
      result.dweight[i] += dy[t * size + i] * normal;
      mean += dy[t * size + i] * weight[i] * normal / static_cast<Real>(size);
    }
    for (std::size_t i = 0; i < size; ++i) {
      const Real own = rstd * (dy[t * size + i] * weight[i] - s[t * size + i] * rstd * mean);
      result.dx[t * size + i] = own + (dsum.empty() ? 0 : dsum[t * size + i]);
    }
  }
  return result;
}

// x [tokens, heads, size], cos and sin [tokens, pairs]; sign -1 rotates back.
template <typename Real>
std::vector<Real> rotated(std::vector<Real> x, std::int64_t heads, std::int64_t size,
                          const std::vector<Real>& cos, const std::vector<Real>& sin, std::int64_t pairs,
                          Real sign) {
  const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / (heads * size);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      Real* const row = x.data() + (t * heads + h) * size;
      for (std::int64_t i = 0; i < pairs; ++i) {
        const Real a = row[i], b = row[pairs + i], c = cos[t * pairs + i], s = sign * sin[t * pairs + i];
        row[i] = a * c - b * s;
        row[pairs + i] = b * c + a * s;
      }
    }
  }
  return x;
}

// x [tokens, 2 size] -> [tokens, size].
template <typename Real>
std::vector<Real> swiglu(const std::vector<Real>& x, std::int64_t size) {
  std::vector<Real> y;
  for (std::size_t row = 0; row < x.size(); row += 2 * size) {
    for (std::int64_t i = 0; i < size; ++i) {
      const Real g = x[row + i], u = x[row + size + i];
      y.push_back(g / (1 + std::exp(-g)) * u);
    }
  }
  return y;
}

template <typename Real>
std::vector<Real> swiglu_backward(const std::vector<Real>& x, const std::vector<Real>& dy,
                                  std::int64_t size) {
  std::vector<Real> dx(x.size());
  for (std::size_t row = 0; row < x.size(); row += 2 * size) {
    for (std::int64_t i = 0; i < size; ++i) {
      const Real g = x[row + i], u = x[row + size + i], d = dy[row / 2 + i];
      const Real open = 1 / (1 + std::exp(-g));
      dx[row + i] = d * u * open * (1 + g * (1 - open));
      dx[row + size + i] = d * g * open;
    }
  }
  return dx;
}

template <typename Real>
struct CrossEntropy {
  std::vector<Real> loss, gradient;
};

// z [tokens, classes].
template <typename Real>
CrossEntropy<Real> cross_entropy(const std::vector<Real>& z, const std::vector<std::int64_t>& targets,
                                 std::int64_t classes, std::int64_t ignored) {
  CrossEntropy<Real> result{std::vector<Real>(targets.size()), std::vector<Real>(z.size())};
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == ignored) continue;
    const Real* const row = z.data() + t * classes;
    const Real maximum = *std::max_element(row, row + classes);
    Real sum = 0;
    for (std::int64_t j = 0; j < classes; ++j) sum += std::exp(row[j] - maximum);
    result.loss[t] = maximum + std::log(sum) - row[targets[t]];
    for (std::int64_t j = 0; j < classes; ++j) {
      result.gradient[t * classes + j] = std::exp(row[j] - maximum) / sum - (j == targets[t] ? 1 : 0);
    }
  }
  return result;
}

struct AdamWState {
  std::vector<double> w, m, v;
};

// One step, n counted from 1.
inline void adamw(AdamWState& state, const std::vector<double>& gradient, double factor, double lr,
                  double beta1, double beta2, double eps, double decay, int n) {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = factor * gradient[i];
    state.m[i] = beta1 * state.m[i] + (1 - beta1) * g;
    state.v[i] = beta2 * state.v[i] + (1 - beta2) * g * g;
    const double mean = state.m[i] / (1 - std::pow(beta1, n)), square = state.v[i] / (1 - std::pow(beta2, n));
    state.w[i] -= lr * (mean / (std::sqrt(square) + eps) + decay * state.w[i]);
  }
}

}  // namespace gsa::reference
