// torch's CUDA graphs. Built only where the CUDA operators are: it needs CUDA's headers and torch's CUDA
// library.
#include "infer/cuda_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace gsa::infer {
namespace {

class Graph final : public CapturedWork {
 public:
  void replay() override { graph_.replay(); }
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<CapturedWork> capture(const std::function<void()>& work) {
  auto result = std::make_unique<Graph>();
  const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream();
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  before.synchronize();
  {
    const c10::cuda::CUDAStreamGuard guard(side);
    work();
    side.synchronize();
    result->graph_.capture_begin();
    work();
    result->graph_.capture_end();
  }
  return result;
}

}  // namespace gsa::infer
