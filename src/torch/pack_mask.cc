// pack_mask: a bool mask as the words that attend and indexer_kl read. A few of torch's operators, on any
// device.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/library.h>

#include "gsa/error.h"
#include "torch/operators.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // Bool [..., S] -> int32 [..., ceil(S / 32)]: position s is bit s % 32 of word s / 32.
  m.def("pack_mask(Tensor mask) -> Tensor");
}

namespace {

Tensor pack_mask(const Tensor& mask) {
  constexpr char op[] = "pack_mask";
  constexpr std::int64_t kBits = 32;
  if (mask.scalar_type() != at::kBool) {
    bad_argument(op, "mask", "Bool [..., S]", c10::toString(mask.scalar_type()));
  }
  if (mask.dim() == 0) bad_argument(op, "mask", "[..., S]", "a tensor without dimensions");
  const c10::SymInt words = (mask.sym_size(-1) + (kBits - 1)) / kBits;
  const Tensor whole = at::constant_pad_nd_symint(mask, {c10::SymInt(0), words * kBits - mask.sym_size(-1)});
  std::vector<c10::SymInt> shape = mask.sym_sizes().vec();
  shape.back() = words;
  shape.emplace_back(kBits);
  // Sums of different powers of two, of which the last is negative: within int32 in any order.
  const Tensor shift = at::arange(kBits, mask.options().dtype(at::kInt));
  return at::bitwise_left_shift(whole.reshape_symint(shape).to(at::kInt), shift).sum(-1, false, at::kInt);
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, CompositeExplicitAutograd, m) { m.impl("pack_mask", &pack_mask); }

}  // namespace gsa::binding
