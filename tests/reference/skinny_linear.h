// The plain form of skinny_linear.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference/fused.h"

namespace gsa::reference {

template <typename Real>
struct SkinnyLinear {
  std::vector<Real> x, norm, weight, bias, residual;  // as in SkinnyLinearArgs; empty: none
  std::int64_t size = 0;
  bool swiglu = false;
  Real eps = 0;
};

// round: to the storage type, wherever skinny_linear.h says that something is rounded before the end.
template <typename Real, typename Round>
std::vector<Real> skinny_linear(const SkinnyLinear<Real>& in, const Round& round) {
  const auto size = static_cast<std::size_t>(in.size);
  const std::size_t rows = in.x.size() / size, products = in.weight.size() / size;
  std::vector<Real> h = in.norm.empty() ? in.x : rms_norm(in.x, in.norm, in.eps);
  if (!in.norm.empty()) {
    for (Real& value : h) value = round(value);
  }
  std::vector<Real> z(rows * products);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t n = 0; n < products; ++n) {
      Real sum = 0;
      for (std::size_t k = 0; k < size; ++k) sum += h[row * size + k] * in.weight[n * size + k];
      if (!in.bias.empty()) sum += in.bias[n];
      z[row * products + n] = sum;
    }
  }
  if (!in.swiglu && in.residual.empty()) return z;
  for (Real& value : z) value = round(value);
  if (in.swiglu) return swiglu(z, static_cast<std::int64_t>(products / 2));
  for (std::size_t i = 0; i < z.size(); ++i) z[i] += in.residual[i];
  return z;
}

}  // namespace gsa::reference
