// What a CUDA launch needs from outside, without any CUDA header: kernels own neither streams nor memory.
#pragma once

#include <cstddef>

namespace gsa::cuda {

// Scratch memory on the device. What allocate() returns is aligned to 256 bytes and may be used by work that
// is enqueued on the context's stream until the workspace dies; the owner reuses it in stream order.
class Workspace {
 public:
  virtual ~Workspace() = default;
  virtual void* allocate(std::size_t bytes) = 0;

  template <typename T>
  T* array(std::size_t count) {
    return static_cast<T*>(allocate(count * sizeof(T)));
  }
};

// Facts about a device that decide which kernel runs; plain numbers, so that choices are tested without a
// GPU.
struct Device {
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
  std::size_t shared_memory = 0;  // bytes a block may ask for (opt-in)
  std::size_t l2_cache = 0;       // bytes

  bool hopper() const { return major == 9; }
};

// Calls only enqueue: they never wait for the device, so that they can be captured in a CUDA graph.
struct Context {
  void* stream = nullptr;  // cudaStream_t
  Workspace* workspace = nullptr;
  Device device;
};

// Facts about the current device (cached). Where Hopper's own code is not in the build, or the driver was
// told to compile the portable code instead, they are those of a device that the portable code is for.
const Device& current_device();

// Makes the device current for the CUDA runtime that the kernels are linked with, which may not be that of
// the caller's framework.
void use_device(int ordinal);

}  // namespace gsa::cuda
