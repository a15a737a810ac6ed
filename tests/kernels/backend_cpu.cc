// The tests' backend: the CPU operators, on every instruction set that the machine has.
#include "backend.h"
#include "fused_backend.h"
#include "kernels/common/simd.h"

namespace gsa::testing::backend {

const Traits& traits() {
  static const std::vector<DType> every = {DType::f32, DType::f64, DType::bf16, DType::f16};
  static const Traits traits = {.dtypes = every, .gate_dtypes = every, .threads = true};
  return traits;
}

std::vector<std::string> ways() { return simd_available(); }
void use_way(const std::string& way) { use_simd(way); }

bool rounds_weights(DType stored) { return stored == DType::bf16 && bf16_products(); }

// SSE4 has no fused multiply-add: every step rounds twice. In 16 bits the one rounding at the end outweighs
// that.
double error_slack(DType stored) { return simd_in_use() == "SSE4" && size_of(stored) > 2 ? 2 : 1; }

void select(const SelectArgs& args, const Parallel& parallel) { gsa::select(args, parallel); }
void select_mask(const SelectMaskArgs& args, const Parallel& parallel) { gsa::select_mask(args, parallel); }
void index_scores(const IndexScoresArgs& args, const Parallel& parallel) {
  gsa::index_scores(args, parallel);
}
void attend(const AttendArgs& args, const Parallel& parallel) { gsa::attend(args, parallel); }
void attend_backward(const AttendBackwardArgs& args, const Parallel& parallel) {
  gsa::attend_backward(args, parallel);
}
void attend_lse(const AttendLseArgs& args, const Parallel& parallel) { gsa::attend_lse(args, parallel); }
void gate(const GateArgs& args, const Parallel& parallel) { gsa::gate(args, parallel); }
void gate_backward(const GateBackwardArgs& args, const Parallel& parallel) {
  gsa::gate_backward(args, parallel);
}
void indexer_kl(const IndexerKlArgs& args, const Parallel& parallel) { gsa::indexer_kl(args, parallel); }
void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Parallel& parallel) {
  gsa::indexer_kl_backward(args, parallel);
}
void rms_norm(const RmsNormArgs& args, const Parallel& parallel) { gsa::rms_norm(args, parallel); }
void rms_norm_backward(const RmsNormBackwardArgs& args, const Parallel& parallel) {
  gsa::rms_norm_backward(args, parallel);
}
void rotary(const RotaryArgs& args, const Parallel& parallel) { gsa::rotary(args, parallel); }
void rotary_backward(const RotaryBackwardArgs& args, const Parallel& parallel) {
  gsa::rotary_backward(args, parallel);
}
void swiglu(const SwigluArgs& args, const Parallel& parallel) { gsa::swiglu(args, parallel); }
void swiglu_backward(const SwigluBackwardArgs& args, const Parallel& parallel) {
  gsa::swiglu_backward(args, parallel);
}
void cross_entropy(const CrossEntropyArgs& args, const Parallel& parallel) {
  gsa::cross_entropy(args, parallel);
}
void adamw(const AdamWArgs& args, const Parallel& parallel) { gsa::adamw(args, parallel); }

}  // namespace gsa::testing::backend
