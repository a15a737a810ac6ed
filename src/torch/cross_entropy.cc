// cross_entropy_: the loss of each row of logits, which become its gradient.
#include "torch/backend.h"
#include "torch/fake.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/rows.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // The loss of each row of logits [T, classes] for targets int64 [T], Real [T]; 0 where the target is
  // `ignored`. With gradient, logits become softmax(logits) minus one at the target (0 in ignored rows). A
  // target out of range is an error on the CPU and a loss of NaN on a CUDA device. No gradient of its own.
  m.def("cross_entropy_(Tensor(a!) logits, Tensor targets, int ignored=-100, bool gradient=False) -> Tensor");
}

namespace {

// ---- Implementation

Tensor cross_entropy_(const Tensor& logits, const Tensor& targets, std::int64_t ignored, bool gradient) {
  constexpr char op[] = "cross_entropy_";
  check_rank(op, "logits", logits, 2, "[T, classes]");
  check_range(op, "logits", "a number of classes", logits.size(1), 1, 1 << 30);
  const DType dtype = dtype_of(op, "logits", logits, /*allow_float32=*/true);
  check_contiguous(op, "logits", logits);
  check_like(op, "targets", targets, at::kLong, {logits.size(0)}, logits.device());
  const Tensor wanted = targets.contiguous();
  const Tensor loss = empty(op, "logits", {logits.size(0)}, real_type(dtype), logits.device());
  backend_of(logits)->cross_entropy({.dtype = dtype,
                                     .tokens = logits.size(0),
                                     .classes = logits.size(1),
                                     .logits = mutable_data_of(logits),
                                     .targets = static_cast<const std::int64_t*>(data_of(wanted)),
                                     .ignored = ignored,
                                     .gradient = gradient,
                                     .loss = mutable_data_of(loss)});
  return loss;
}

// ---- Fake kernel

Tensor cross_entropy_fake(const Tensor& logits, const Tensor&, std::int64_t, bool) {
  check_rank("cross_entropy_", "logits", logits, 2, "[T, classes]");
  return fake::empty({logits.sym_size(0)}, logits, fake::real_type(logits));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "cross_entropy_", &cross_entropy_);
  works_in_place(m, "cross_entropy_");
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) { m.impl("cross_entropy_", &cross_entropy_fake); }

}  // namespace gsa::binding

namespace gsa::ops {

Tensor cross_entropy_(Tensor& logits, const Tensor& targets, std::int64_t ignored, bool gradient) {
  static const auto op = binding::find_operator<decltype(binding::cross_entropy_)>("gsa::cross_entropy_");
  return op.call(logits, targets, ignored, gradient);
}

}  // namespace gsa::ops
