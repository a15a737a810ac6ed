#include "nn/rope.h"

#include <algorithm>
#include <cmath>

#include "nn/to_device.h"
#include "torch/ops.h"

namespace gsa::nn {
namespace {

// How far dimension pair i is interpolated: 0 keeps its frequency, 1 divides it by the factor. The ramp is
// linear in i between whole dimensions, as in the code that published YaRN checkpoints were made with (the
// paper's text has it linear in the number of rotations; both agree at the ends).
std::vector<double> interpolation_ramp(std::int64_t size, double theta, const YarnConfig& yarn) {
  const double length = static_cast<double>(yarn.original_length);
  const double dimensions = static_cast<double>(size);
  auto dimension_of = [&](double rotations) {
    return dimensions * std::log(length / (2 * M_PI * rotations)) / (2 * std::log(theta));
  };
  const double first = dimension_of(yarn.beta_fast), last = dimension_of(yarn.beta_slow);
  const double low = std::max(yarn.truncate ? std::floor(first) : first, 0.0);
  double high = std::min(yarn.truncate ? std::ceil(last) : last, dimensions - 1);
  if (high <= low) high = low + 1e-3;  // a step instead of a division by zero
  std::vector<double> ramp(static_cast<std::size_t>(size / 2));
  for (std::size_t i = 0; i < ramp.size(); ++i) {
    ramp[i] = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  }
  return ramp;
}

// The share of its frequency that a pair keeps; the rest is divided by the factor.
double kept_share(double frequency, const Llama3RopeConfig& llama3) {
  const double rotations = static_cast<double>(llama3.original_length) * frequency / (2 * M_PI);
  const double range = llama3.high_freq_factor - llama3.low_freq_factor;
  return std::clamp((rotations - llama3.low_freq_factor) / range, 0.0, 1.0);
}

}  // namespace

Rope::Rope(std::int64_t size, const RopeConfig& config, bool with_attention_factor)
    : frequencies_(static_cast<std::size_t>(size / 2)),
      factor_(with_attention_factor ? attention_factor(config.yarn) : 1) {
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    frequencies_[i] = std::pow(config.theta, -2.0 * static_cast<double>(i) / static_cast<double>(size));
  }
  for (double& frequency : frequencies_) {
    if (config.linear_factor != 1) frequency /= config.linear_factor;
    if (config.llama3.factor != 1) {
      const double kept = kept_share(frequency, config.llama3);
      frequency *= kept + (1 - kept) / config.llama3.factor;
    }
  }
  if (config.yarn.factor == 1) return;
  const std::vector<double> ramp = interpolation_ramp(size, config.theta, config.yarn);
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    frequencies_[i] *= (1 - ramp[i]) + ramp[i] / config.yarn.factor;
  }
}

at::Tensor Rope::frequencies_on(const at::Device& device) const {
  return to_device(torch::tensor(at::ArrayRef<double>(frequencies_), torch::kFloat64), device);
}

RopeTables Rope::tables(const at::Tensor& positions, at::ScalarType dtype) const {
  return tables(positions, dtype, frequencies_on(positions.device()));
}

RopeTables Rope::tables(const at::Tensor& positions, at::ScalarType dtype,
                        const at::Tensor& frequencies) const {
  // Angles in float64: at position 131,071 a float32 angle would be off by some 2^-8 radians.
  const at::Tensor angles = positions.to(torch::kFloat64).unsqueeze(1) * frequencies;
  const at::ScalarType real = dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  // Without a factor one kernel a table instead of three: of a decoding step's small kernels these are most.
  const auto table = [&](at::Tensor& (*function)(at::Tensor&, const at::Tensor&)) {
    const bool scaled = factor_ != 1;
    at::Tensor result = at::empty(angles.sizes(), angles.options().dtype(scaled ? torch::kFloat64 : real));
    function(result, angles);
    return scaled ? (result * factor_).to(real) : result;
  };
  return {table(at::cos_out), table(at::sin_out)};
}

at::Tensor rotate(const at::Tensor& x, const RopeTables& tables) {
  if (tables.cos.size(1) == 0) return x;
  const std::int64_t tokens = x.size(0), heads = x.size(1);
  return ops::rotary(x.reshape({tokens, heads * x.size(2)}), tables.cos, tables.sin, heads, 0, 0).q;
}

}  // namespace gsa::nn
