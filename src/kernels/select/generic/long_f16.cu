// The one-pass kernels for float16, beside those for bfloat16 in generic/long.cu: one file takes too long.
#include "kernels/select/generic/long_kernel.cuh"

namespace gsa::cuda::selecting {

template void launch_long_type<__half>(const LongArgs&, ScoreType, const LongPlan&, const Context&);

}  // namespace gsa::cuda::selecting
