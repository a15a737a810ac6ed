// Every CUDA call and every launch is checked; what fails is thrown as gsa::Error with the place it failed
// at.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda_context.h"
#include "gsa/error.h"

namespace gsa::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    (void)cudaGetLastError();  // else the next launch, a good one, would be blamed for this
    throw Error(
        concat("gsa: CUDA: ", what, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status)));
  }
}

// After a launch. Errors of the kernel's run appear later; this finds a launch that was refused.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// Every operator asks this first.
inline void check_device(const char* op, const Device& device) {
  if (device.major < 8) {
    bad_argument(op, "device", "a CUDA device of compute capability 8.0 or later",
                 concat(device.major, ".", device.minor));
  }
}

// Lets a kernel use more than 48 KB of shared memory.
template <typename Kernel>
void allow_shared_memory(Kernel* kernel, std::size_t bytes, const char* name) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        name);
}

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace gsa::cuda
