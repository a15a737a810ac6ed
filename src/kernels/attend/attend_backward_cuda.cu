// Argument checks of attend_backward on CUDA, and which kernel runs.
#include "gsa/error.h"
#include "kernels/attend/attend_backward_plan.h"
#include "kernels/attend/attend_checks.h"
#include "kernels/attend/attend_cuda.h"
#include "kernels/attend/generic/attend.h"
#include "kernels/attend/hopper/backward.h"
#include "kernels/common/aligned_rows.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/plans.h"

namespace gsa::cuda {
namespace {

// Rows begin at multiples of 16 bytes, and less than 4 GB apart.
bool aligned(const ConstRows& rows) {
  return aligned_rows(rows) && rows.token_stride >= 0 && rows.token_stride < std::int64_t(1) << 31;
}

AttendBackwardFacts facts_of(const AttendBackwardArgs& args, Accumulation accumulation,
                             const Device& device) {
  AttendBackwardFacts facts;
  facts.device = device;
  facts.head_size = args.shape.head_size;
  facts.kv_heads = args.shape.kv_heads;
  facts.group = args.shape.heads / args.shape.kv_heads;
  facts.masked = args.mask.words != nullptr;
  facts.aligned = aligned(args.q) && aligned(args.k) && aligned(args.v) && aligned(args.out) &&
                  aligned(args.dout) && aligned(args.dq) && at_16_bytes(args.dk) && at_16_bytes(args.dv);
  facts.accumulation = accumulation;
  facts.sequences = args.sequences.count;
  facts.total_keys = args.sequences.total_keys();
  facts.longest_keys = args.sequences.longest_keys();
  facts.generic_shared = attend_backward_generic_shared(args.shape.head_size);
  return facts;
}

}  // namespace

void attend_backward(const AttendBackwardArgs& args, Accumulation accumulation, const Context& context) {
  constexpr const char* kOp = "attend_backward";
  if (args.shape.dtype != DType::bf16 && args.shape.dtype != DType::f16) {
    bad_argument(kOp, "dtype", "bfloat16 or float16 on CUDA", name_of(args.shape.dtype));
  }
  check_device(kOp, context.device);
  if (!check_attend_backward(args)) return;
  const AttendBackwardConfig config = choose_attend_backward(facts_of(args, accumulation, context.device));
  if (prints_plans()) {
    print_plan(kOp,
               concat(describe(args.shape), ", ", describe(args.sequences),
                      args.mask.words != nullptr ? ", mask" : "",
                      accumulation == Accumulation::atomic ? ", atomic" : ", ordered"),
               to_string(config));
  }
  if (config.kernel == AttendBackwardConfig::Kernel::hopper) {
    attend_backward_hopper(args, config, accumulation, context);
  } else {
    attend_backward_generic(args, config, accumulation, context);
  }
}

}  // namespace gsa::cuda
