// The CPU backend of adamw; arguments are checked by the caller.
#pragma once

#include "kernels/adamw/adamw.h"

namespace gsa {

void adamw_cpu(const AdamWArgs& args, const Parallel& parallel);

}  // namespace gsa
