// As backend.h, for the operators between a training step's matrix products.
#pragma once

#include "kernels/adamw/adamw.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rotary/rotary.h"
#include "kernels/swiglu/swiglu.h"

namespace gsa::testing::backend {

void rms_norm(const RmsNormArgs& args, const Parallel& parallel);
void rms_norm_backward(const RmsNormBackwardArgs& args, const Parallel& parallel);
void rotary(const RotaryArgs& args, const Parallel& parallel);
void rotary_backward(const RotaryBackwardArgs& args, const Parallel& parallel);
void swiglu(const SwigluArgs& args, const Parallel& parallel);
void swiglu_backward(const SwigluBackwardArgs& args, const Parallel& parallel);
void cross_entropy(const CrossEntropyArgs& args, const Parallel& parallel);
void adamw(const AdamWArgs& args, const Parallel& parallel);

}  // namespace gsa::testing::backend
