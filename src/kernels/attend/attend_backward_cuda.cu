// Argument checks of attend_backward on CUDA, and which kernel runs.
#include "gsa/error.h"
#include "kernels/attend/attend_backward_hopper.h"
#include "kernels/attend/attend_cuda.h"
#include "kernels/attend/attend_generic.h"
#include "kernels/common/checks.h"
#include "kernels/common/cuda_check.h"

namespace gsa::cuda {

void attend_backward(const AttendBackwardArgs& args, Accumulation accumulation, const Context& context) {
  constexpr const char* kOp = "attend_backward";
  check::attend_shape(kOp, args.shape);
  if (args.shape.dtype != DType::bf16 && args.shape.dtype != DType::f16) {
    bad_argument(kOp, "dtype", "bfloat16 or float16 on CUDA", name_of(args.shape.dtype));
  }
  check_device(kOp, context.device);
  check::sequences(kOp, args.sequences);
  check::mask(kOp, args.mask, args.sequences);
  if (args.sequences.total_queries() == 0) return;
  check::not_null(kOp, "q", args.q.data);
  check::not_null(kOp, "k", args.k.data);
  check::not_null(kOp, "v", args.v.data);
  check::not_null(kOp, "out", args.out.data);
  check::not_null(kOp, "lse", args.lse);
  check::not_null(kOp, "dout", args.dout.data);
  check::not_null(kOp, "dq", args.dq.data);
  check::not_null(kOp, "dk", args.dk);
  check::not_null(kOp, "dv", args.dv);
  if (hopper_takes(args, context.device)) {
    attend_backward_hopper(args, accumulation, context);
  } else {
    attend_backward_generic(args, accumulation, context);
  }
}

}  // namespace gsa::cuda
