#pragma once

#include <string>

#include "gsa/error.h"
#include "nn/torch.h"

namespace gsa::nn {

// "Float [2, 3]": a tensor in an error's words.
inline std::string shape_of(const at::Tensor& x) { return concat(x.scalar_type(), " ", x.sizes()); }

}  // namespace gsa::nn
