// The CPU backend of append; arguments are checked by the caller.
#pragma once

#include "kernels/append/append.h"

namespace gsa {

void append_cpu(const AppendArgs& args, const Parallel& parallel);

}  // namespace gsa
