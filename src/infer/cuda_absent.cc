// What stands in for cuda_graph.cc where the CUDA operators are not built. No engine on a GPU gets this far:
// the operators refuse first.
#include "gsa/error.h"
#include "infer/cuda_graph.h"

namespace gsa::infer {

std::unique_ptr<CapturedWork> capture(const std::function<void()>& /*work*/) {
  throw Error("gsa::infer: expected a build with the CUDA operators for a CUDA graph, got one without");
}

}  // namespace gsa::infer
