// The CPU backend of cross_entropy; arguments are checked by the caller.
#pragma once

#include "kernels/cross_entropy/cross_entropy.h"

namespace gsa {

void cross_entropy_cpu(const CrossEntropyArgs& args, const Parallel& parallel);

}  // namespace gsa
