// The kernels behind attend_lse on CUDA: parts of the sums, by Hopper's instructions or for any device.
#pragma once

#include "core/cuda_context.h"
#include "gsa/dtype.h"
#include "kernels/attend_lse/attend_lse_device.cuh"

namespace gsa::cuda::lse {

void launch_hopper(DType dtype, const Params& p, int tiles, const Context& context);
void launch_generic(DType dtype, const Params& p, int tiles, const Context& context);

}  // namespace gsa::cuda::lse
