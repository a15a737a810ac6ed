// Argument checks of few_linear. Returns whether there is anything to do.
#pragma once

#include "kernels/few_linear/few_linear.h"

namespace gsa {

bool check_few_linear(const FewLinearArgs& args, std::int64_t shared_memory);

}  // namespace gsa
