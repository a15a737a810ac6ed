// Argument checks of attend_backward on CUDA, and which kernel runs.
#include "gsa/error.h"
#include "kernels/attend/attend_checks.h"
#include "kernels/attend/attend_cuda.h"
#include "kernels/attend/generic/attend.h"
#include "kernels/attend/hopper/backward.h"
#include "kernels/common/cuda_check.h"

namespace gsa::cuda {

void attend_backward(const AttendBackwardArgs& args, Accumulation accumulation, const Context& context) {
  constexpr const char* kOp = "attend_backward";
  if (args.shape.dtype != DType::bf16 && args.shape.dtype != DType::f16) {
    bad_argument(kOp, "dtype", "bfloat16 or float16 on CUDA", name_of(args.shape.dtype));
  }
  check_device(kOp, context.device);
  if (!check_attend_backward(args)) return;
  if (hopper_takes(args, context.device)) {
    attend_backward_hopper(args, accumulation, context);
  } else {
    attend_backward_generic(args, accumulation, context);
  }
}

}  // namespace gsa::cuda
