// attend forward on CUDA: checks, the choice of a kernel, its launch.
#include "kernels/attend/attend_cuda.h"

#include <limits>

#include "gsa/error.h"
#include "kernels/attend/attend_checks.h"
#include "kernels/attend/attend_plan.h"
#include "kernels/attend/generic/attend.h"
#include "kernels/attend/hopper/forward.h"
#include "kernels/common/aligned_rows.h"
#include "kernels/common/plans.h"

namespace gsa::cuda {
namespace {

// Whether every row begins at a multiple of 16 bytes, and steps between tokens fit what the kernels count in.
bool aligned(const ConstRows& rows) {
  return aligned_rows(rows) && rows.token_stride >= 0 &&
         rows.token_stride <= std::numeric_limits<int>::max() / 2;
}

AttendFacts facts_of(const AttendArgs& args, const Device& device) {
  AttendFacts facts;
  facts.device = device;
  facts.dtype = args.shape.dtype;
  facts.head_size = args.shape.head_size;
  facts.group = args.shape.heads / args.shape.kv_heads;
  facts.masked = args.mask.words != nullptr;
  facts.max_selected = args.mask.max_selected;
  facts.longest_keys = args.sequences.longest_keys();
  facts.aligned = aligned(args.q) && aligned(args.k) && aligned(args.v) && aligned(args.out);
  return facts;
}

}  // namespace

void attend(const AttendArgs& args, const Context& context) {
  if (!check_attend(args)) return;
  const AttendConfig config = choose_attend(facts_of(args, context.device));
  if (prints_plans()) {
    print_plan("attend",
               concat(describe(args.shape), ", ", describe(args.sequences),
                      args.mask.words != nullptr ? ", mask" : ""),
               to_string(config));
  }
  if (config.kernel == AttendConfig::Kernel::hopper) {
    attend_forward_hopper(args, config, context);
  } else {
    attend_generic(args, context);
  }
}

}  // namespace gsa::cuda
