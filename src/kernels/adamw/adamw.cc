// adamw: argument checks and what all elements share. The work is in adamw_cpu.cc and adamw_cuda.cu.
#include "kernels/adamw/adamw.h"

#include <cmath>
#include <limits>

#include "gsa/error.h"
#include "kernels/adamw/adamw_cpu.h"
#include "kernels/common/checks.h"
#include "kernels/common/plans.h"

namespace gsa {
namespace {

constexpr const char* kOp = "adamw_";  // as users of torch know it

void check_number(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    bad_argument(kOp, name, concat("a number from ", low, " to ", high), concat(value));
  }
}

}  // namespace

// w - lr (m / c1 / (sqrt(v / c2) + eps) + decay w) = (1 - lr decay) w - (lr / c1) m / (sqrt(v) / sqrt(c2) +
// eps)
AdamWNumbers adamw_numbers(const AdamWArgs& args) {
  const double n = static_cast<double>(args.step);
  const double c1 = 1 - std::pow(args.beta1, n), c2 = 1 - std::pow(args.beta2, n);
  return {.factor = static_cast<float>(args.factor),
          .beta1 = static_cast<float>(args.beta1),
          .rest1 = static_cast<float>(1 - args.beta1),
          .beta2 = static_cast<float>(args.beta2),
          .rest2 = static_cast<float>(1 - args.beta2),
          .step_size = static_cast<float>(args.lr / c1),
          .root = static_cast<float>(1 / std::sqrt(c2)),
          .eps = static_cast<float>(args.eps),
          .keep = static_cast<float>(1 - args.lr * args.decay)};
}

bool check_adamw(const AdamWArgs& args) {
  check::in_range(kOp, "count", args.count, 0, std::numeric_limits<std::int64_t>::max());
  check::in_range(kOp, "step", args.step, 1, std::numeric_limits<std::int64_t>::max());
  check_number("lr", args.lr, 0, 1e9);
  check_number("beta1", args.beta1, 0, 1 - 1e-12);
  check_number("beta2", args.beta2, 0, 1 - 1e-12);
  check_number("eps", args.eps, 0, 1e9);
  check_number("decay", args.decay, 0, 1e9);
  check_number("factor", args.factor, 0, 1e30);
  for (const auto& [name, type] :
       {std::pair("gradient", args.gradient_type), std::pair("weight", args.weight_type)}) {
    if (type == DType::f64) bad_argument(kOp, name, "float32, bfloat16 or float16", name_of(type));
  }
  if (args.count == 0) return false;
  check::not_null(kOp, "gradient", args.gradient);
  check::not_null(kOp, "master", args.master);
  check::not_null(kOp, "mean", args.mean);
  check::not_null(kOp, "square", args.square);
  return true;
}

void adamw(const AdamWArgs& args, const Parallel& parallel) {
  if (!check_adamw(args)) return;
  if (prints_plans()) {
    print_cpu_plan(kOp,
                   concat(args.count, " weights, gradients in ", name_of(args.gradient_type), ", weights in ",
                          name_of(args.weight == nullptr ? DType::f32 : args.weight_type)));
  }
  adamw_cpu(args, parallel);
}

}  // namespace gsa
