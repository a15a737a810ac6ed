// Argument checks of gate. The work is in gate_cpu.cc.
#include "kernels/gate/gate.h"

#include <limits>

#include "core/checked.h"
#include "kernels/common/checks.h"
#include "kernels/gate/gate_cpu.h"

namespace gsa {
namespace {

// Returns whether there is anything to do.
bool check_shape(const char* op, const GateShape& shape) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int64_t>::max();
  check::in_range(op, "tokens", shape.tokens, 0, kLimit);
  check::in_range(op, "heads", shape.heads, 0, kLimit);
  check::in_range(op, "head_size", shape.head_size, 0, kLimit);
  const std::int64_t rows = checked_mul(shape.tokens, shape.heads, op, "tokens x heads");
  return checked_mul(rows, shape.head_size, op, "tokens x heads x head_size") > 0;
}

}  // namespace

void gate(const GateArgs& args, const Parallel& parallel) {
  constexpr const char* kOp = "gate";
  if (!check_shape(kOp, args.shape)) return;
  check::not_null(kOp, "x", args.x.data);
  check::not_null(kOp, "z", args.z.data);
  check::not_null(kOp, "y", args.y.data);
  gate_cpu(args, parallel);
}

void gate_backward(const GateBackwardArgs& args, const Parallel& parallel) {
  constexpr const char* kOp = "gate_backward";
  if (!check_shape(kOp, args.shape)) return;
  check::not_null(kOp, "x", args.x.data);
  check::not_null(kOp, "z", args.z.data);
  check::not_null(kOp, "dy", args.dy.data);
  check::not_null(kOp, "dx", args.dx.data);
  check::not_null(kOp, "dz", args.dz.data);
  gate_backward_cpu(args, parallel);
}

}  // namespace gsa
