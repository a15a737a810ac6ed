// Rotary position embedding, half-split layout, with YaRN, linear or llama3 scaling.
//
//   x = [x1 | x2 | rest],  x1 and x2 of n = size / 2 dimensions each
//   y = [x1 c - x2 s | x2 c + x1 s | rest],   c, s = f cos(p w_i), f sin(p w_i),  i = 0 .. n - 1
//
// p is the token's position, w_i = theta^(-i / n) without YaRN, f YaRN's attention factor (1 without).
// YaRN, with m(b) = size ln(original_length / (2 pi b)) / (2 ln theta) the dimension that rotates b times
// over the original length:
//   low = floor(m(beta_fast)),  high = ceil(m(beta_slow)),  ramp_i = clamp((i - low) / (high - low), 0, 1)
//   w_i <- w_i (1 - ramp_i) + w_i / factor * ramp_i
// without floor and ceil where truncate is false. Linear: w_i <- w_i / factor. Llama 3, with t_i the rotations of
// pair i over the original length:
//   t_i = original_length w_i / (2 pi),  keep_i = clamp((t_i - low_freq_factor) / (high - low), 0, 1)
//   w_i <- w_i keep_i + w_i / factor * (1 - keep_i)
#pragma once

#include <vector>

#include "model/config.h"
#include "nn/torch.h"

namespace gsa::nn {

struct RopeTables {
  at::Tensor cos, sin;  // [T, size / 2], float32, or float64 for float64 inputs
};

class Rope {
 public:
  // size: how many dimensions are rotated (even). with_attention_factor: false leaves f at 1, for products
  // that do not go into a softmax of attention (the indexer's).
  Rope(std::int64_t size, const RopeConfig& config, bool with_attention_factor);

  std::int64_t size() const { return 2 * static_cast<std::int64_t>(frequencies_.size()); }
  const std::vector<double>& frequencies() const { return frequencies_; }
  double factor() const { return factor_; }

  // positions: integers [T], any device. Tables for inputs of type dtype.
  RopeTables tables(const at::Tensor& positions, at::ScalarType dtype) const;
  // The same with frequencies_on(the positions' device), kept by the caller: on a GPU the copy of the
  // frequencies would be a wait.
  RopeTables tables(const at::Tensor& positions, at::ScalarType dtype, const at::Tensor& frequencies) const;
  at::Tensor frequencies_on(const at::Device& device) const;  // float64 [size / 2]

 private:
  std::vector<double> frequencies_;
  double factor_ = 1;
};

// x [T, heads, d], d >= 2 * (columns of the tables): the first dimensions rotated, the rest as it is.
// Arithmetic in the type of the tables, the result in the type of x.
at::Tensor rotate(const at::Tensor& x, const RopeTables& tables);

}  // namespace gsa::nn
