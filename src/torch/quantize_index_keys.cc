// quantize_index_keys: the indexer's keys in eight bits. A few of torch's operators, on any device; the cache
// calls it once for each new token.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <limits>

#include "gsa/error.h"
#include "torch/operators.h"
#include "torch/ops.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // The indexer's keys [..., d_I] in eight bits for decode: scale = absmax / 127 of each key, values = the
  // nearest integer of key / scale, ties to even. A key that is not finite gets scale NaN, so that decode
  // says NaN where the key itself would have.
  m.def("quantize_index_keys(Tensor keys) -> (Tensor values, Tensor scale)");
}

namespace {

Tensor2 quantize_index_keys(const Tensor& keys) {
  constexpr char op[] = "quantize_index_keys";
  constexpr double kLargest = 127;
  if (!keys.is_floating_point()) {
    bad_argument(op, "keys", "a floating-point type", c10::toString(keys.scalar_type()));
  }
  if (keys.dim() == 0) bad_argument(op, "keys", "[..., d]", "a tensor without dimensions");
  if (keys.sym_size(-1) == 0) bad_argument(op, "keys", "[..., d] with d of at least 1", "d = 0");
  const Tensor real = keys.scalar_type() == at::kDouble ? keys : keys.to(at::kFloat);
  // The scale is rounded to float32 first: values are the best for the scale that is kept.
  const Tensor largest = real.abs().amax(-1);
  const Tensor scale = (largest / kLargest).to(at::kFloat);
  const Tensor finite = scale.isfinite();
  // 0 / 0 of a key of zeros, and whatever came of a key that is not finite, counts for nothing.
  const Tensor usable = finite.logical_and(scale.gt(0)).unsqueeze(-1);
  const Tensor rounded = (real / scale.unsqueeze(-1)).round().clamp(-kLargest, kLargest);
  const Tensor values = at::where(usable, rounded, 0).to(at::kChar);
  return {values, at::where(finite, scale, std::numeric_limits<double>::quiet_NaN()).to(at::kFloat)};
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, CompositeExplicitAutograd, m) { m.impl("quantize_index_keys", &quantize_index_keys); }
TORCH_LIBRARY_IMPL(gsa, Autograd, m) { m.impl("quantize_index_keys", not_differentiable()); }

}  // namespace gsa::binding

namespace gsa::ops {

QuantizedKeys quantize_index_keys(const Tensor& keys) {
  static const auto op =
      binding::find_operator<decltype(binding::quantize_index_keys)>("gsa::quantize_index_keys");
  auto [values, scale] = op.call(keys);
  return {values, scale};
}

}  // namespace gsa::ops
