#include "model/phase.h"

#include <string>
#include <vector>

#include "core/suggest.h"
#include "gsa/error.h"

namespace gsa::nn {
namespace {

constexpr const char* kPhaseOp = "nn::GatedSparseAttention";

}  // namespace

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::dense:
      return "dense";
    case Phase::warmup:
      return "warmup";
    case Phase::sparse:
      return "sparse";
  }
  bad_argument(kPhaseOp, "phase", "dense, warmup or sparse", concat(static_cast<int>(phase)));
}

Phase phase_by_name(std::string_view name) {
  for (const Phase phase : {Phase::dense, Phase::warmup, Phase::sparse}) {
    if (name == name_of(phase)) return phase;
  }
  bad_argument(kPhaseOp, "phase", "dense, warmup or sparse",
               with_suggestion(name, {"dense", "warmup", "sparse"}));
}

}  // namespace gsa::nn
