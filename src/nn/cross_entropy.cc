#include "nn/cross_entropy.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <tuple>

#include "gsa/error.h"
#include "torch/gradient.h"
#include "torch/ops.h"

namespace gsa::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kCrossEntropyOp = "nn::cross_entropy_sum";

// Tokens a chunk: enough to keep the matrix product busy, few enough to keep logits small.
std::int64_t rows_of_chunk(const Tensor& hidden, std::int64_t vocabulary) {
  const std::int64_t bytes = hidden.is_cuda() ? std::int64_t{1} << 30 : std::int64_t{1} << 26;
  return std::max<std::int64_t>(16, bytes / (hidden.element_size() * vocabulary));
}

// sum += a^T b, in the type of sum.
void add_product(Tensor& sum, const Tensor& a, const Tensor& b) {
  if (a.scalar_type() == sum.scalar_type()) {
    sum.addmm_(a.t(), b);
  } else if (a.is_cuda()) {
    at::addmm_out(sum, sum, a.t(), b, sum.scalar_type());
  } else {
    sum.add_(a.t().mm(b));
  }
}

struct Chunks {
  Tensor sum;              // float64, 0-dim
  Tensor hidden_gradient;  // of the sum; undefined where not wanted, like the next
  Tensor weight_gradient;
};

Chunks run(const Tensor& hidden, const Tensor& weight, const Tensor& targets, bool want_hidden,
           bool want_weight) {
  const std::int64_t tokens = hidden.size(0), vocabulary = weight.size(0);
  const at::ScalarType real = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Chunks result;
  result.sum = torch::zeros({}, hidden.options().dtype(at::kDouble));
  if (want_hidden) result.hidden_gradient = torch::empty_like(hidden);
  if (want_weight) result.weight_gradient = torch::zeros(weight.sizes(), weight.options().dtype(real));

  const std::int64_t step = rows_of_chunk(hidden, vocabulary);
  for (std::int64_t begin = 0; begin < tokens; begin += step) {
    const std::int64_t rows = std::min(step, tokens - begin);
    const Tensor h = hidden.narrow(0, begin, rows);
    Tensor gradient = h.mm(weight.t());  // still the logits
    const bool wanted = want_hidden || want_weight;
    result.sum += ops::cross_entropy_(gradient, targets.narrow(0, begin, rows), kIgnoredTarget, wanted)
                      .sum(at::kDouble);
    if (want_hidden) result.hidden_gradient.narrow(0, begin, rows).copy_(gradient.mm(weight));
    if (want_weight) add_product(result.weight_gradient, gradient, h);
  }
  return result;
}

class CrossEntropySum : public torch::autograd::Function<CrossEntropySum> {
 public:
  struct Saved {
    Tensor hidden_gradient, weight_gradient;
    auto slots() { return std::tie(hidden_gradient, weight_gradient); }
  };

  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight,
                        const Tensor& targets, at::ScalarType type) {
    const Chunks result =
        run(hidden.to(type), weight.to(type), targets, hidden.requires_grad(), weight.requires_grad());
    binding::save(context, Saved{result.hidden_gradient, result.weight_gradient});
    context->saved_data["hidden_type"] = hidden.scalar_type();
    context->saved_data["weight_type"] = weight.scalar_type();
    return result.sum.to(type == at::kDouble ? at::kDouble : at::kFloat);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = binding::load<Saved>(context);
    const auto scaled = [&](const Tensor& x, const char* type) {
      return x.defined() ? (x * gradients[0]).to(context->saved_data[type].toScalarType()) : Tensor();
    };
    return {scaled(saved.hidden_gradient, "hidden_type"), scaled(saved.weight_gradient, "weight_type"),
            Tensor(), Tensor()};
  }
};

void check(const Tensor& hidden, const Tensor& weight, const Tensor& targets, bool autocast) {
  if (hidden.dim() != 2 || !hidden.is_floating_point()) {
    bad_argument(kCrossEntropyOp, "hidden", "floating point [T, d]",
                 concat(hidden.scalar_type(), " ", hidden.sizes()));
  }
  if (weight.dim() != 2 || weight.size(1) != hidden.size(1)) {
    bad_argument(kCrossEntropyOp, "weight", concat("[V, ", hidden.size(1), "]"), concat(weight.sizes()));
  }
  if (!autocast && weight.scalar_type() != hidden.scalar_type()) {
    bad_argument(kCrossEntropyOp, "weight", concat(hidden.scalar_type(), ", the type of hidden"),
                 concat(weight.scalar_type()));
  }
  if (targets.dim() != 1 || targets.size(0) != hidden.size(0) || targets.scalar_type() != at::kLong) {
    bad_argument(kCrossEntropyOp, "targets", concat("int64 [", hidden.size(0), "]"),
                 concat(targets.scalar_type(), " ", targets.sizes()));
  }
  // On a GPU a look at the values would be a wait; there the loss of such a target is NaN.
  if (targets.device().is_cpu() && targets.numel() > 0) {
    const Tensor wrong =
        targets.masked_select(((targets < 0) & (targets != kIgnoredTarget)) | (targets >= weight.size(0)));
    if (wrong.numel() > 0) {
      bad_argument(kCrossEntropyOp, "targets",
                   concat("numbers in 0 .. ", weight.size(0) - 1, ", or ", kIgnoredTarget),
                   concat(wrong[0].item<std::int64_t>()));
    }
  }
}

}  // namespace

Tensor cross_entropy_sum(const Tensor& hidden, const Tensor& weight, const Tensor& targets) {
  const at::DeviceType device = hidden.device().type();
  const bool autocast = at::autocast::is_autocast_enabled(device);
  check(hidden, weight, targets, autocast);
  const at::ScalarType type = autocast ? at::autocast::get_autocast_dtype(device) : hidden.scalar_type();
  if (!torch::GradMode::is_enabled()) {
    return run(hidden.to(type), weight.to(type), targets, false, false)
        .sum.to(type == at::kDouble ? at::kDouble : at::kFloat);
  }
  return CrossEntropySum::apply(hidden, weight, targets, type);
}

}  // namespace gsa::nn
