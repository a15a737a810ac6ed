// rotary on the CPU. The work is in rotary_cpu.cc.
#include "kernels/rotary/rotary.h"

#include "gsa/error.h"
#include "kernels/common/plans.h"
#include "kernels/rotary/rotary_checks.h"
#include "kernels/rotary/rotary_cpu.h"

namespace gsa {
namespace {

std::string rotary_text(const RotaryShape& shape) {
  return concat(shape.tokens, " tokens, ", shape.q_heads, "/", shape.k_heads, "/", shape.v_heads,
                " heads of ", shape.head_size, ", ", shape.pairs, " pairs, ", name_of(shape.dtype));
}

}  // namespace

void rotary(const RotaryArgs& args, const Parallel& parallel) {
  if (!check_rotary(args)) return;
  if (prints_plans()) print_cpu_plan("rotary", rotary_text(args.shape));
  rotary_cpu(args, parallel);
}

void rotary_backward(const RotaryBackwardArgs& args, const Parallel& parallel) {
  if (!check_rotary_backward(args)) return;
  if (prints_plans()) print_cpu_plan("rotary_backward", rotary_text(args.shape));
  rotary_backward_cpu(args, parallel);
}

}  // namespace gsa
