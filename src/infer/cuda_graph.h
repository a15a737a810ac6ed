// Work on a GPU that is recorded once and replayed: a decode step is hundreds of small kernels, and starting
// each of them from the host would take longer than running it.
#pragma once

#include <functional>
#include <memory>

namespace gsa::infer {

class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  // Enqueues all of it on the current stream.
  virtual void replay() = 0;
};

// Runs work once on a stream of its own (so that libraries set themselves up), then records it. What work
// allocates stays its own for as long as the result lives. Throws gsa::Error in a build without CUDA.
std::unique_ptr<CapturedWork> capture(const std::function<void()>& work);

}  // namespace gsa::infer
