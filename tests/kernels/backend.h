// The kernels' tests run the same bodies against every backend. This header stands between: one function for
// each operator, arguments in host memory as the CPU operators take them, and the few facts in which backends
// differ by definition. backend_cpu.cc and backend_cuda.cc implement it; a test program links one of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attend/attend.h"
#include "kernels/attend_lse/attend_lse.h"
#include "kernels/gate/gate.h"
#include "kernels/indexer_kl/indexer_kl.h"
#include "kernels/select/select.h"

namespace gsa::testing::backend {

struct Traits {
  std::vector<DType> dtypes;       // storage types of select, attend and indexer_kl
  std::vector<DType> gate_dtypes;  // of gate

  // Whether worker threads are the caller's (Parallel) and may not change a bit.
  bool threads = false;

  // Queries of a sequence may be cut into chunks at positions that are multiples of this without changing a
  // bit. A backend that treats a tile of queries together lets a query's bits depend on the earlier queries
  // of its tile: on where the tile begins, and on what those queries selected.
  std::int64_t tile = 1;

  // The error of one sigmoid in a score, by definition of the backend's score (tanh.approx on CUDA).
  double sigmoid_error = 0;

  // Whether the variance comes from one sum of squares around a query's first score, so that its rounding is
  // relative to the mean square distance from that score: larger than the variance where it is an outlier.
  bool moments_around_first = false;

  // Whether products run on matrix units, whose kernels have shapes of their own to be tested.
  bool matrix_units = false;
};
const Traits& traits();

inline DType any_dtype() { return traits().dtypes.front(); }

// The forms that a backend has on this machine: instruction sets of the CPU, kinds of kernel on a GPU. The
// first is what users get.
std::vector<std::string> ways();
void use_way(const std::string& way);

// Whether attend rounds probabilities to the storage type before the second product, on the way in use: matrix units
// and the processor's own products of bfloat16 take both factors in that type. The plain
// implementation that errors are compared with then does the same.
bool rounds_weights(DType stored);

// How much larger the error may be on the way in use than what the tests allow.
double error_slack(DType stored);

void select(const SelectArgs& args, const Parallel& parallel);
void select_mask(const SelectMaskArgs& args, const Parallel& parallel);
void index_scores(const IndexScoresArgs& args, const Parallel& parallel);
void attend(const AttendArgs& args, const Parallel& parallel);
void attend_backward(const AttendBackwardArgs& args, const Parallel& parallel);
void attend_lse(const AttendLseArgs& args, const Parallel& parallel);
void gate(const GateArgs& args, const Parallel& parallel);
void gate_backward(const GateBackwardArgs& args, const Parallel& parallel);
void indexer_kl(const IndexerKlArgs& args, const Parallel& parallel);
void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa::testing::backend
