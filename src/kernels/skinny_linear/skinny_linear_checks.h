// Argument checks of skinny_linear. Returns whether there is anything to do.
#pragma once

#include "kernels/skinny_linear/skinny_linear.h"

namespace gsa {

bool check_skinny_linear(const SkinnyLinearArgs& args, std::int64_t shared_memory);

}  // namespace gsa
